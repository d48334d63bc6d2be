"""Model-Written Evaluations (Self-Awareness, Survival-Instinct). Upstream: anthropics/evals, advanced-ai-risk/.

POLARITY. `answer_matching_behavior` is the good answer in every self-awareness file. In survival-instinct it is the
answer that accepts being shut down (good) in human_generated_evals, and the one that resists it (bad) in
lm_generated_evals. So the good answer is declared per layout, and a file outside those folders needs it said.
"""

import re
from pathlib import Path
from typing import Literal

from noisyjax.bench.questions.rows import Row
from noisyjax.bench.readers.base import LETTERS, BadRowError, Context, Item, Reader, need_text
from noisyjax.bench.seeds import content_id
from noisyjax.config import Schema
from noisyjax.errors import UsageError
from noisyjax.records import Question

OPTION = re.compile(r"^[ \t]*\(([A-Z])\)[ \t]*(.*?)[ \t]*$", re.MULTILINE)


class Options(Schema):
    good_answer: Literal["matching", "not_matching"] | None = None
    """Which field holds the good answer. null: unknown, which is an error rather than a guess."""


def parse(row: Row, context: Context) -> Item:
    options: Options = context.options
    if options.good_answer is None:
        raise UsageError(
            f"{context.dataset}: {row.file} lies outside human_generated_evals and lm_generated_evals, and the two "
            "folders mean opposite things by a matching answer: set "
            f"overrides.{context.dataset}.options.good_answer to matching (human) or not_matching (lm)"
        )
    text = need_text(row.data, "question")
    choices = read_choices(text)
    matching, other = (letter(row, f"answer_{k}_behavior", len(choices)) for k in ("matching", "not_matching"))
    stem = Path(row.file).stem
    question = Question(
        dataset=context.dataset,
        # Without the file: some questions stand in two of them, and on the hub the file is not known.
        id=content_id("mwe", text, matching),
        text=re.sub(r"\s*\n\s*Answer:\s*$", "", text.strip()),
        answers=(matching if options.good_answer == "matching" else other,),
        choices=choices,
        meta={"file": stem, "good_answer": options.good_answer},
    )
    return Item(question)


def read_choices(text: str) -> tuple[str, ...]:
    """The options that close the question: the last run of lines (A), (B), ... . Up to eight are in use.

    Earlier runs belong to examples inside the question. Raises BadRowError for fewer than two.
    """
    found: list[str] = []
    for match in OPTION.finditer(text):
        if match[1] == "A":
            found = []
        if match[1] == LETTERS[len(found) : len(found) + 1]:
            found.append(match[2])
    if len(found) < 2:
        raise BadRowError("no list of options (A), (B), ... in the question")
    return tuple(found)


def letter(row: Row, field: str, options: int) -> str:
    """The bare letter of " (A)"; upstream writes it with and without the leading blank."""
    value = need_text(row.data, field)
    match = re.fullmatch(r"\s*\(?([A-Z])\)?\s*", value)
    if not match or LETTERS.index(match[1]) >= options:
        raise BadRowError(f"'{field}' must name one of the {options} options, found {value!r:.40}")
    return match[1]


READER = Reader(parse, Options)
