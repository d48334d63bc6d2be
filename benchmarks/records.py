"""NoisyInstruct records from MuSiQue's own files, to train on real text: python -m benchmarks.records DATA OUT [N]

The hint is the paragraphs that support the answer, the distractors are paragraphs that do not (hard negatives by
construction). DATA holds `musique/*.jsonl`; nothing of it is kept in this project.
"""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from noisyjax.errors import UsageError
from noisyjax.instruct import InstructRecord, write_records
from noisyjax.records import Unit

NOISE = 3
"""Distractor paragraphs a record."""


def rows(data: Path) -> Iterator[dict[str, Any]]:
    """Rows of all files: JSON lines, or one array."""
    for path in sorted((data / "musique").glob("*.json*")):
        text = path.read_text(encoding="utf-8")
        yield from json.loads(text) if text.lstrip().startswith("[") else map(json.loads, text.splitlines())


def record(row: dict[str, Any]) -> InstructRecord:
    gold = [p["paragraph_text"] for p in row["paragraphs"] if p["is_supporting"]]
    noise = [p for p in row["paragraphs"] if not p["is_supporting"]][:NOISE]
    return InstructRecord(
        id=row["id"],
        question=row["question"],
        answers=(row["answer"], *row.get("answer_aliases", ())),
        hint="\n".join(gold),
        distractors=tuple(Unit(f"p{p['idx']}", "HN", f"{p['title']}\n{p['paragraph_text']}") for p in noise),
        domain="musique",
        composition="A|Q,D,H",
        setting="HN",
    )


def records(data: Path, most: int) -> list[InstructRecord]:
    """The first `most` answerable questions."""
    made = [record(row) for row in islice((r for r in rows(data) if r.get("answerable", True)), most)]
    if not made:
        raise UsageError(f"{data} holds no musique/*.json with answerable questions")
    return made


if __name__ == "__main__":
    out = Path(sys.argv[2])
    print(
        write_records(out, records(Path(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else 64)), "records in", out
    )
