"""From verdicts to rewards.

With O the outcome, R the rationale reward, a and b their weights:

| combination    | total         | without a gold reference | decided already by      |
|----------------|---------------|--------------------------|-------------------------|
| outcome        | O             | O                        |                         |
| additive       | O + R         | O                        |                         |
| weighted       | aO + bR       | aO                       |                         |
| gated          | O·R           | O                        | O = 0 or R = 0          |
| gated_soft     | O·(1 + R) / 2 | O                        | O = 0                   |
| rationale_only | R             | none                     |                         |

plus the added format term and what penalties were handed in. What decides these without a judge:
the format gate and a missing answer make O = 0; a missing reference makes R = 0; a truncated completion earns nothing
(`truncated: zero`) or has no reward (`mask`). A verdict that is undefined where it matters leaves the total undefined.
A gold reference is a matter of the record, so the rationale term is absent for a whole group or for none of it.

Legend: N samples of the batch, C terms that are added up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from noisyjax.records import Verdict
from noisyjax.train.objective.metrics import Mean, Metrics
from noisyjax.train.rewards.config import RewardConfig
from noisyjax.train.rewards.samples import Fault, Sample


@dataclass(frozen=True)
class Rewards:
    """The terms of the reward as `train.advantages` takes them, and the components behind them.

    A product of components is one term: normalising its factors apart would change what it says.
    """

    names: tuple[str, ...]
    """Of the C terms."""
    reward_nc: np.ndarray
    """float64 [N, C]; nan where undefined, and where it does not apply."""
    applies_nc: np.ndarray
    """bool [N, C]; False where a term is absent, which is the same for all samples of a group."""
    weight_c: np.ndarray
    """float64 [C]"""
    masked_n: np.ndarray
    """bool [N]; samples that leave the loss."""
    outcome_n: np.ndarray
    """float64 [N]; O after format gate and truncation; nan where undefined or not asked for."""
    rationale_n: np.ndarray
    """float64 [N]; R likewise, nan also where there is no gold reference."""

    @property
    def total_n(self) -> np.ndarray:
        """float64 [N]; the weighted sum of the terms that apply, nan where one of them is undefined or none applies."""
        terms_nc = np.where(self.applies_nc, self.reward_nc * self.weight_c, 0.0)
        return np.where(self.applies_nc.any(1), terms_nc.sum(1), np.nan)


def wants_outcome(sample: Sample, config: RewardConfig) -> bool:
    """Whether the outcome of this sample must be asked for: nothing else decides it, and something depends on it."""
    if not config.asks_outcome or not _counts(sample, config):
        return False
    return not _outcome_is_zero(sample, config)


def wants_rationale(sample: Sample, config: RewardConfig) -> bool:
    """Whether its reference must be judged. The same for all samples of a group but for what they wrote."""
    if not config.asks_rationale or not _counts(sample, config):
        return False
    return sample.case.gold is not None and sample.reference is not None


def verdict_values(verdicts: Sequence[Verdict | None], graded: bool = False) -> np.ndarray:
    """Verdicts as float64 [N]: yes 1, no 0, or the score where `graded`; nan for none, unscored, or no score."""
    return np.array([_value(v, graded) for v in verdicts], np.float64)


def _value(verdict: Verdict | None, graded: bool) -> float:
    found = None if verdict is None else verdict.score if graded else verdict.value
    return np.nan if found is None else float(found)


def combine(
    samples: Sequence[Sample],
    outcome_n: np.ndarray,
    rationale_n: np.ndarray,
    config: RewardConfig,
    penalties: Mapping[str, np.ndarray] | None = None,
) -> Rewards:
    """The rewards of a batch.

    `outcome_n` and `rationale_n` float [N] are the judges' values in [0, 1] (an outcome from `reward_fn` may be any
    number), nan where undefined or not asked for; what `wants_outcome` and `wants_rationale` call needless is not
    looked at. `penalties` float [N] each are added as they are. ValueError on a value out of range.
    """
    outcome_n = _checked("outcome", outcome_n, samples, unit=config.reward_fn is None)
    rationale_n = _checked("rationale", rationale_n, samples, unit=True)
    gold_n = np.array([s.case.gold is not None for s in samples], bool)
    void_n = np.array([s.void for s in samples], bool)
    cut_n = np.array([s.cut for s in samples], bool)
    masked_n = cut_n & (config.truncated == "mask")
    nothing_n = cut_n & (config.truncated == "zero")

    outcome_n[nothing_n | np.array([_outcome_is_zero(s, config) for s in samples], bool)] = 0.0
    rationale_n[nothing_n | np.array([s.reference is None for s in samples], bool)] = 0.0
    format_n = np.array([not s.faults for s in samples], np.float64)
    format_n[nothing_n] = 0.0
    for component_n in (outcome_n, rationale_n, format_n):
        component_n[masked_n | void_n] = np.nan
    rationale_n[~gold_n] = np.nan

    always_n = np.ones(len(samples), bool)
    terms = _judged_terms(outcome_n, rationale_n, gold_n, config)
    if config.format.role == "added":
        terms["format"] = (format_n, always_n, 1.0 if config.format.weight is None else config.format.weight)
    for name, penalty_n in (penalties or {}).items():
        penalty_n = np.where(masked_n | void_n, np.nan, _checked(name, penalty_n, samples, unit=False))
        terms[name] = (penalty_n, always_n, 1.0)
    values, applies, weights = zip(*terms.values(), strict=True)
    return Rewards(
        tuple(terms),
        np.stack(values, 1),
        np.stack(applies, 1),
        np.array(weights, np.float64),
        masked_n,
        outcome_n if config.asks_outcome else np.full(len(samples), np.nan),
        rationale_n if config.asks_rationale else np.full(len(samples), np.nan),
    )


Term = tuple[np.ndarray, np.ndarray, float]
"""(value_n, applies_n, weight)"""


def _judged_terms(
    outcome_n: np.ndarray, rationale_n: np.ndarray, gold_n: np.ndarray, config: RewardConfig
) -> dict[str, Term]:
    """The terms made of O and R, by the table above."""
    everyone_n = np.ones(len(gold_n), bool)
    weight = 1.0 if config.outcome_weight is None else config.outcome_weight
    outcome: dict[str, Term] = {"outcome": (outcome_n, everyone_n, weight)}
    weight = 1.0 if config.rationale_weight is None else config.rationale_weight
    rationale: dict[str, Term] = {"rationale": (rationale_n, gold_n, weight)}
    match config.combination:
        case "outcome":
            return outcome
        case "additive" | "weighted":
            return outcome | rationale
        case "rationale_only":
            return rationale
        case "gated":
            product_n = outcome_n * rationale_n
            product_n[(outcome_n == 0) | (rationale_n == 0)] = 0.0
        case "gated_soft":
            product_n = outcome_n * (1 + rationale_n) / 2
            product_n[outcome_n == 0] = 0.0
    return {config.combination: (np.where(gold_n, product_n, outcome_n), everyone_n, 1.0)}


def _counts(sample: Sample, config: RewardConfig) -> bool:
    """Whether anything a judge says of this sample could count."""
    return not sample.void and not (sample.cut and config.truncated != "score")


def _outcome_is_zero(sample: Sample, config: RewardConfig) -> bool:
    """Whether its form alone decides the outcome. A user's function may see merit in a thought without an answer."""
    if config.format.role == "gate" and sample.faults:
        return True
    return config.reward_fn is None and not sample.answered


