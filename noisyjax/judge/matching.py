"""Rules that hold an answer against accepted answers, and a reference against a gold reference. Pure text functions.

A reference is a set of facts: neither order nor repetition counts. A fact is compared whole, so that a value given to
the wrong thing is wrong: where the question asks for two codes, masking its names inside the facts would leave bare
numbers, and swapping them would pass. What the question holds already is masked fact by fact instead: a fact of which
every word stands in the question says nothing new and counts on neither side. Without that, copying the question
would earn a share of every gold reference that repeats it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from noisyjax.scoring.normalise import answer_tokens, contains_run, em_or_contains

Fact = tuple[str, ...]
"""The words and numbers of a fact, in order."""

_MINUS = re.compile(r"(?:(?<![\w)])|(?<=\d[eE]))[-−](?=[$£€¥]?\.?\d)")
_POINT = re.compile(r"(?<![\w.])\.(?=\d)")


def _spelled(text: str) -> str:
    """`text` with the marks spelled out that `answer_tokens` drops though they change a number: -5, .5, 1e-5."""
    return _POINT.sub("0.", _MINUS.sub(" minus ", text))


def tokens(text: str) -> list[str]:
    """`answer_tokens` with signs: no case, accents, articles, punctuation; 7,874 as 7874; -5 as minus, 5."""
    return answer_tokens(_spelled(text))


# -- answers -----------------------------------------------------------------------------------------------------


def equals(candidate: str, gold: str) -> bool:
    """Whether two answers are the same after normalisation; texts without words or numbers are compared as written."""
    mine, theirs = tokens(candidate), tokens(gold)
    return mine == theirs if mine or theirs else candidate.split() == gold.split()


def states(candidate: str, gold: str) -> bool:
    """Whether a short candidate states `gold` (`em_or_contains`), its numbers with their own signs and not negated."""
    if not em_or_contains(_spelled(candidate), _spelled(gold)):
        return False
    mine, theirs = tokens(candidate), tokens(gold)
    wanted, found = _signed(theirs), _signed(mine)
    sizes = {number for _, number in wanted}
    return not wanted or (contains_run(mine, theirs) and {x for x in found if x[1] in sizes} == wanted)


def _signed(words: Sequence[str]) -> set[tuple[bool, str]]:
    """(negative, number) of every number."""
    before = ("", *words)
    return {(previous == "minus", word) for previous, word in zip(before, words, strict=False) if word[0].isdecimal()}


# -- references --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """How many pieces (facts, or tokens) gold and candidate have, and how many of them they share."""

    shared: int
    gold: int
    candidate: int

    @property
    def f1(self) -> float:
        return 2 * self.shared / (self.gold + self.candidate) if self.shared else 0.0

    @property
    def recall(self) -> float:
        return self.shared / self.gold if self.shared else 0.0


def facts(text: str, ends: Sequence[str]) -> frozenset[Fact]:
    """The facts of a text, each of which ends at one of `ends` or with the text; pieces without a word are none.

    An end without a trailing blank needs one after it: " ." does not cut ` .5`.
    """
    cuts = "|".join(re.escape(end) + ("" if end[-1].isspace() else r"(?=\s|\Z)") for end in ends)
    return frozenset(fact for piece in re.split(cuts, text) if (fact := tuple(tokens(piece))))


def match_facts(question: str, gold: str, candidate: str, ends: Sequence[str], mask: bool = True) -> Match:
    """Facts that gold and candidate share. `mask` leaves out, on both sides, those that the question holds.

    A gold reference that would lose all of its facts is compared unmasked: the question offers the words there (such
    as the options of a choice), but does not say which of them hold.
    """
    wanted, found = facts(gold, ends), facts(candidate, ends)
    known = frozenset(tokens(question)) if mask else frozenset()
    if not all(known.issuperset(fact) for fact in wanted):
        wanted, found = (frozenset(f for f in side if not known.issuperset(f)) for side in (wanted, found))
    return Match(len(wanted & found), len(wanted), len(found))


def match_tokens(question: str, gold: str, candidate: str, mask: bool = True) -> Match:
    """Words and numbers that gold and candidate share, each as often as both hold it; those of the question masked.

    Like SQuAD's F1 it sees neither order nor which word belongs to which.
    """
    wanted, found = Counter(tokens(gold)), Counter(tokens(candidate))
    known = frozenset(tokens(question)) if mask else frozenset()
    if not known.issuperset(wanted):
        wanted, found = (Counter({t: n for t, n in side.items() if t not in known}) for side in (wanted, found))
    return Match((wanted & found).total(), wanted.total(), found.total())
