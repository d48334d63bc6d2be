"""Reads a verdict from what a judge wrote. A verdict that is not plainly there is None; there is no default."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from noisyjax.chat import thoughts


class Label(StrEnum):
    """What an outcome judge may say."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NOT_ATTEMPTED = "not_attempted"


@dataclass(frozen=True)
class Reading:
    """`label` is None when nothing could be read; `why` then says what was wrong."""

    label: StrEnum | None
    why: str = ""


_MARKS = r"[\s*_`#>\-]*"
_SAYS = re.compile(r"VERDICT[*_`]*\s*:", re.IGNORECASE)


@cache
def _line[L: StrEnum](labels: type[L]) -> tuple[re.Pattern[str], re.Pattern[str], dict[str, L]]:
    """A line that is nothing but a verdict, a line that ends in one, and the label for each folded word."""
    words = "|".join(label.value.replace("_", r"[ _\-]?") for label in labels)
    verdict = rf"{_MARKS}VERDICT[*_`]*\s*:{_MARKS}(?P<label>{words})[\s*_`.!]*"
    whole, ending = (re.compile(before + verdict, re.IGNORECASE) for before in ("", r".*\s"))
    return whole, ending, {label.value.replace("_", ""): label for label in labels}


def read_verdict(text: str, opened_by_prompt: bool = False, labels: type[StrEnum] = Label) -> Reading:
    """The verdict after the thoughts: the last line that is nothing but `VERDICT: <one of labels>` counts.

    The last line may have words before the verdict. A verdict that is contradicted is none: a later line that says
    "VERDICT:" about something else, or closing words after two different verdicts.
    """
    tags = next((t for t in thoughts.FAMILIES.values() if re.search(f"{t.open}|{t.close}", text)), thoughts.THINK)
    answer = thoughts.split(text, opened_by_prompt, tags).answer
    if answer is None:
        return Reading(None, "the thought was never closed")
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    found = [(i, label) for i, line in enumerate(lines) if (label := _label(line, labels, last=i == len(lines) - 1))]
    if not found:
        return Reading(None, "no verdict line" if lines else "an empty answer")
    at, label = found[-1]
    after = lines[at + 1 :]
    if any(_SAYS.search(line) for line in after) or (after and len({label for _, label in found}) > 1):
        return Reading(None, "contradictory verdicts")
    return Reading(label)


def _label(line: str, labels: type[StrEnum], last: bool) -> StrEnum | None:
    whole, ending, by_word = _line(labels)
    match = whole.fullmatch(line)
    if match is None and last and len(_SAYS.findall(line)) == 1:
        match = ending.fullmatch(line)
    return None if match is None else by_word[re.sub(r"[ _\-]", "", match["label"]).lower()]
