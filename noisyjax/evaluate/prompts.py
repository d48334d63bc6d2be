"""Prompts and questions as the store holds them: each once, long texts shared, so that a page can show and a scorer
can judge a sample without the benchmark's files."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from noisyjax.records import LABELS, Label, Message, NoisyPrompt, Part, Question
from noisyjax.store import RunWriter

_INLINE = 120
"""Characters up to which a text stands in the prompt's record itself."""


def text_id(text: str) -> str:
    """Content address of a text: 20 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def store_prompt(run: RunWriter, prompt: NoisyPrompt) -> str:
    """Store the prompt and the texts it is made of, unless they are there; the prompt's id."""
    messages = [[m.role, [_part(run, part) for part in m.parts]] for m in prompt.messages]
    body = {
        "dataset": prompt.dataset,
        "question": prompt.question_id,
        "setting": prompt.setting,
        "messages": messages,
        "units": list(prompt.units),
        "dropped": list(prompt.dropped),
        "over_length": prompt.over_length,
        "choices": list(prompt.choices),
        "gold": prompt.gold,
    }
    id = text_id(json.dumps(body, sort_keys=True))
    counts = Counter(prompt.labels.tolist())
    tokens = {LABELS[label].value: n for label, n in sorted(counts.items())}
    run.put_once("prompts", {"id": id, **body, "tokens": tokens})
    return id


def _part(run: RunWriter, part: Part) -> list[str | None]:
    """[label, unit, text] for a short text, [label, unit, null, text id] for a long one."""
    if len(part.text) <= _INLINE:
        return [part.label.value, part.unit, part.text]
    id = text_id(part.text)
    run.put_once("texts", {"id": id, "text": part.text})
    return [part.label.value, part.unit, None, id]


def read_messages(record: Mapping[str, Any], texts: Mapping[str, str]) -> tuple[Message, ...]:
    """The labelled messages of a stored prompt. `texts` maps text ids to texts."""
    return tuple(Message(role, tuple(_read_part(part, texts) for part in parts)) for role, parts in record["messages"])


def _read_part(part: list[str | None], texts: Mapping[str, str]) -> Part:
    label, unit, text = part[:3]
    return Part(texts[str(part[3])] if text is None else text, Label(str(label)), unit)


def question_record(question: Question) -> dict[str, Any]:
    """What scoring needs of a question; its evidence is part of the prompts."""
    return {
        "id": f"{question.dataset}/{question.id}",
        "dataset": question.dataset,
        "question": question.id,
        "text": question.text,
        "answers": list(question.answers),
        "choices": list(question.choices),
        "meta": dict(question.meta),
    }


def read_question(record: Mapping[str, Any]) -> Question:
    return Question(
        dataset=record["dataset"],
        id=record["question"],
        text=record["text"],
        answers=tuple(record["answers"]),
        choices=tuple(record["choices"]),
        meta=record["meta"],
    )
