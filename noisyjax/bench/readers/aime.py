r"""AIME 2025 in its three layouts: `{question, answer}` lines, `{id, problem, expected_answer}` lines, and MathArena's
folders of `answers.csv` beside `problems/N.tex`. Answers are integers from 0 to 999; one copy writes `336^\circ`.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from noisyjax.bench.questions.rows import BadRows, Row, read_rows
from noisyjax.bench.readers.base import BadRowError, Context, Item, Reader, need, need_text
from noisyjax.bench.seeds import content_id
from noisyjax.errors import UsageError
from noisyjax.records import Question

DECORATION = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\(?:text|mathrm)\{[^}]*\}|\\[,;! ]|[$,\s°]")


def rows(files: Sequence[Path], bad: BadRows) -> Iterator[Row]:
    for path in files:
        if path.suffix == ".tex":
            continue  # read beside its answers
        yield from _exam(path, bad) if path.name == "answers.csv" else read_rows(path, bad)


def parse(row: Row, context: Context) -> Item:
    text = need_text(row.data, "problem", "question").strip()
    answer = integer(need(row.data, "expected_answer", "answer"))
    upstream = row.data.get("id", row.data.get("problem_idx"))
    identity = content_id("aime25", text) if upstream is None else str(upstream)
    return Item(Question(dataset=context.dataset, id=identity, text=text, answers=(str(answer),)))


def integer(value: object) -> int:
    r"""The AIME answer in `value`: degree signs, units, commas and leading zeros are dropped. `336^\circ` -> 336."""
    plain = DECORATION.sub("", str(value)).removesuffix(".0")
    if not re.fullmatch(r"\d{1,3}", plain):
        raise BadRowError(f"an AIME answer is an integer from 0 to 999, found {value!r:.40}")
    return int(plain)


def read_answers(path: Path) -> dict[str, int]:
    """MathArena's `answers.csv`: problem number -> answer."""
    with path.open(newline="", encoding="utf-8") as file:
        return {row["id"]: integer(row["answer"]) for row in csv.DictReader(file)}


def _exam(path: Path, bad: BadRows) -> Iterator[Row]:
    exam = path.parent.name.rpartition("_")[2] or path.parent.name
    for number, answer in read_answers(path).items():
        problem = path.parent / "problems" / f"{number}.tex"
        if not problem.is_file():
            raise UsageError(f"{path} has the answers, but the problem {problem} is missing")
        data = {"id": f"{exam}-{number}", "problem": problem.read_text(encoding="utf-8"), "answer": answer}
        yield Row(data, f"{exam}/{path.name}:{number}", path.name)


READER = Reader(parse, rows=rows)
