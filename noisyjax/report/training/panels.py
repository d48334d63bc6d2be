"""Which figures of a training run are shown, in which order, under which titles: the same in every form of the report.

Whatever else a run logged is in its metrics.jsonl and in `--json`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from noisyjax.report.training.run import TrainingRun

SHARE = "%"


@dataclass(frozen=True)
class Panel:
    """One figure. `unit` "%": a share in [0, 1], shown in percent."""

    metric: str
    title: str
    unit: str = ""

    @property
    def scale(self) -> float:
        return 100.0 if self.unit == SHARE else 1.0


@dataclass(frozen=True)
class Group:
    title: str
    panels: tuple[Panel, ...]


GROUPS = (
    Group(
        "Rewards",
        (
            Panel("reward/total", "Reward"),
            Panel("reward/outcome", "Outcome: the answer is right"),
            Panel("reward/rationale", "Rationale: the gold reference is met"),
        ),
    ),
    Group(
        "Reasoning",
        (
            Panel("reference/exact", "References that are exact", SHARE),
            Panel("reference/present", "Completions with a reference", SHARE),
            Panel("distraction/lexical", "Distracted thoughts (lexical)", SHARE),
            Panel("distraction/judged", "Distracted thoughts (judged)", SHARE),
            Panel("format/ok", "Completions in due form", SHARE),
        ),
    ),
    Group(
        "Groups and lengths",
        (
            Panel("group/zero_std", "Groups without variance", SHARE),
            Panel("sample/truncated", "Completions cut short", SHARE),
            Panel("length/mean", "Length", "tokens"),
        ),
    ),
    Group(
        "Policy",
        (
            Panel("loss", "Loss"),
            Panel("entropy", "Entropy", "nats"),
            Panel("kl", "KL to the reference model", "nats"),
            Panel("update/grad_norm", "Gradient norm"),
            Panel("clip/low", "Clipped from below", SHARE),
            Panel("clip/high", "Clipped from above", SHARE),
            Panel("mismatch/abs/mean", "Mean |log ratio| to the sampler", "nats"),
            Panel("mismatch/abs/max", "Max |log ratio| to the sampler", "nats"),
        ),
    ),
    Group(
        "Speed",
        (
            Panel("speed/rollout", "Rollout", "tokens/s"),
            Panel("speed/judge", "Judge", "verdicts/s"),
            Panel("speed/update", "Update", "tokens/s"),
            Panel("seconds", "A step", "s"),
        ),
    ),
)

LEFT_OUT = (
    Panel("skipped", "steps skipped", SHARE),
    Panel("group/undefined", "groups without a defined reward", SHARE),
    Panel("group/single", "groups of one", SHARE),
    Panel("sample/undefined", "samples without a defined reward", SHARE),
    Panel("sample/truncated", "samples cut short", SHARE),
    Panel("sample/void", "samples void (over length or empty)", SHARE),
    Panel("sample/masked", "samples masked by their reward", SHARE),
    Panel("sample/left_out", "samples without a part in the loss", SHARE),
    Panel("judge/outcome_unscored", "outcomes unscored, of those asked", SHARE),
    Panel("judge/rationale_unscored", "rationales unscored, of those asked", SHARE),
    Panel("reference/no_gold", "samples without a gold reference", SHARE),
    Panel("distraction/lexical_undefined", "thoughts under noise that cannot be compared", SHARE),
)
"""What is absent, cut or not counted: shares, averaged over the steps that have them."""

_KNOWN = {panel.metric for group in GROUPS for panel in group.panels}


def groups_of(runs: Sequence[TrainingRun]) -> list[Group]:
    """The groups with what at least one run has; terms of a reward that only some configs have join the rewards."""
    named = dict.fromkeys(name for run in runs for name in run.values if name.startswith("reward/"))
    others = tuple(Panel(name, f"Reward: {name.removeprefix('reward/')}") for name in named if name not in _KNOWN)
    rewards, *rest = GROUPS
    found = [Group(g.title, _of(g.panels, runs)) for g in (Group(rewards.title, rewards.panels + others), *rest)]
    return [group for group in found if group.panels]


def left_out_of(runs: Sequence[TrainingRun]) -> tuple[Panel, ...]:
    return _of(LEFT_OUT, runs)


def _of(panels: Iterable[Panel], runs: Sequence[TrainingRun]) -> tuple[Panel, ...]:
    return tuple(panel for panel in panels if any(run.has(panel.metric) for run in runs))


@dataclass(frozen=True)
class Ends:
    """A figure at the beginning and at the end: means over the first and the last tenth of the steps, as far as they
    have it; nan where none does. `undefined` of `n` steps have no value."""

    first: float
    last: float
    mean: float
    undefined: int
    n: int


def ends(values_k: np.ndarray) -> Ends:
    """values_k: float64 [K], nan is a gap."""
    tenth = math.ceil(len(values_k) / 10)
    undefined = int(np.isnan(values_k).sum())
    first, last = values_k[:tenth], values_k[len(values_k) - tenth :]
    return Ends(_mean(first), _mean(last), _mean(values_k), undefined, len(values_k))


def _mean(values_k: np.ndarray) -> float:
    known = values_k[~np.isnan(values_k)]
    return float(known.mean()) if len(known) else math.nan
