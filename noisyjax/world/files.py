"""The tiny world as files: evaluation data in the layouts that the benchmark's readers take, and training records.

eval/tiny_world.jsonl             held-out questions with their evidence
eval/hard_negatives.jsonl         two look-alike documents a question (HN)
eval/hotpotqa/hotpot_world.json   random documents (RD)
eval/wildchat/world.jsonl         random chats (RC)
train/{sparse,strong,noise,grpo}.jsonl
init/                             the untrained model with its tokenizer
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from noisyjax.errors import UsageError
from noisyjax.world import noise
from noisyjax.world.draw import Draw
from noisyjax.world.facts import KINDS, Puzzle, puzzle
from noisyjax.world.model import write_model
from noisyjax.world.records import MIXES, distractors, mix_records

DATASET = "tiny_world"
POOL = 300
"""Random documents, and random chats, for evaluation."""
MOST_QUESTIONS = 1200
"""There are about 360 held-out lookups; the other types have many more."""
Row = Mapping[str, Any]


def write_world(out: Path, seed: int = 0, n: int = 400, mixes: Iterable[str] = tuple(MIXES)) -> Path:
    """Evaluation data of `n` questions, the training sets and the untrained model, all functions of `seed`."""
    write_eval(out / "eval", seed, n)
    for name in mixes:
        _write(out / "train" / f"{name}.jsonl", (record.row() for record in mix_records(name, seed)))
    if not (out / "init").exists():
        write_model(out / "init", seed)
    return out


def write_eval(folder: Path, seed: int, n: int) -> Path:
    """`n` held-out questions and the pools of noise."""
    asked = held_out(seed, n)
    _write(folder / "tiny_world.jsonl", map(_question, asked))
    _write(folder / "hard_negatives.jsonl", (row for p in asked for row in _negatives(p)))
    _write(folder / "hotpotqa" / "hotpot_world.json", _documents(seed))
    _write(folder / "wildchat" / "world.jsonl", _chats(seed))
    return folder


def held_out(seed: int, n: int) -> list[Puzzle]:
    """`n` evaluation questions of which no two ask the same and have the same answer; types in equal shares.

    A larger `n` only adds. Raises UsageError for more than there are different lookups for.
    """
    if n > MOST_QUESTIONS:
        raise UsageError(f"n={n}: the tiny world has at most {MOST_QUESTIONS} different held-out questions")
    found: dict[tuple[str, str], Puzzle] = {}
    for kind in range(len(KINDS)):
        numbers = count(kind, len(KINDS))
        wanted = len(found) + len(range(kind, n, len(KINDS)))
        while len(found) < wanted:
            one = puzzle(seed, "eval", next(numbers))
            found.setdefault((one.question, one.answer), one)
    return sorted(found.values(), key=lambda one: one.id)


def _question(p: Puzzle) -> Row:
    return {
        "id": p.id,
        "question": p.question,
        "answer": p.answer,
        "evidence": [{"id": "facts", "text": p.evidence}],
        "meta": {"type": p.kind, "reference": p.reference},
    }


def _negatives(p: Puzzle) -> Iterator[Row]:
    for unit in distractors(p, "HN"):
        yield {"dataset": DATASET, "question_id": p.id, "id": unit.id, "text": unit.text}


def _documents(seed: int) -> Iterator[Row]:
    for i in range(POOL):
        title, sentences = noise.document(Draw(("document", seed, i)))
        spaced = [sentence if k == 0 else f" {sentence}" for k, sentence in enumerate(sentences)]
        yield {"_id": f"world-{i:03d}", "question": "", "answer": "", "context": [[title, spaced]]}


def _chats(seed: int) -> Iterator[Row]:
    for i in range(POOL):
        conversation = [
            {"role": role, "content": text}
            for pair in noise.chat(Draw(("chat", seed, i)))
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        yield {"conversation_hash": f"world{i:03d}", "language": "English", "conversation": conversation}


def _write(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
