"""Ways to train in the tiny world that are compared with each other."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """A way to reward: its folder, how reports call it, and its words for `train/world_grpo`."""

    folder: str
    name: str
    words: tuple[str, ...]


def _rare(folder: str, name: str, combination: str, rationale: str) -> Arm:
    return Arm(folder, name, (f"reward.combination={combination}", f"reward.rationale={rationale}"))


OR = Arm("or", "OR", ("reward.combination=outcome",))
BINARY = _rare("or_rare", "OR+RARE", "additive", "binary")
GRADED = _rare("or_rare_graded", "OR+RARE graded", "additive", "graded")
GATED = _rare("gated", "OR×RARE gated", "gated", "graded")
RATIONALE = _rare("rationale", "RARE alone", "rationale_only", "graded")

QUICKSTART = (OR, BINARY, GRADED)
ALL = (OR, BINARY, GRADED, GATED, RATIONALE)
