"""Which noise a question gets: a function of seeds and ids, never of order.

shared_block: the first `count` groups of the pool, alike for every question. per_question: the pool in an order drawn
by (seed, question id). Hard negatives are always the question's own, in such an order. A larger count only appends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from noisyjax.bench.noise.contamination import Checker
from noisyjax.bench.schema import BenchConfig, PoolConfig
from noisyjax.bench.seeds import seeded_order
from noisyjax.bench.sources import Group, Pool
from noisyjax.records import Document, Question, Unit


@dataclass(frozen=True)
class Assigned:
    """The noise of one kind for one question.

    `contaminated` names units that hold the answer, with the answer found; they are in `units` (drop_question), or
    were taken out (swap_unit, then `swapped` counts them). `short` is how many groups were wanted and not to be had.
    """

    units: tuple[Unit, ...]
    contaminated: tuple[tuple[str, str], ...] = ()
    swapped: int = 0
    short: int = 0


def assign_pool(
    pool: Pool, config: PoolConfig, question: Question, seed: int, checker: Checker, swap: bool
) -> Assigned:
    """Random documents or chats of `question`. The reserve of a swap is the rest of the pool, then of its file."""
    proper, rest = pool.groups[: pool.size], pool.groups[pool.size :]
    if config.assignment == "per_question":
        proper = tuple(seeded_order(proper, lambda group: group[0].id, seed, pool.kind, question.id))
    count = pool.size if config.count is None else config.count
    return _choose((*proper, *rest), count, question, checker, swap)


def assign_negatives(
    documents: Sequence[Document], question: Question, config: BenchConfig, checker: Checker
) -> Assigned:
    """Hard negatives of `question` out of all that its source has for it."""
    ordered = seeded_order(documents, lambda document: document.id, config.seed, "HN", question.id)
    groups = [(negative_unit(document),) for document in ordered]
    return _choose(groups, config.hn.count, question, checker, config.contamination == "swap_unit")


def negative_unit(document: Document) -> Unit:
    """A hard negative in the form of every document: title, line break, text."""
    text = f"{document.title}\n{document.text}" if document.title else document.text
    return Unit(id=document.id, kind="HN", text=text)


def _choose(groups: Sequence[Group], count: int, question: Question, checker: Checker, swap: bool) -> Assigned:
    chosen, reserve = list(groups[:count]), list(groups[count:])
    terms = checker.terms(question)
    contaminated: list[tuple[str, str]] = []
    swapped = 0
    if terms:
        for place, group in enumerate(chosen):
            held = _held(group, terms, checker)
            if held and swap:
                clean = next((i for i, other in enumerate(reserve) if not _held(other, terms, checker)), None)
                if clean is not None:
                    chosen[place], held = reserve.pop(clean), []
                    swapped += 1
            contaminated += held
    units = tuple(unit for group in chosen for unit in group)
    return Assigned(units, tuple(contaminated), swapped, max(count - len(chosen), 0))


def _held(group: Group, terms: Sequence[str], checker: Checker) -> list[tuple[str, str]]:
    return [(unit.id, term) for unit in group if (term := checker.found(terms, unit)) is not None]
