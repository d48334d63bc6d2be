"""How much of a question's noise is used when `distractor_tokens` caps it.

Whole units are dropped. Only a first unit that exceeds the cap alone is cut, at a sentence end where there is one,
else between words, and its id then ends in `#cut`: a cap of 1,024 tokens must not turn RC into ND because the first
answer of the first chat is long.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from noisyjax.bench.prompts import unit_text
from noisyjax.bench.schema import Assignment
from noisyjax.chat import fit
from noisyjax.records import Unit

CUT = "#cut"
Count = Callable[[str], int]
SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n+")
WORD = re.compile(r"\s+")


@dataclass(frozen=True)
class Spent:
    kept: tuple[Unit, ...]
    dropped: tuple[str, ...]
    tokens: int
    """Tokens of the kept units as `count` sees them."""


def spend(units: Mapping[str, Sequence[Unit]], limit: int, assignment: Mapping[str, Assignment], count: Count) -> Spent:
    """Choose the units of each kind that fit `limit` together.

    Kinds share evenly; what a kind cannot fill goes to the others, so that mixtures have one total length (to within
    a unit). A shared block keeps a run from its front. `count` gives the tokens of a text.
    """
    costs = {kind: [unit_tokens(u, count) for u in group] for kind, group in units.items()}
    kept: dict[str, list[Unit]] = {}
    dropped: list[str] = []
    left = limit
    # The kind that needs least goes first, so that its remainder is known to those that can use it.
    for place, kind in enumerate(sorted(units, key=lambda kind: (sum(costs[kind]), kind))):
        share = left // (len(units) - place)
        kept[kind], gone, used = _spend_one(units[kind], costs[kind], share, assignment[kind], count)
        dropped += gone
        left -= used
    ordered = tuple(unit for kind in units for unit in kept[kind])
    return Spent(ordered, tuple(dropped), limit - left)


def unit_tokens(unit: Unit, count: Count) -> int:
    """Tokens of a unit as it stands in the prompt, without a chat template's own."""
    return sum(count(text) for _, text in unit.turns) if unit.turns else count(unit_text(unit) + "\n\n")


def _spend_one(
    units: Sequence[Unit], costs: Sequence[int], share: int, assignment: Assignment, count: Count
) -> tuple[list[Unit], list[str], int]:
    if units and costs[0] > share:
        first = cut_unit(units[0], share, count)
        if first is not None:
            return [first], [u.id for u in units[1:]], unit_tokens(first, count)
    plan = fit(costs, 0, share, assignment)
    return [units[i] for i in plan.kept], [units[i].id for i in plan.dropped], plan.total


def cut_unit(unit: Unit, limit: int, count: Count) -> Unit | None:
    """`unit` shortened to at most `limit` tokens, None when not even a word fits. An exchange keeps both its sides."""
    if not unit.turns:
        text = _shorten(unit.text, limit, lambda text: unit_tokens(replace(unit, text=text), count))
        return replace(unit, id=unit.id + CUT, text=text) if text else None
    (asker, asked), (answerer, answered) = unit.turns
    asked = asked if count(asked) <= limit // 2 else _shorten(asked, limit // 2, count)
    answered = _shorten(answered, limit - count(asked), count)
    if not asked or not answered:
        return None
    text = f"User: {asked}\nAssistant: {answered}"
    return replace(unit, id=unit.id + CUT, text=text, turns=((asker, asked), (answerer, answered)))


def _shorten(text: str, limit: int, count: Count) -> str:
    """The longest start of `text` within `limit` tokens that ends a sentence, else a word; "" when none does."""
    if count(text) <= limit:
        return text
    for border in (SENTENCE, WORD):
        ends = [match.start() for match in border.finditer(text) if text[: match.start()].strip()]
        low, high = 0, len(ends)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if count(text[: ends[middle]]) <= limit else (low, middle)
        if low:
            return text[: ends[low - 1]].rstrip()
    return ""
