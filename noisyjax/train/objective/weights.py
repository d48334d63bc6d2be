"""The share of the loss that each token carries, computed on the host over the whole batch.

Every way to aggregate token losses is linear in them, so all of them become weights w with loss = Σ w·l. The weights
know the global denominators before the first micro-batch runs; hence a gradient cannot depend on how the batch is cut.

Legend: N sequences of the global batch.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from noisyjax.errors import UsageError, nearest

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
"""How token losses become one number; the names are VeRL's (`agg_loss`).

token-mean: every token of the batch counts alike (DAPO, arXiv 2503.14476). seq-mean-token-mean: the mean over sequences
of their token means (GRPO, arXiv 2402.03300). seq-mean-token-sum: the mean over sequences of their sums.
seq-mean-token-sum-norm: the same divided by the longest response allowed (Dr.GRPO, arXiv 2503.20783).
"""


def token_weights(
    length_n: Sequence[int] | np.ndarray,
    aggregation: Aggregation,
    *,
    left_out_n: Sequence[bool] | np.ndarray | None = None,
    max_length: int | None = None,
) -> np.ndarray:
    """The weight of every single token of sequence i, float32 [N].

    `length_n` counts the target tokens of each sequence of the *global* batch. A sequence that is empty or left out
    (a masked truncated one, a dropped group, filler) weighs 0 and leaves every denominator. If none is left, all
    weights are 0. `max_length` is the response limit in tokens, needed by seq-mean-token-sum-norm only.

    >>> token_weights([3, 1, 0], "seq-mean-token-mean").round(4).tolist()
    [0.16670000553131104, 0.5, 0.0]
    """
    if aggregation not in get_args(Aggregation):
        raise UsageError(f"aggregation {aggregation!r}: {nearest(aggregation, get_args(Aggregation))}")
    length_n = np.asarray(length_n, np.int64)
    counts_n = length_n > 0
    if left_out_n is not None:
        counts_n &= ~np.asarray(left_out_n, bool)
    sequences = int(counts_n.sum())
    if sequences == 0:
        return np.zeros(len(length_n), np.float32)
    denominator_n: np.ndarray | int
    if aggregation == "token-mean":
        denominator_n = int(length_n[counts_n].sum())
    elif aggregation == "seq-mean-token-mean":
        denominator_n = sequences * np.maximum(length_n, 1)
    elif aggregation == "seq-mean-token-sum":
        denominator_n = sequences
    else:
        denominator_n = sequences * _limit(max_length, length_n[counts_n])
    return np.where(counts_n, 1.0 / denominator_n, 0.0).astype(np.float32)


def _limit(max_length: int | None, length_n: np.ndarray) -> int:
    """Dr.GRPO's constant denominator; a shorter one than the longest response would not be its bound."""
    if max_length is None:
        raise UsageError("aggregation seq-mean-token-sum-norm divides by the response limit: give max_length")
    longest = int(length_n.max())
    if max_length < longest:
        raise UsageError(f"max_length {max_length} is below the longest response of the batch ({longest} tokens)")
    return max_length


def high_entropy(
    entropy_nt: Sequence[np.ndarray], share: float, *, left_out_n: Sequence[bool] | np.ndarray | None = None
) -> list[np.ndarray]:
    """For each sequence a float32 [length]: 1 for tokens among the `share` (0, 1] of highest entropy, 0 for the others.

    Multiply the tokens' advantages by it: the policy term then acts on these "forking" tokens alone, while KL, entropy
    bonus and all denominators stay as they were ("Beyond the 80/20 rule", arXiv 2506.01939, without its KL).
    `entropy_nt` are the sampler's entropies of the global batch (nats). The threshold is their quantile, taken once on
    the host, so the mask is the same for every micro-batch split; it is the old policy's entropy, also for a second
    update on the same batch. Ties at the threshold are kept. Left-out sequences do not shape the threshold.
    """
    if not 0 < share <= 1:
        raise UsageError(f"entropy share {share}: expected a number above 0 and up to 1")
    out_n = np.zeros(len(entropy_nt), bool) if left_out_n is None else np.asarray(left_out_n, bool)
    pool = [np.asarray(e, np.float64) for e, out in zip(entropy_nt, out_n, strict=True) if not out and len(e)]
    if not pool or share == 1:
        return [np.ones(len(e), np.float32) for e in entropy_nt]
    everything = np.concatenate(pool)
    if np.isnan(everything).any():
        raise UsageError("entropy share below 1 needs the sampler's entropy of every token: set engine.capture.entropy")
    threshold = np.quantile(everything, 1 - share)
    return [(np.asarray(e, np.float64) >= threshold).astype(np.float32) for e in entropy_nt]
