"""What the tests of totals share: completions of every form, and short ways to combine."""

import numpy as np

from noisyjax.train.rewards.config import RewardConfig
from noisyjax.train.rewards.total import combine

NAN = float("nan")
COMBINATIONS = ("outcome", "additive", "weighted", "gated", "gated_soft", "rationale_only")
R, E = "<reference>", "</reference>"
FORMS = {
    "good": f"<think>{R}b{E}</think>4",
    "no reference": "<think>a</think>4",
    "no answer": f"<think>{R}b{E}</think>",
    "no close": f"{R}b{E} 4",
    "leak": f"<think>{R}b{E}</think>4{R}",
    "empty": "",
}


def config_of(combination: str, **more) -> RewardConfig:
    weights = {"outcome_weight": 2.0, "rationale_weight": 0.5} if combination == "weighted" else {}
    return RewardConfig(combination=combination, **weights, **more)


def totals(samples, outcome, rationale, config, penalties=None) -> list[float]:
    return combine(samples, np.array(outcome), np.array(rationale), config, penalties).total_n.tolist()


def same(left, right) -> bool:
    return np.array_equal(np.asarray(left, float), np.asarray(right, float), equal_nan=True)
