"""Takes the teeth out of text that a judge will read: it may argue, but it may not look like the frame around it.

What could pass for markup or for a verdict is found on a folded shadow of the text (compatibility forms, look-alike
letters, case, accents), so that full-width, Cyrillic or spaced-out spellings are found too; the text itself keeps its
spelling everywhere else, since folding would turn x² into x2.
"""

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import cache

_LOOKALIKES = {
    "a": "аαᴀ",
    "c": "сϲᴄⅽᏟ",
    "d": "ԁᴅⅾᎠ",
    "e": "еεᴇЕΕᎬ",
    "i": "іιɪⅰІΙ",
    "m": "ᴍМΜ",
    "n": "ɴΝո",
    "o": "оοᴏОΟ",
    "p": "рρᴘРΡ",
    "r": "ʀгᎡ",
    "s": "ѕꜱЅ",
    "t": "тτᴛТΤᎢ",
    "v": "ѵνᴠѴᏙⅴ",
    "y": "уγʏУΥ",
    ":": "∶꞉ː﹕",
    "=": "゠꞊",
    "<": "‹〈〈❮ᐸ",
    ">": "›〉〉❯ᐳ",
    "|": "│∣ǀ¦",
    "_": "＿",
}
_FOLD = {look: plain for plain, looks in _LOOKALIKES.items() for look in looks}

_GAP = r"[\W_]{0,3}"
_SPACED_VERDICT = _GAP.join("verdict")
_MARKUP = re.compile(
    r"<[|/!]?[^\W\d][^<>\n]{0,80}>"  # a tag or a control token: </think>, <|im_end|>, <start_of_turn>
    r"|<\s{0,3}/?\s{0,3}[^\W\d]{2,20}\s{0,3}/?>"  # a tag with blanks in it: < / reference >
    r"|<\|[^\n]{0,80}?\|>|<<[^\n]{0,80}?>>"
    r"|\[/?[a-z_]{2,20}\]"  # [INST], [/THINK]
    r"|\[\s{0,3}(?:mark\b|[0-9a-f]{6,})[^\]\n]{0,60}\]"  # a block's mark with a guessed nonce
    r"|\[[^\[\]\n]{0,40}\bend of [^\]\n]{1,40}\]"
)
_VERDICT = re.compile(
    rf"{_SPACED_VERDICT}[\W_]{{0,4}}(?:is[\W_]{{1,3}})?"
    r"(?:[:=]|(?=(?:in|not[\W_]{0,2})?(?:correct|attempted)|(?:yes|no)\b))"
)
_HARMLESS = str.maketrans({"<": "‹", ">": "›", "[": "(", "]": ")", "|": "¦"})


def neutralise(text: str, limit: int) -> str:
    """`text` with invisible characters removed, at most `limit` characters, its markup and verdict strings defused.

    Markup keeps its words and gets other brackets; a verdict string becomes "(the word verdict)". A longer text loses
    its middle, and a note says how much. What holds neither is returned as it was.
    """
    text = shorten(_invisible().sub("", text), limit)
    for pattern, replace in ((_MARKUP, _other_brackets), (_VERDICT, _name_it)):
        text = _replace_folded(text, pattern, replace)
    return text


def shorten(text: str, limit: int) -> str:
    """The beginning and the end of a text longer than `limit` characters, with a note between them."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]} (... {len(text) - limit} characters left out ...) {text[len(text) - tail :]}"


@cache
def _invisible() -> re.Pattern[str]:
    """Format characters (zero-width, direction marks, tags), controls, lone surrogates and private use."""
    found = (c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Cf", "Cc", "Cs"))
    singles = "".join(re.escape(c) for c in found if c not in "\n\t")
    return re.compile(f"[{singles}\ue000-\uf8ff\U000f0000-\U0010ffff]")


def _other_brackets(found: str) -> str:
    # A look-alike bracket found by its shadow is not in the table; the plain frame around it breaks the pattern anyway.
    return "‹" + found[1:-1].translate(_HARMLESS) + "›"


def _name_it(found: str) -> str:
    return "(the word verdict) "


@cache
def _folded(c: str) -> str:
    """The character(s) that `c` may be read as, in lower case; "" for an accent."""
    parts = unicodedata.normalize("NFKD", _FOLD.get(c, c))
    lower = ((part, part.lower()) for part in parts if unicodedata.category(part) not in ("Mn", "Me"))
    return "".join(_FOLD.get(part, _FOLD.get(small, small))[:1] for part, small in lower)


def _replace_folded(text: str, pattern: re.Pattern[str], replace: Callable[[str], str]) -> str:
    shadow = [(c, i) for i, original in enumerate(text) for c in _folded(original)]
    out, done = [], 0
    for match in pattern.finditer("".join(c for c, _ in shadow)):
        start, end = shadow[match.start()][1], shadow[match.end() - 1][1] + 1
        if start < done:  # two matches inside one compatibility character
            continue
        out += [text[done:start], replace(text[start:end])]
        done = end
    return "".join(out) + text[done:]
