r"""Reading an answer out of a completion: boxes, tags and answer lines. Pure, linear in the text, never raising.

Everything here works on the *answer part*, the text after the thoughts; the thoughts are split off elsewhere. A rule
returns what it read with a mark that says whether the answer is closed, so that text cut by the token limit
(`\boxed{4`, or `Answer: 12` where 125 may have been coming) is not taken for an answer.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Extraction = Literal["strict", "flexible"]
"""strict: only an answer in the form that was asked for. flexible: other usual forms as well."""


@dataclass(frozen=True)
class Found:
    """An answer as read, from `start` to `end` of the text. `closed` says that it cannot go on after `end`."""

    text: str
    rule: str
    start: int
    end: int
    closed: bool = True


Rule = Callable[[str], Found | None]

# ----------------------------------------------------------------------------------------------------------------
# \boxed{...}
# ----------------------------------------------------------------------------------------------------------------

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[\\{}]|[{}]")


def _boxes(text: str) -> tuple[list[Found], int]:
    r"""All balanced boxes in the order they close, and where the last box starts that never closes (-1: none)."""
    open_at: list[tuple[bool, int, int]] = []
    boxes: list[Found] = []
    for match in _BRACES.finditer(text):
        token = match.group()
        if token[-1] == "{" and token != r"\{":
            open_at.append((len(token) > 1, match.start(), match.end()))
        elif token == "}" and open_at:
            is_box, start, inside = open_at.pop()
            if is_box:
                boxes.append(Found(text[inside : match.start()].strip(), "boxed", start, match.end()))
    return boxes, max((start for is_box, start, _ in open_at if is_box), default=-1)


def last_boxed(text: str) -> Found | None:
    r"""The last non-empty `\boxed{}` or `\fbox{}` with balanced braces; of nested boxes the innermost.

    >>> last_boxed(r"\boxed{2} no, \boxed{\frac{1}{3}}").text
    '\\frac{1}{3}'
    """
    boxes = [box for box in _boxes(text)[0] if box.text]
    return max(boxes, key=lambda box: box.start, default=None)


# ----------------------------------------------------------------------------------------------------------------
# <answer>...</answer>
# ----------------------------------------------------------------------------------------------------------------

_TAG_OPEN, _TAG_CLOSE = "<answer>", "</answer>"
_OPEN_TAG_LIMIT = 200
_ASCII_LOWER = {c: c + 32 for c in range(ord("A"), ord("Z") + 1)}


def _ascii_lower(text: str) -> str:
    """Lower case of A-Z only: `str.lower` changes the length of some letters, and with it every position."""
    return text.translate(_ASCII_LOWER)


def _unclosed_tag(text: str) -> int:
    """Where an `<answer>` starts that is never closed, -1 when there is none."""
    lower = _ascii_lower(text)
    start = lower.rfind(_TAG_OPEN)
    return start if start > lower.rfind(_TAG_CLOSE) else -1


def last_tag(text: str) -> Found | None:
    """The last non-empty `<answer>…</answer>`. A short unclosed one at the end counts as not closed: generation may
    have been stopped by the closing tag itself."""
    start = _unclosed_tag(text)
    tail = text[start + len(_TAG_OPEN) :].strip() if start >= 0 else ""
    if 0 < len(tail) <= _OPEN_TAG_LIMIT:
        return Found(tail, "tag", start, len(text), closed=False)
    lower, end = _ascii_lower(text), len(text)
    while (close := lower.rfind(_TAG_CLOSE, 0, end)) >= 0:
        start = lower.rfind(_TAG_OPEN, 0, close)
        if start < 0:
            return None
        if inside := text[start + len(_TAG_OPEN) : close].strip():
            return Found(inside, "tag", start, close + len(_TAG_CLOSE))
        end = start
    return None


# ----------------------------------------------------------------------------------------------------------------
# Answer lines
# ----------------------------------------------------------------------------------------------------------------

# Repeats are bounded, so that a run of blanks cannot make the search quadratic.
_MARKUP = r"[*_` \t]{0,6}"
_TO_QUESTION = r"(?:\s(?:to|for)\s(?:the|this)\squestion)?"
ANSWER_COLON = re.compile(rf"\banswer{_TO_QUESTION}{_MARKUP}(?:is|=)?{_MARKUP}[:：]", re.I)
ANSWER_IS = re.compile(rf"\banswer{_TO_QUESTION}\s(?:is|=)(?!\w)", re.I)
_SKIPPED = re.compile(r"[*_`]{0,3}\s*")


def _line_after(marker: re.Pattern[str], text: str, rule: str) -> Found | None:
    """What stands behind the last marker that anything follows: the rest of its line, or the next line with text."""
    for match in reversed(list(marker.finditer(text))):
        skipped = _SKIPPED.match(text, match.end())
        begin = skipped.end() if skipped else match.end()
        newline = text.find("\n", begin)
        end = len(text) if newline < 0 else newline
        if line := clean(text[begin:end]):
            return Found(line, rule, match.start(), end, closed=newline >= 0)
    return None


def answer_line(text: str) -> Found | None:
    """The line behind the last `Answer:` (`Final answer:`, `**Answer**:`, `The answer is: …`)."""
    return _line_after(ANSWER_COLON, text, "answer_line")


def answer_phrase(text: str) -> Found | None:
    """The rest of the line behind the last `answer is …`, the weaker form without a colon."""
    return _line_after(ANSWER_IS, text, "answer_phrase")


_WRAPPERS = (("**", "**"), ("__", "__"), ("*", "*"), ("`", "`"), ("$", "$"), ('"', '"'), ("“", "”"), (r"\(", r"\)"))
_TEXT_MACRO = re.compile(r"\\(?:text|mathrm|textbf|mathbf|texttt|textit|boxed|fbox)\s*\{(.*)\}", re.S)
_MAX_LAYERS = 8


def clean(text: str) -> str:
    r"""An answer without what only dresses it: outer blanks, emphasis, quotes, `$`, `\text{}`, one final full stop.

    >>> clean(r" **$\text{Paris}$.** ")
    'Paris'
    """
    text = text.strip()
    for _ in range(_MAX_LAYERS):
        before = text
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1].rstrip()
        for left, right in _WRAPPERS:
            inside = text[len(left) : -len(right)]
            if inside and text == left + inside + right and left not in inside and right not in inside:
                text = inside.strip()
        macro = _TEXT_MACRO.fullmatch(text)
        if macro and _is_balanced(macro.group(1)):
            text = macro.group(1).strip()
        # A dangling half of an emphasis: its other half stood before the marker.
        for mark in ("**", "__"):
            if text.count(mark) == 1 and (text.startswith(mark) or text.endswith(mark)):
                text = text.replace(mark, "").strip()
        if text == before:
            break
    return text


def _is_balanced(text: str) -> bool:
    depth = 0
    for match in _BRACES.finditer(text):
        token = match.group()
        depth += (token[-1] == "{" and token != r"\{") - (token == "}")
        if depth < 0:
            return False
    return depth == 0


# ----------------------------------------------------------------------------------------------------------------
# Rules together
# ----------------------------------------------------------------------------------------------------------------


def last_of(*rules: Rule) -> Rule:
    """A rule that takes whichever of `rules` found its answer furthest down: the last word counts."""

    def rule(text: str) -> Found | None:
        found = [hit for r in rules if (hit := r(text))]
        return max(found, key=lambda hit: hit.start, default=None)

    return rule


def first_of(*rules: Rule) -> Rule:
    """A rule that takes the first of `rules` that finds anything."""
    return lambda text: next((hit for r in rules if (hit := r(text))), None)


def whole_text(text: str) -> Found | None:
    """The text itself; it is closed only if the completion is."""
    answer = clean(text)
    return Found(answer, "whole_text", 0, len(text), closed=False) if answer else None


def read(text: str, rule: Rule, *, finished: bool) -> Found | None:
    """Apply `rule`. In a completion that was cut (`finished` false) only a closed answer counts, and only if no
    later box or tag had been opened: the model was about to say something else."""
    found = rule(text)
    if found is None or finished:
        return found
    reopened = max(_boxes(text)[1], _unclosed_tag(text))
    return found if found.closed and reopened <= found.start else None


_marked = last_of(last_tag, last_boxed, answer_line)

free_text_strict: Rule = _marked
"""Short free-form answers: a tag, a box or an `Answer:` line, whichever comes last."""

free_text_flexible: Rule = first_of(_marked, answer_phrase, whole_text)
"""The same, else `the answer is …`, else the whole answer part."""

math_strict: Rule = last_boxed
r"""Mathematics: the last `\boxed{}`."""

math_flexible: Rule = first_of(last_boxed, last_of(last_tag, answer_line), answer_phrase)
"""The last box, else a tag or answer line, else `the answer is …`."""
