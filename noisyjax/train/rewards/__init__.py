"""Rewards: completions read, verdicts combined, copying and distraction measured."""

from noisyjax.train.rewards.config import DistractionConfig, GuardsConfig, RewardConfig
from noisyjax.train.rewards.custom import Custom, call_reward_fn, load_reward_fn
from noisyjax.train.rewards.distraction import (
    DISTRACTION,
    Distraction,
    DistractionItem,
    judged_distraction,
    lexical_distraction,
)
from noisyjax.train.rewards.guards import Guards, measure_guards
from noisyjax.train.rewards.samples import Case, Fault, Sample, read_sample
from noisyjax.train.rewards.total import (
    Rewards,
    combine,
    reward_metrics,
    verdict_values,
    wants_outcome,
    wants_rationale,
)

__all__ = [
    "DISTRACTION",
    "Case",
    "Custom",
    "Distraction",
    "DistractionConfig",
    "DistractionItem",
    "Fault",
    "Guards",
    "GuardsConfig",
    "RewardConfig",
    "Rewards",
    "Sample",
    "call_reward_fn",
    "combine",
    "judged_distraction",
    "lexical_distraction",
    "load_reward_fn",
    "measure_guards",
    "read_sample",
    "reward_metrics",
    "verdict_values",
    "wants_outcome",
    "wants_rationale",
]
