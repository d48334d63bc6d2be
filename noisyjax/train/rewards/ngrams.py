"""Runs of words, in which copying is measured: they survive another case, another line break, another tokenizer."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

Gram = tuple[str, ...]

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # written without blanks: every character is a word
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")


def words(text: str) -> list[str]:
    """Letters and digits in runs, folded; punctuation is nothing.

    >>> words("Éva's  Nº 5, 東京")
    ['éva', 's', 'no', '5', '東', '京']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def grams(text: str, n: int) -> list[Gram]:
    """All runs of `n` words in order, repeated ones too; none where the text is shorter."""
    found = words(text)
    return [tuple(found[i : i + n]) for i in range(len(found) - n + 1)]


def gram_set(texts: Iterable[str], n: int) -> frozenset[Gram]:
    """The runs of all texts; none crosses from one text to the next."""
    return frozenset(gram for text in texts for gram in grams(text, n))


def share_within(found: Sequence[Gram], known: frozenset[Gram], but_not: frozenset[Gram] = frozenset()) -> float:
    """The share of `found` (not empty) that is in `known` and not in `but_not`."""
    return sum(gram in known and gram not in but_not for gram in found) / len(found)
