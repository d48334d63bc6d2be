"""The two kinds of training rows, their checks, and their way to and from plain data.

An `InstructRecord` is a question in its noise (NoisyInstruct); a `ChatRecord` is an ordinary conversation for SFT.
docs/instruct.md is the written schema. Shape is checked by pydantic, meaning by the records themselves, so that a
record which exists is a sound one, wherever it came from.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from noisyjax.bench.seeds import content_id
from noisyjax.config import Schema, validate
from noisyjax.errors import UsageError
from noisyjax.records import Document, Unit, noise_kinds

Composition = Literal["A|Q", "A|Q,H", "A|Q,D", "A|Q,D,H"]
"""What the answer A is conditioned on: the question Q, distractors D, the hint H."""
COMPOSITIONS: tuple[Composition, ...] = ("A|Q", "A|Q,H", "A|Q,D", "A|Q,D,H")


@dataclass(frozen=True)
class InstructRecord:
    """One NoisyInstruct row. Raises ValueError that lists everything that does not hold together.

    `answers` holds the gold answer first, its aliases after it. `hint` is the gold reference: it is in the prompt
    only where `composition` has an H, and the rationale reward measures against it wherever there is one. `evidence`
    are passages that belong to the question and are always shown. `setting` names the kinds of the distractors: ND,
    RD, RC, HN or a mixture such as RD+HN. `working` leads from the hint to the answer; SFT teaches it as thought.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    hint: str | None
    distractors: tuple[Unit, ...]
    domain: str
    composition: Composition
    setting: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[Document, ...] = ()
    working: str | None = None

    def __post_init__(self) -> None:
        _raise(_instruct_problems(self))

    @property
    def shows_hint(self) -> bool:
        """Whether the prompt holds the hint."""
        return self.composition.endswith("H")

    def row(self) -> dict[str, Any]:
        """Plain JSON data that `parse_instruct` reads back to an equal record; what is empty is left out."""
        row: dict[str, Any] = {"id": self.id, "question": self.question, "answers": list(self.answers)}
        if self.hint is not None:
            row["hint"] = self.hint
        if self.working is not None:
            row["working"] = self.working
        if self.evidence:
            row["evidence"] = [{"id": d.id, "title": d.title, "text": d.text} for d in self.evidence]
        if self.distractors:
            row["distractors"] = [_unit_row(unit) for unit in self.distractors]
        row |= {"domain": self.domain, "composition": self.composition, "setting": self.setting}
        return row | ({"meta": dict(self.meta)} if self.meta else {})


