"""How much noise fits: whole distractor units are dropped, never a part of one and never anything else.

All lengths are in tokens. `fixed` is what may not be dropped (template, system, question, evidence, hint); `limit` is
the longest prompt allowed (the window less the room for new tokens).
"""

from collections.abc import Sequence
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
