"""How much noise fits: whole distractor units are dropped, never a part of one and never anything else.

All lengths are in tokens. `fixed` is what may not be dropped (template, system, question, evidence, hint); `limit` is
the longest prompt allowed (the window less the room for new tokens).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Assignment = Literal["shared_block", "per_question"]


@dataclass(frozen=True)
class Fit:
    """kept, dropped: indices of units in their order; total: tokens of the prompt with the kept units.

    over_length: the fixed part alone exceeds the limit; no unit is kept and nothing may be generated.
    """

    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    total: int
    over_length: bool = False


@dataclass(frozen=True)
class MixtureFit:
    """One `Fit` per kind of noise (its `total` counts that kind's units alone) and the prompt's total."""

    by_kind: Mapping[str, Fit]
    total: int
    over_length: bool = False


def fit(
    unit_tokens: Sequence[int],
    fixed_tokens: int,
    limit: int | None,
    assignment: Assignment = "shared_block",
    *,
    max_units: int | None = None,
    max_noise: int | None = None,
) -> Fit:
    """Choose the units that fit beside the fixed part.

    shared_block: the longest run of units from the front, so that what is kept is a prefix of the block whatever the
    question's length, and prompts keep their common prefix. per_question: units are tried in the order drawn and one
    that is too long does not keep later ones out. `max_units` and `max_noise` (tokens of noise) cap further; None is
    no cap. Raises ValueError for negative numbers.
    """
    if min([*unit_tokens, fixed_tokens, limit or 0, max_units or 0, max_noise or 0]) < 0:
        raise ValueError("token counts and limits cannot be negative")
    everything = tuple(range(len(unit_tokens)))
    if limit is not None and fixed_tokens > limit:
        return Fit((), everything, fixed_tokens, over_length=True)
    room = min(
        float("inf") if limit is None else limit - fixed_tokens, float("inf") if max_noise is None else max_noise
    )
    kept: list[int] = []
    used = 0
    for i, tokens in enumerate(unit_tokens):
        if max_units is not None and len(kept) == max_units:
            break
        if used + tokens <= room:
            kept.append(i)
            used += tokens
        elif assignment == "shared_block":
            break
    return Fit(tuple(kept), tuple(i for i in everything if i not in set(kept)), fixed_tokens + used)


def shares(total: int, kinds: Sequence[str], weights: Mapping[str, float] | None = None) -> dict[str, int]:
    """`total` tokens divided among kinds by weight (equal by default); the shares add up to `total` exactly.

    What rounding leaves over goes one token each to the kinds named first. Raises ValueError for weights that are
    negative, all zero or missing.
    """
    if not kinds:
        return {}
    weight = [1.0 if weights is None else float(weights.get(k, -1)) for k in kinds]
    if min(weight) < 0 or sum(weight) == 0:
        raise ValueError(
            f"every kind needs a weight of at least zero, and one above it: {dict(zip(kinds, weight, strict=True))}"
        )
    parts = [int(total * w / sum(weight)) for w in weight]
    for i in range(total - sum(parts)):
        parts[i % len(parts)] += 1
    return dict(zip(kinds, parts, strict=True))


def fit_mixture(
    unit_tokens: Mapping[str, Sequence[int]],
    fixed_tokens: int,
    limit: int | None,
    noise_tokens: int | None,
    assignment: Assignment = "shared_block",
    *,
    weights: Mapping[str, float] | None = None,
    max_units: int | None = None,
) -> MixtureFit:
    """A mixture (`RD+RC`) at a constant total length: the kinds divide `noise_tokens` instead of adding to it.

    A kind that cannot fill its share leaves it empty, so that the proportions are those asked for. `max_units` is the
    cap of all kinds together, divided alike. `noise_tokens` None means all the room that the limit leaves; one of the
    two must be given.
    """
    if limit is None and noise_tokens is None:
        raise ValueError("a mixture needs a limit or a number of noise tokens to divide")
    kinds = tuple(unit_tokens)
    if limit is not None and fixed_tokens > limit:
        nothing = {k: Fit((), tuple(range(len(unit_tokens[k]))), 0) for k in kinds}
        return MixtureFit(nothing, fixed_tokens, over_length=True)
    caps = [n for n in (noise_tokens, None if limit is None else limit - fixed_tokens) if n is not None]
    budget = shares(min(caps), kinds, weights)
    units = {} if max_units is None else shares(max_units, kinds, weights)
    by_kind = {k: fit(unit_tokens[k], 0, budget[k], assignment, max_units=units.get(k)) for k in kinds}
    return MixtureFit(by_kind, fixed_tokens + sum(f.total for f in by_kind.values()))
