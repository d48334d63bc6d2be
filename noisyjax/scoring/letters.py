"""Reading the letter of a chosen option, and judging options by their text. Pure; never raises."""

import re
from collections.abc import Sequence

from noisyjax.scoring.extract import (
    ANSWER_COLON,
    Extraction,
    Found,
    clean,
    free_text_flexible,
    last_boxed,
    last_tag,
    read,
)
from noisyjax.scoring.normalise import answer_tokens, contains_run, same_text

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_LETTER_OPTIONS = 8
"""Options allowed when a question does not list them: the model-written evaluations have up to eight, (A) to (H)."""

# A letter behind a marker: (B), [B], B), **B**, \text{B}, $\mathrm{(B)}$, option B, B because ...
_MACRO = r"\\(?:text|textbf|mathrm|mathbf|boxed)\{"
_OPENERS = rf"[*_`$\"'(\[{{\s]{{0,8}}(?:(?:option|choice|answer)\s{{1,4}})?(?:{_MACRO}|[*_`$(\[]){{0,6}}"
# It must not begin a word or a clause ("A man", "I think"): a bare letter before a blank counts only if it is no word.
_CLOSED = r"(?:(?<=[B-HJ-Z])(?=\s)|(?=[)\]}*_`$\"]|'(?!s)|\s{0,4}(?:\Z|[\n.:;!?,(—–-]|\\\)|(?:because|since|as|is)\b)))"
# "A and B", "(A), (C)", "A/B": several options are no choice.
_SINGLE = r"(?!\W{0,4}(?:,|/|&|\band\b|\bor\b)\W{0,4}[A-HJ-Z](?![A-Za-z0-9']))"
_LETTER = re.compile(rf"{_OPENERS}(?!e\.g|i\.e)([A-Za-z]){_CLOSED}{_SINGLE}")

_CHOICE_IS = re.compile(r"\b(?:answer|choice|option)(?:\s(?:to|for)\s(?:the|this)\squestion)?\s(?:is|=)(?!\w)", re.I)
_LABEL = re.compile(r"[(\[]?\s*(?:(?:option|choice)\s+)?[(\[]?([A-Za-z])\s*(?:\Z|[)\].:].*)", re.I | re.S)
_SHORT = 8
_PARENTHESISED = re.compile(r"\([A-Z]\)(?:(?:\s?(?:,|/|&|and|or)\s?){1,2}\([A-Z]\)){0,8}")
_LINE_LETTER = re.compile(r"^[*_ \t]*\(?([A-Z])(?:\)|[*_]*[ \t]*[.:)]|[*_ \t]*$)", re.M)


def option_letter(label: str) -> str | None:
    """The letter of a label or a bare answer such as ` (A)`, `B.`, `**c**`, `(D) both`; None for anything else."""
    match = _LABEL.fullmatch(clean(label.replace("*", "").replace("`", "")))
    return match.group(1).upper() if match else None


def _after(marker: re.Pattern[str], text: str, rule: str) -> Found | None:
    """The letter right behind the last marker that is followed by one."""
    for match in reversed(list(marker.finditer(text))):
        if letter := _LETTER.match(text, match.end()):
            return Found(letter.group(1).upper(), rule, match.start(), letter.end(), closed=letter.end() < len(text))
    return None


def _within(found: Found | None) -> Found | None:
    """A tag or box reduced to its letter, if it holds one."""
    letter = option_letter(found.text) if found else None
    return Found(letter, found.rule, found.start, found.end, found.closed) if found and letter else None


def letter_strict(text: str) -> Found | None:
    """The last `Answer: X`, else the last `<answer>X</answer>`, else the last boxed letter."""
    return _after(ANSWER_COLON, text, "answer_line") or _within(last_tag(text)) or _within(last_boxed(text))


def _leading_letter(text: str) -> Found | None:
    """`B. …` or `(B)` at the very start, unless other lines begin with other letters: then it goes through them all."""
    lines = list(_LINE_LETTER.finditer(text))
    if not lines or text[: lines[0].start()].strip() or len({line.group(1) for line in lines}) != 1:
        return None
    first = lines[0]
    return Found(first.group(1), "leading_letter", first.start(), first.end(), closed=first.end() < len(text))


def _last_parenthesised(text: str) -> Found | None:
    """The last `(X)`, unless it stands in a list: `(A) or (C)`. In cut text it may be one of several being weighed,
    so it is never closed."""
    runs = list(_PARENTHESISED.finditer(text))
    letters = set(re.findall("[A-Z]", runs[-1].group())) if runs else set()
    if len(letters) != 1:
        return None
    return Found(letters.pop(), "parenthesised", runs[-1].start(), runs[-1].end(), closed=False)


def letter_flexible(text: str) -> Found | None:
    """`letter_strict`, else `the answer is X`, else a letter that opens the text, else the last `(X)`."""
    return (
        letter_strict(text)
        or _after(_CHOICE_IS, text, "answer_phrase")
        or _leading_letter(text)
        or _last_parenthesised(text)
    )


def option_by_text(text: str, choices: Sequence[str]) -> int | None:
    """The one option whose text the answer is, or which alone it mentions; None when none or several fit.

    An option that is part of a longer mentioned option does not count beside it.
    """
    equal = [i for i, choice in enumerate(choices) if same_text(text, choice)]
    if equal:
        return equal[0] if len(equal) == 1 else None
    tokens = answer_tokens(text)
    runs = {i: run for i, choice in enumerate(choices) if _mentions(tokens, run := answer_tokens(choice))}
    longest = [i for i, r in runs.items() if not any(len(o) > len(r) and contains_run(o, r) for o in runs.values())]
    return longest[0] if len(longest) == 1 else None


def _mentions(tokens: Sequence[str], run: Sequence[str]) -> bool:
    """Whether a statement mentions an option. A one-word option is only a mention in a short statement, and Yes or No
    only as its first word: "I have no opinion" does not choose No."""
    if len(run) == 1:
        return len(tokens) <= _SHORT and contains_run(tokens[:1] if run[0] in ("yes", "no") else tokens, run)
    return bool(run) and contains_run(tokens, run)


def choose(text: str, choices: Sequence[str], extraction: Extraction, *, finished: bool) -> tuple[str | None, str]:
    """The chosen option's letter and the rule that read it; (None, why) when there is none.

    text: the answer part; choices: option texts as presented (may be empty: then only letters A to H are read).
    A letter beyond the options is no answer, and no earlier letter is taken in its place.
    """
    found = read(text, letter_strict if extraction == "strict" else letter_flexible, finished=finished)
    if found:
        count = len(choices) or MAX_LETTER_OPTIONS
        inside = LETTERS.index(found.text) < count
        return (found.text, found.rule) if inside else (None, f"option {found.text} is not among the {count} options")
    stated = read(text, free_text_flexible, finished=finished) if extraction == "flexible" else None
    index = option_by_text(stated.text, choices) if stated else None
    return (None, "no option was read") if index is None else (LETTERS[index], "option_text")