def _checked(name: str, value_n: np.ndarray, samples: Sequence[Sample], unit: bool) -> np.ndarray:
    value_n = np.array(value_n, np.float64)
    if value_n.shape != (len(samples),):
        raise ValueError(f"{name}: expected {len(samples)} values; got shape {value_n.shape}")
    if np.isinf(value_n).any() or (unit and ((value_n < 0) | (value_n > 1)).any()):
        worst = value_n[np.isinf(value_n) | (value_n < 0) | (value_n > 1)][0]
        raise ValueError(f"{name}: expected values {'in [0, 1]' if unit else 'that are finite'} or nan; got {worst}")
    return value_n


def reward_metrics(samples: Sequence[Sample], rewards: Rewards, config: RewardConfig) -> Metrics:
    """Means of the defined values, and the shares of what is undefined, cut, malformed or absent."""
    total_n = rewards.total_n
    asked_o = np.array([wants_outcome(s, config) for s in samples], bool)
    asked_r = np.array([wants_rationale(s, config) for s in samples], bool)
    void_n = np.array([s.void for s in samples], bool)
    gold_n = np.array([s.case.gold is not None for s in samples], bool)
    terms = {
        f"reward/{name}": Mean.of(rewards.reward_nc[:, c], ~np.isnan(rewards.reward_nc[:, c]))
        for c, name in enumerate(rewards.names)
        if name not in ("outcome", "rationale")
    }
    faults = {
        f"format/{fault}": Mean.of(np.array([fault in s.faults for s in samples], bool), ~void_n) for fault in Fault
    }
    return {
        "reward/total": Mean.of(total_n, ~np.isnan(total_n)),
        "reward/outcome": Mean.of(rewards.outcome_n, ~np.isnan(rewards.outcome_n)),
        "reward/rationale": Mean.of(rewards.rationale_n, ~np.isnan(rewards.rationale_n)),
        **terms,
        "judge/outcome_unscored": Mean.of(np.isnan(rewards.outcome_n), asked_o),
        "judge/rationale_unscored": Mean.of(np.isnan(rewards.rationale_n), asked_r),
        "reference/no_gold": Mean.of(~gold_n),
        "reference/present": Mean.of(np.array([s.reference is not None for s in samples], bool), ~void_n),
        "reference/clipped": Mean.of(np.array([s.references.truncated for s in samples], bool), ~void_n),
        "format/ok": Mean.of(np.array([not s.faults for s in samples], bool), ~void_n),
        **faults,
        "sample/truncated": Mean.of(np.array([s.cut for s in samples], bool), ~void_n),
        "sample/void": Mean.of(void_n),
        "sample/masked": Mean.of(rewards.masked_n),
    }
