r"""AIME answers: integers from 0 to 999, however they are dressed. Compared as integers before any algebra."""

import re

from noisyjax.scoring.extract import Extraction, Found, first_of, math_flexible, math_strict, read

_MACRO = r"\\(?:text|mathrm|textbf|mathbf|textit|operatorname|mbox)\s*"
_NUMBER_IN_MACRO = re.compile(_MACRO + r"\{\s*([+-]?[\d,]+(?:\.0*)?)\s*\}")
_UNIT_MACRO = re.compile(_MACRO + r"\{[^{}]*\}")
_DEGREE = re.compile(r"\^?\s*\{?\s*\\(?:circ|degree)\s*\}?|°")
_BLANK = re.compile(r"\\[,;:! ]|\\q?quad\b|~|\s")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,)(?=\d{3}(?!\d))")
_ASSIGNED = re.compile(r"[A-Za-z][A-Za-z0-9_{}\\ +*-]{0,30}=")
# A unit in plain letters is a word ("cm", "degrees"); a single letter would be a variable ("7x").
_WHOLE = re.compile(r"([+-]?)(\d{1,40})(?:\.0*)?\s*(?:cm|mm|km|[A-Za-z]{4,15})?", re.ASCII)
_LONE_INTEGER = re.compile(r"(?<![\w.,/^\\-])-?\d{1,40}(?![\w/^]|[.,]\d)", re.ASCII)


def integer(text: str) -> int | None:
    r"""The integer that `text` is, or None: blanks, commas, leading zeros, `.0`, `336^\circ`, `\text{ cm}`, `n = 42`.

    >>> [integer(t) for t in (r"336^\circ", "m+n = 1,024.0", r"\textbf{007}", "three", "7/2", "2, 5")]
    [336, 1024, 7, None, None, None]
    """
    text = text.strip().strip("$").removeprefix(r"\(").removesuffix(r"\)")
    text = _UNIT_MACRO.sub(" ", _NUMBER_IN_MACRO.sub(r"\1", text))
    text = _THOUSANDS.sub("", _BLANK.sub(" ", _DEGREE.sub(" ", text))).replace("−", "-").strip(" {}.")
    text = _ASSIGNED.sub("", text, count=1).strip(" {}") if text.count("=") == 1 else text
    match = _WHOLE.fullmatch(text)
    return int(match.group(1) + match.group(2)) if match else None


def _last_line_integer(text: str) -> Found | None:
    """The one integer of the last line (behind its last `=`), for a response that ends in `so m + n = 25 + 45 = 70.`"""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    numbers = _LONE_INTEGER.findall(lines[-1].rpartition("=")[2])
    if len(numbers) != 1:
        return None
    return Found(numbers[0], "last_line", max(0, text.rfind(lines[-1])), len(text), closed=False)


def read_answer(text: str, extraction: Extraction, *, finished: bool) -> Found | None:
    r"""The last `\boxed{}`; flexible: else an answer line, else the only integer of the last line."""
    rule = math_strict if extraction == "strict" else first_of(math_flexible, _last_line_integer)
    return read(text, rule, finished=finished)