@dataclass(frozen=True)
class ChatRecord:
    """A conversation whose assistant turns are to be learnt. Raises ValueError that lists what does not hold.

    `messages` are (role, text) pairs; a system message may only come first, and the last is the assistant's.
    """

    id: str
    messages: tuple[tuple[Literal["system", "user", "assistant"], str], ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _raise(_chat_problems(self))

    def row(self) -> dict[str, Any]:
        """Plain JSON data that `parse_chat` reads back to an equal record."""
        row = {"id": self.id, "messages": [{"role": role, "content": text} for role, text in self.messages]}
        return row | ({"meta": dict(self.meta)} if self.meta else {})


# -- from plain data --------------------------------------------------------------------------------------------------


class _UnitRow(Schema):
    id: str
    kind: Literal["RD", "RC", "HN"]
    text: str | None = None
    turns: tuple[tuple[Literal["user", "assistant"], str], ...] = ()


class _DocumentRow(Schema):
    id: str
    text: str
    title: str = ""


class _InstructRow(Schema):
    id: str
    question: str
    answers: tuple[str, ...]
    hint: str | None = None
    working: str | None = None
    evidence: tuple[_DocumentRow, ...] = ()
    distractors: tuple[_UnitRow, ...] = ()
    domain: str
    composition: str
    setting: str
    meta: dict[str, Any] = Field(default_factory=dict)


class _MessageRow(Schema):
    role: Literal["system", "user", "assistant"]
    content: str


class _ChatRow(Schema):
    id: str | None = None
    messages: tuple[_MessageRow, ...]
    meta: dict[str, Any] = Field(default_factory=dict)


def parse_instruct(data: Mapping[str, Any], where: str) -> InstructRecord:
    """The record in `data`. Raises UsageError that begins with `where` and lists every problem."""
    row = validate(_InstructRow, data, where)
    units = tuple(Unit(u.id, u.kind, said(u.turns) if u.text is None else u.text, u.turns) for u in row.distractors)
    evidence = tuple(Document(d.id, d.text, d.title) for d in row.evidence)
    same = ("id", "question", "answers", "hint", "working", "domain", "composition")
    values = {name: getattr(row, name) for name in same}
    try:
        return InstructRecord(**values, setting=row.setting, meta=row.meta, evidence=evidence, distractors=units)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def parse_chat(data: Mapping[str, Any], where: str) -> ChatRecord:
    """The conversation in `data`; other columns, which public chat sets have many of, are passed over.

    A conversation without an id is named by its content. Raises UsageError that begins with `where`.
    """
    known = {key: value for key, value in data.items() if key in _ChatRow.model_fields}
    if isinstance(known.get("messages"), list | tuple):
        known["messages"] = [_without_nulls(message) for message in known["messages"]]
    row = validate(_ChatRow, known, where)
    messages = tuple((message.role, message.content) for message in row.messages)
    try:
        id = f"chat-{content_id(*(text for pair in messages for text in pair))}" if row.id is None else row.id
        return ChatRecord(id, messages, row.meta)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def said(turns: Iterable[tuple[str, str]]) -> str:
    """The text of a chat exchange, as the benchmark writes it: `User: …`, a line break, `Assistant: …`."""
    return "\n".join(f"{role.capitalize()}: {text}" for role, text in turns)


def _unit_row(unit: Unit) -> dict[str, Any]:
    row: dict[str, Any] = {"id": unit.id, "kind": unit.kind}
    if unit.text != said(unit.turns) or not unit.turns:
        row["text"] = unit.text
    return row | ({"turns": [list(turn) for turn in unit.turns]} if unit.turns else {})


def _without_nulls(message: Any) -> Any:
    """Tables write the fields that other messages have as nulls."""
    return {k: v for k, v in message.items() if v is not None} if isinstance(message, Mapping) else message


# -- what must hold ---------------------------------------------------------------------------------------------------


def _raise(problems: Iterable[str]) -> None:
    found = list(problems)
    if found:
        raise ValueError("; ".join(found))


def _instruct_problems(record: InstructRecord) -> Iterator[str]:
    for name in ("id", "question", "domain"):
        yield from _text_problems(name, getattr(record, name))
    if not record.answers:
        yield "answers: at least the gold answer is needed"
    for i, answer in enumerate(record.answers):
        yield from _text_problems(f"answers.{i}", answer)
    if record.hint is not None:
        yield from _text_problems("hint", record.hint)
    if record.working is not None:
        yield from _text_problems("working", record.working)
    for i, document in enumerate(record.evidence):
        yield from _text_problems(f"evidence.{i}.text", document.text)
        yield from _half_characters(f"evidence.{i}.title", document.title)
    for i, unit in enumerate(record.distractors):
        yield from _unit_problems(f"distractors.{i}", unit)
    yield from _repeats("evidence", [d.id for d in record.evidence])
    yield from _repeats("distractors", [u.id for u in record.distractors])
    yield from _composition_problems(record)
    yield from _meta_problems(record.meta)


def _composition_problems(record: InstructRecord) -> Iterator[str]:
    """Composition, setting, hint and distractors say the same thing."""
    if record.composition not in COMPOSITIONS:
        yield f"composition: expected one of {', '.join(COMPOSITIONS)}; got {record.composition!r}"
        return
    try:
        kinds = noise_kinds(record.setting)
    except ValueError as error:
        yield f"setting: {error}"
        return
    held = {unit.kind for unit in record.distractors}
    if held != set(kinds):
        names = "+".join(sorted(held)) or "no distractors"
        yield f"setting: {record.setting} does not name what is there ({names})"
    if ("D" in record.composition) != bool(kinds):
        yield f"composition: {record.composition} does not go with setting {record.setting}"
    if record.shows_hint and record.hint is None:
        yield f"composition: {record.composition} shows a hint, and there is none"


def _unit_problems(name: str, unit: Unit) -> Iterator[str]:
    yield from _text_problems(f"{name}.id", unit.id)
    yield from _text_problems(f"{name}.text", unit.text)
    for i, (_, text) in enumerate(unit.turns):
        yield from _text_problems(f"{name}.turns.{i}", text)
    if unit.turns and unit.kind != "RC":
        yield f"{name}.turns: only RC has turns, this is {unit.kind}"
    if [role for role, _ in unit.turns] != ["user", "assistant"] * (len(unit.turns) // 2):
        yield f"{name}.turns: expected user, assistant, in turn"


def _chat_problems(record: ChatRecord) -> Iterator[str]:
    yield from _text_problems("id", record.id)
    for i, (_, text) in enumerate(record.messages):
        yield from _text_problems(f"messages.{i}.content", text)
    roles = [role for role, _ in record.messages]
    if "system" in roles[1:]:
        yield "messages: a system message may only come first"
    if roles[-1:] != ["assistant"]:
        yield "messages: the last must be the assistant's, or there is nothing to learn behind it"
    yield from _meta_problems(record.meta)


def _text_problems(name: str, text: str) -> Iterator[str]:
    if not text.strip():
        yield f"{name}: empty"
    yield from _half_characters(name, text)


def _half_characters(name: str, text: str) -> Iterator[str]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        yield f"{name}: holds half a character (lone surrogate at {error.start})"


def _repeats(name: str, ids: Iterable[str]) -> Iterator[str]:
    for id, n in Counter(ids).items():
        if n > 1:
            yield f"{name}: the id {id!r} stands {n} times"


def _meta_problems(meta: Mapping[str, Any]) -> Iterator[str]:
    """`meta` must come back from JSON as it is: no tuples, no numbers that are not finite, only text as keys."""
    try:
        text = json.dumps(dict(meta), allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        yield f"meta: not JSON ({error})"
        return
    if json.loads(text) != meta:
        yield "meta: not JSON (a tuple, or a key that is not text)"
