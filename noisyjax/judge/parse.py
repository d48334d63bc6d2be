"""Reads a verdict from what a judge wrote. A verdict that is not plainly there is None; there is no default."""

import re
from dataclasses import dataclass
from enum import StrEnum

from noisyjax.chat import thoughts


class Label(StrEnum):
    CORRECT = "correct"
    INCORRECT = "incorrect"
    NOT_ATTEMPTED = "not_attempted"


@dataclass(frozen=True)
class Reading:
    """`label` is None when nothing could be read; `why` then says what was wrong."""

    label: Label | None
    why: str = ""


_MARKS = r"[\s*_`#>\-]*"
_WORD = r"(?P<label>NOT[ _\-]?ATTEMPTED|INCORRECT|CORRECT)"
_SAYS = re.compile(r"VERDICT[*_`]*\s*:", re.IGNORECASE)
_LINE = re.compile(rf"{_MARKS}VERDICT[*_`]*\s*:{_MARKS}{_WORD}[\s*_`.!]*", re.IGNORECASE)
_LINE_END = re.compile(rf".*\s{_MARKS}VERDICT[*_`]*\s*:{_MARKS}{_WORD}[\s*_`.!]*", re.IGNORECASE)


def read_verdict(text: str, opened_by_prompt: bool = False) -> Reading:
    """The verdict after the thoughts: the last line that is nothing but `VERDICT: <label>` counts.

    The last line may have words before the verdict. A verdict that is contradicted is none: a later line that says
    "VERDICT:" about something else, or closing words after two different verdicts.
    """
    tags = next((t for t in thoughts.FAMILIES.values() if re.search(f"{t.open}|{t.close}", text)), thoughts.THINK)
    answer = thoughts.split(text, opened_by_prompt, tags).answer
    if answer is None:
        return Reading(None, "the thought was never closed")
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    found = [(i, label) for i, line in enumerate(lines) if (label := _label(line, last=i == len(lines) - 1))]
    if not found:
        return Reading(None, "no verdict line" if lines else "an empty answer")
    at, label = found[-1]
    after = lines[at + 1 :]
    if any(_SAYS.search(line) for line in after) or (after and len({label for _, label in found}) > 1):
        return Reading(None, "contradictory verdicts")
    return Reading(label)


def _label(line: str, last: bool) -> Label | None:
    match = _LINE.fullmatch(line)
    if match is None and last and len(_SAYS.findall(line)) == 1:
        match = _LINE_END.fullmatch(line)
    if match is None:
        return None
    return Label(re.sub(r"[ \-]|(?<=NOT)(?=ATTEMPTED)", "_", match["label"].upper()).lower())
