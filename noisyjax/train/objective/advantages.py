"""From rewards to advantages, within the group of samples that answer one prompt. Host side, float64 inside.

A reward that is undefined (nan: the judge gave no verdict, the reward function failed) leaves its group's statistics
and its sample gets advantage 0. Groups are named by ids, never by position, and a figure does not depend on the order
of the samples, to the last bit.

Legend: N samples of the global batch, C reward components, G groups, K defined samples of one group.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from noisyjax.errors import UsageError
from noisyjax.train.objective.config import AdvantageConfig
from noisyjax.train.objective.metrics import Mean, Metrics

SAME = 1e-8
"""Rewards that lie no further apart are the same reward."""


GroupState = Literal["informative", "constant", "single", "undefined"]
"""informative: at least one advantage is not 0. constant: two or more defined rewards without any. single: one defined
reward, which has nothing to be compared with. undefined: none."""


@dataclass(frozen=True)
class Advantages:
    """What the loss needs of the rewards, and the states behind it."""

    advantage_n: np.ndarray
    """float32 [N]; 0 where undefined."""
    defined_n: np.ndarray
    """bool [N]; whether the sample has a reward."""
    left_out_n: np.ndarray
    """bool [N]; samples that leave the loss and its denominators, by `flat_groups` and `undefined`."""
    group_g: np.ndarray
    """The distinct group ids, sorted."""
    state_g: tuple[GroupState, ...]

    def metrics(self) -> Metrics:
        """Shares of flat groups (by group, never by batch), of undefined samples, and the mean |advantage|."""
        state_g = np.array(self.state_g, dtype=object)
        comparable_g = (state_g == "informative") | (state_g == "constant")
        return {
            "group/zero_std": Mean.of(state_g == "constant", comparable_g),
            "group/single": Mean.of(state_g == "single"),
            "group/undefined": Mean.of(state_g == "undefined"),
            "sample/undefined": Mean.of(~self.defined_n),
            "sample/left_out": Mean.of(self.left_out_n),
            "advantage/abs": Mean.of(np.abs(self.advantage_n), self.defined_n),
        }


def advantages(
    reward_nc: np.ndarray,
    group_n: Sequence[int] | Sequence[str] | np.ndarray,
    cfg: AdvantageConfig,
    *,
    weight_c: Sequence[float] | np.ndarray | None = None,
    applies_nc: np.ndarray | None = None,
) -> Advantages:
    """Advantages of N samples with C reward components.

    `reward_nc` float [N, C] or [N]; nan or infinite means undefined. `group_n` names the prompt of each sample.
    `weight_c` weighs the components (1 each by default). `applies_nc` bool [N, C] is False where a component does not
    exist, such as the reference reward of a record without a gold reference: it then adds nothing, which is not the
    same as being undefined. It must agree within a group, or it would act as a baseline; ValueError otherwise.
    """
    reward_nc = np.asarray(reward_nc, np.float64)
    reward_nc = reward_nc[:, None] if reward_nc.ndim == 1 else reward_nc
    applies_nc = np.ones(reward_nc.shape, bool) if applies_nc is None else np.asarray(applies_nc, bool)
    weight = np.ones(reward_nc.shape[1]) if weight_c is None else np.asarray(weight_c, np.float64)
    defined_n = applies_nc.any(1) & (np.isfinite(reward_nc) | ~applies_nc).all(1)
    reward_nc = np.where(applies_nc & defined_n[:, None], reward_nc, 0.0)
    if not cfg.per_component:
        reward_nc, weight = (reward_nc * weight).sum(1, keepdims=True), np.ones(1)

    group_g, index_n = np.unique(np.asarray(group_n), return_inverse=True)
    advantage_n, left_out_n = np.zeros(len(defined_n)), np.zeros(len(defined_n), bool)
    state_g: list[GroupState] = []
    for g in range(len(group_g)):
        members = np.flatnonzero(index_n == g)
        if (applies_nc[members] != applies_nc[members[0]]).any():
            raise ValueError(f"group {group_g[g].item()!r}: a reward component applies to some of its samples only")
        scored = members[defined_n[members]]
        advantage_n[scored], state = _group(reward_nc[scored], weight, cfg)
        state_g.append(state)
        if state != "informative":
            left_out_n[members] = cfg.flat_groups == "drop"
        elif cfg.undefined == "drop":
            left_out_n[members] = ~defined_n[members]
    if cfg.per_component:
        comparable_n = np.isin(np.array(state_g, dtype=object)[index_n], ("informative", "constant"))
        advantage_n = _over_batch(advantage_n, comparable_n & defined_n & ~left_out_n, cfg)
    return Advantages(advantage_n.astype(np.float32), defined_n, left_out_n, group_g, tuple(state_g))


def _group(reward_kc: np.ndarray, weight_c: np.ndarray, cfg: AdvantageConfig) -> tuple[np.ndarray, GroupState]:
    """Advantages [K] of the defined samples of one group, and the state of the group."""
    k = len(reward_kc)
    if k < 2:
        return np.zeros(k), "single" if k else "undefined"
    advantage_k = np.zeros(k)
    for column, weight in zip(reward_kc.T, weight_c, strict=True):
        advantage_k += weight * _normalised(column, cfg)
    if np.abs(advantage_k).max() <= SAME:
        return np.zeros(k), "constant"
    return advantage_k, "informative"


def _normalised(reward_k: np.ndarray, cfg: AdvantageConfig) -> np.ndarray:
    """Rewards minus their mean, over their standard deviation if asked for; zeros where they are all the same."""
    if np.ptp(reward_k) <= SAME:
        return np.zeros(len(reward_k))
    # fsum is exact, so the order of the samples cannot show.
    centred_k = reward_k - math.fsum(reward_k) / len(reward_k)
    return centred_k / (_deviation(centred_k, cfg) + cfg.eps) if cfg.scale == "std" else centred_k


def _deviation(centred_k: np.ndarray, cfg: AdvantageConfig) -> float:
    return math.sqrt(math.fsum(centred_k**2) / (len(centred_k) - cfg.ddof))


def _over_batch(advantage_n: np.ndarray, counts_n: np.ndarray, cfg: AdvantageConfig) -> np.ndarray:
    """GDPO's second step. The mean is not subtracted: it is 0, as it is in every group."""
    if counts_n.sum() < 2:
        return advantage_n
    return advantage_n / (_deviation(advantage_n[counts_n], cfg) + cfg.eps)


def informative(result: Advantages) -> dict[int | str, bool]:
    """Per group id, whether it has anything to teach: the test of dynamic sampling (DAPO).

    The answer for a group depends on that group alone, so it may be asked of a part of the batch.
    """
    return {g: state == "informative" for g, state in zip(result.group_g.tolist(), result.state_g, strict=True)}


def overlong_penalty(length_n: Sequence[int] | np.ndarray, limit: int, buffer: int) -> np.ndarray:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), float32 [N] in [-1, 0]; lengths in tokens.

    0 up to `limit - buffer` tokens, then falling in a straight line to -1 at `limit`. UsageError unless
    0 < buffer <= limit.

    >>> overlong_penalty([80, 90, 100, 120], limit=100, buffer=20).tolist()
    [0.0, -0.5, -1.0, -1.0]
    """
    if not 0 < buffer <= limit:
        raise UsageError(f"overlong_buffer {buffer}: expected 1 to {limit}, the response limit in tokens")
    left_n = limit - buffer - np.asarray(length_n, np.float64)
    return np.clip(left_n / buffer, -1.0, 0.0).astype(np.float32)
