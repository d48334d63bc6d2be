"""Normal forms under which two short answers are compared. Pure text functions; none raises on any string."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def squad_normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, single blanks (SQuAD; MuSiQue's `metrics/answer.py`)."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def squad_em(prediction: str, golds: Iterable[str]) -> float:
    """1.0 when the prediction equals any of `golds` under `squad_normalise`."""
    normal = squad_normalise(prediction)
    return float(any(normal == squad_normalise(gold) for gold in golds))


def squad_f1(prediction: str, golds: Iterable[str]) -> float:
    """The best token F1 over `golds`. A side that is empty after normalisation only matches an empty one."""
    return max((_token_f1(squad_normalise(prediction).split(), squad_normalise(g).split()) for g in golds), default=0.0)


def _token_f1(prediction: Sequence[str], gold: Sequence[str]) -> float:
    if not prediction or not gold:
        return float(prediction == gold)
    shared = (Counter(prediction) & Counter(gold)).total()
    return 2 * shared / (len(prediction) + len(gold))


# ----------------------------------------------------------------------------------------------------------------
# The stricter matching of free-form answers
# ----------------------------------------------------------------------------------------------------------------

CONTAINS_LIMIT = 50
"""Longest prediction, in words, in which a contained gold answer counts: a longer one may name every candidate."""

_NUMBER_WORDS = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "  # noqa: SIM905
        "seventeen eighteen nineteen twenty".split()
    )
}
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_APOSTROPHE = re.compile(r"['’ʼ`]")
_NEGATIONS = frozenset(
    {"not", "never", "nor", "neither", "isnt", "arent", "wasnt", "werent", "dont", "doesnt", "didnt"}
)
_INSUFFICIENT = re.compile(
    r"\b(insufficient (information|info|evidence|context)|not enough (information|info)"
    r"|(information|context)( provided| given)? is (insufficient|not sufficient))\b"
)


def answer_tokens(text: str) -> list[str]:
    """Words and numbers of an answer: no case, accents, articles, markup or thousands commas; 39.50 and 05 as 39.5, 5.

    >>> answer_tokens("The **7,874** seats of Curaçao's stadium")
    ['7874', 'seats', 'of', 'curacaos', 'stadium']
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    plain = _APOSTROPHE.sub("", _THOUSANDS.sub("", plain))
    tokens = [_NUMBER_WORDS.get(token, token) for token in _TOKEN.findall(plain)]
    return [_canonical_number(token) for token in tokens if token not in ("a", "an", "the")]


def _canonical_number(token: str) -> str:
    if not token[0].isdecimal():
        return token
    whole, _, part = token.partition(".")
    part = part.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{part}" if part else "")


def em_or_contains(prediction: str, gold: str) -> bool:
    """Whether a free-form prediction states `gold`: equal, or holds it as a run of words that is not negated.

    Closed classes are stricter, because their words turn up everywhere: Yes/No counts only as the first word, a bare
    number only as the sole number. It is meant to be precise rather than complete: a judge may overturn a "wrong".
    """
    tokens, gold_tokens = answer_tokens(prediction), answer_tokens(gold)
    if not gold_tokens:
        return bool(gold.strip()) and prediction.strip().casefold() == gold.strip().casefold()
    if tokens == gold_tokens:
        return True
    if gold_tokens in (["yes"], ["no"]):
        other = "no" if gold_tokens == ["yes"] else "yes"
        return tokens[:1] == gold_tokens and other not in tokens[:3]
    if len(gold_tokens) == 1 and gold_tokens[0][0].isdecimal():
        numbers = {token for token in tokens if token[0].isdecimal()}
        return len(tokens) <= CONTAINS_LIMIT and numbers == set(gold_tokens)
    if gold_tokens == ["insufficient", "information"]:
        return bool(_INSUFFICIENT.search(" ".join(tokens)))
    return len(tokens) <= CONTAINS_LIMIT and contains_run(tokens, gold_tokens)


def contains_run(tokens: Sequence[str], run: Sequence[str]) -> bool:
    """Whether `run` (not empty) occurs within `tokens` side by side, in order, and not right after a negation."""
    width = len(run)
    for start in range(len(tokens) - width + 1):
        if list(tokens[start : start + width]) == list(run) and (start == 0 or tokens[start - 1] not in _NEGATIONS):
            return True
    return False


def same_text(left: str, right: str) -> bool:
    """Whether two option texts are the same answer: equal tokens, or equal text where there are none (symbols)."""
    tokens = answer_tokens(left)
    if tokens or answer_tokens(right):
        return tokens == answer_tokens(right)
    return left.split() == right.split()
