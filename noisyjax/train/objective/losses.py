"""The policy loss of GRPO and its relatives: pure functions of log-probabilities, in float32.

A batch lists targets, not tokens: `sequence_bp` says which of its row's sequences a target belongs to, and `weight_bp`
holds its share of the loss (`weights.token_weights`), so that the loss of a micro-batch is a sum and the sums of all
micro-batches add up to the loss. A target of weight 0 does not exist: it enters no term, no ratio and no metric.
A sequence lies in one row, whole.

Legend: B rows, P targets per row. r is the ratio of new to old policy, d the log-ratio of policy to reference.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient

from noisyjax.errors import UsageError
from noisyjax.train.objective.config import Estimator, LossConfig
from noisyjax.train.objective.metrics import Max, Mean, Metrics, Min, Quantiles, Reducer, Total

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this before exp, as in VeRL."""
K3_LIMIT = 10.0
"""k3 is clamped to ± this, as in VeRL. Beyond it k3 has no gradient; k2 and k3+ still pull."""


def check_reference(cfg: LossConfig, present: bool) -> None:
    """UsageError when the loss has a KL term and there is no reference model. For configs, before anything runs."""
    if cfg.needs_reference and not present:
        raise UsageError(f"loss.beta is {cfg.beta}: a KL term needs a reference model; give one, or set loss.beta=0")


class Targets(Protocol):
    """The part of a batch of training rows that the loss reads. All [B, P]; the optional ones may be None."""

    @property
    def sequence_bp(self) -> Any: ...
    @property
    def weight_bp(self) -> Any: ...
    @property
    def advantage_bp(self) -> Any: ...
    @property
    def old_bp(self) -> Any: ...
    @property
    def ref_bp(self) -> Any: ...
    @property
    def rollout_bp(self) -> Any: ...


def policy_loss(
    new_bp: jax.Array, batch: Targets, cfg: LossConfig, entropy_bp: jax.Array | None = None
) -> tuple[jax.Array, Metrics]:
    """The share of the loss, float32 scalar, that these rows contribute, and their metrics.

    `new_bp` are the policy's log-probabilities of the targets, at the sampler's temperature and over the whole
    vocabulary. `batch.old_bp` None means on-policy: the old policy is `new_bp` itself, without gradient.
    `batch.rollout_bp` are the sampler's own log-probabilities; given them, the mismatch metrics are reported.
    `entropy_bp` (nats) is needed by the entropy bonus and reported if given. UsageError when `cfg` asks for an array
    that is missing.
    """
    _require(batch, cfg, entropy_bp)
    weight_bp = jnp.asarray(batch.weight_bp, jnp.float32)
    counts_bp = weight_bp != 0
    new_bp = _counted(new_bp, counts_bp)
    old_bp = stop_gradient(new_bp if batch.old_bp is None else _counted(batch.old_bp, counts_bp))
    advantage_bp = _counted(batch.advantage_bp, counts_bp)

    delta_bp = new_bp - old_bp
    ratio_bp = _sequence_ratio(delta_bp, counts_bp, batch.sequence_bp) if cfg.ratio == "sequence" else _exp(delta_bp)
    policy_bp, metrics = _clipped(ratio_bp, advantage_bp, counts_bp, cfg)
    metrics |= _drift(delta_bp, ratio_bp, counts_bp)

    if batch.rollout_bp is not None:
        gap_bp = old_bp - stop_gradient(_counted(batch.rollout_bp, counts_bp))
        metrics |= _mismatch(gap_bp, counts_bp)
        if cfg.correction != "none":
            trust_bp, over_bp = _trust(gap_bp, counts_bp, batch.sequence_bp, cfg)
            policy_bp = policy_bp * trust_bp
            metrics |= {
                "correction/weight": Mean.of(trust_bp, counts_bp),
                "correction/over_cap": Mean.of(over_bp, counts_bp),
            }
    loss_bp = policy_bp
    metrics["loss/policy"] = _share(policy_bp, weight_bp, counts_bp)

    if batch.ref_bp is not None:
        kl_bp = kl_estimate(new_bp, stop_gradient(_counted(batch.ref_bp, counts_bp)), cfg.kl)
        metrics["kl"] = Mean.of(stop_gradient(kl_bp), counts_bp)
        if cfg.beta > 0 and cfg.kl_in == "loss":
            kl_bp = cfg.beta * (kl_bp * _exp(delta_bp) if cfg.kl_importance else kl_bp)
            loss_bp = loss_bp + kl_bp
            metrics["loss/kl"] = _share(kl_bp, weight_bp, counts_bp)
    if entropy_bp is not None:
        entropy_bp = _counted(entropy_bp, counts_bp)
        metrics["entropy"] = Mean.of(stop_gradient(entropy_bp), counts_bp)
        if cfg.entropy_coef > 0:
            loss_bp = loss_bp - cfg.entropy_coef * entropy_bp
    loss = (weight_bp * loss_bp).sum()
    return loss, metrics | {"loss": _share(loss_bp, weight_bp, counts_bp)}


def kl_estimate(new: jax.Array, ref: jax.Array, kind: Estimator) -> jax.Array:
    """Per-token estimate of KL(policy || reference) from samples of the policy; any shape, float32.

    With d = new - ref: k1 is d, k2 is d²/2, k3 is exp(-d) + d - 1 (John Schulman, "Approximating KL divergence").
    k1+ and k3+ have the value of k1 and k3 and the gradient of k2 (straight-through).
    """
    d = new - ref
    value = _kl_value(d, kind.removesuffix("+"), jnp)
    k2 = _kl_value(d, "k2", jnp)
    return k2 + stop_gradient(value - k2) if kind.endswith("+") else value


def reward_kl(logprob_nt: Sequence[np.ndarray], ref_nt: Sequence[np.ndarray], kind: Estimator) -> np.ndarray:
    """KL of each response, float64 [N]: what `kl_in: reward` subtracts, times beta, from the response's reward.

    Host side. Per response the log-probabilities of its tokens under the policy that sampled and under the reference;
    the sum over the tokens, as in VeRL. ValueError where the two differ in length.
    """
    kl_n = np.zeros(len(logprob_nt))
    for i, (logprob_t, ref_t) in enumerate(zip(logprob_nt, ref_nt, strict=True)):
        if len(logprob_t) != len(ref_t):
            raise ValueError(f"response {i}: {len(logprob_t)} log-probabilities, but {len(ref_t)} of the reference")
        kl_n[i] = _kl_value(np.asarray(logprob_t, np.float64) - np.asarray(ref_t, np.float64), kind, np).sum()
    return kl_n


def _kl_value(d: Any, kind: str, xp: Any) -> Any:
    """k1, k2 or k3 of the log-ratio d, with numpy or jax.numpy."""
    if kind == "k1":
        return d
    if kind == "k2":
        return 0.5 * d**2
    if kind == "k3":
        down = xp.clip(-d, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return xp.clip(xp.expm1(down) - down, -K3_LIMIT, K3_LIMIT)
    raise ValueError(f"no such KL estimator: {kind!r}")


def _require(batch: Targets, cfg: LossConfig, entropy_bp: jax.Array | None) -> None:
    """UsageError for an option without its array. Runs while tracing, at no cost."""
    if batch.advantage_bp is None:
        raise UsageError("the policy loss needs rows with advantages; these have none")
    if cfg.kl_in == "loss":
        check_reference(cfg, batch.ref_bp is not None)
    if cfg.correction != "none" and batch.rollout_bp is None:
        raise UsageError(f"loss.correction is {cfg.correction}: it needs the sampler's log-probabilities")
    if cfg.entropy_coef > 0 and entropy_bp is None:
        raise UsageError(f"loss.entropy_coef is {cfg.entropy_coef}: it needs the policy's entropies")


def _counted(values_bp: Any, counts_bp: jax.Array) -> jax.Array:
    """float32, and 0 where nothing counts, so that padding can be anything, even nan."""
    return jnp.where(counts_bp, jnp.asarray(values_bp, jnp.float32), 0.0)


def _exp(log_ratio: jax.Array) -> jax.Array:
    return jnp.exp(jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def _share(loss_bp: jax.Array, weight_bp: jax.Array, counts_bp: jax.Array) -> Total:
    return Total.of(stop_gradient(weight_bp * loss_bp), counts_bp)


def _over_sequences(values_bp: jax.Array, counts_bp: jax.Array, sequence_bp: Any) -> jax.Array:
    """At every target the sum of `values_bp` over its sequence's counted targets, [B, P]."""

    def row(values_p: jax.Array, counts_p: jax.Array, number_p: jax.Array) -> jax.Array:
        # Names below P, whatever the numbers: empty responses have a number but no target.
        name_p = jnp.searchsorted(jnp.sort(number_p), number_p)
        return jax.ops.segment_sum(jnp.where(counts_p, values_p, 0.0), name_p, len(name_p))[name_p]

    return jax.vmap(row)(values_bp, counts_bp, jnp.asarray(sequence_bp))


def _sequence_ratio(delta_bp: jax.Array, counts_bp: jax.Array, sequence_bp: Any) -> jax.Array:
    """GSPO's ratio at each target: the value of exp(mean over the response), the gradient of the target's own r."""
    length_bp = jnp.maximum(_over_sequences(jnp.ones_like(delta_bp), counts_bp, sequence_bp), 1.0)
    mean_bp = stop_gradient(_over_sequences(delta_bp, counts_bp, sequence_bp) / length_bp)
    return _exp(mean_bp + delta_bp - stop_gradient(delta_bp))


def _clipped(
    ratio_bp: jax.Array, advantage_bp: jax.Array, counts_bp: jax.Array, cfg: LossConfig
) -> tuple[jax.Array, dict[str, Reducer]]:
    """The clipped surrogate per target, and the shares of targets that each bound holds.

    Chosen with `where`, not with `maximum`, which would halve the gradient at ties.
    """
    free_bp = -advantage_bp * ratio_bp
    bound_bp = -advantage_bp * jnp.clip(ratio_bp, 1 - cfg.clip_low, 1 + cfg.clip_high)
    held_bp = bound_bp > free_bp
    loss_bp = jnp.where(held_bp, bound_bp, free_bp)
    metrics: dict[str, Reducer] = {
        "clip/low": Mean.of(held_bp & (advantage_bp < 0), counts_bp),
        "clip/high": Mean.of(held_bp & (advantage_bp > 0), counts_bp),
    }
    if cfg.dual_clip is not None:
        ceiling_bp = -advantage_bp * cfg.dual_clip
        held_bp = (advantage_bp < 0) & (loss_bp > ceiling_bp)
        loss_bp = jnp.where(held_bp, ceiling_bp, loss_bp)
        metrics["clip/dual"] = Mean.of(held_bp, counts_bp)
    return loss_bp, metrics


def _trust(gap_bp: jax.Array, counts_bp: jax.Array, sequence_bp: Any, cfg: LossConfig) -> tuple[jax.Array, jax.Array]:
    """Weight of each target's policy term against the sampler's mismatch, and where it is above the cap.

    Truncated importance sampling by token or by the product over the response, as in VeRL's rollout correction.
    """
    if cfg.correction != "token":
        gap_bp = _over_sequences(gap_bp, counts_bp, sequence_bp)
    trust_bp = _exp(gap_bp)
    over_bp = trust_bp > cfg.correction_cap
    return jnp.where(over_bp, 0.0 if cfg.correction == "sequence_mask" else cfg.correction_cap, trust_bp), over_bp


def _drift(delta_bp: jax.Array, ratio_bp: jax.Array, counts_bp: jax.Array) -> dict[str, Reducer]:
    """How far the policy has moved from the one that made the batch."""
    delta_bp, ratio_bp = stop_gradient((delta_bp, ratio_bp))
    return {
        "ratio/mean": Mean.of(ratio_bp, counts_bp),
        "ratio/min": Min.of(ratio_bp, counts_bp),
        "ratio/max": Max.of(ratio_bp, counts_bp),
        "log_ratio/abs_max": Max.of(jnp.abs(delta_bp), counts_bp),
        "kl/old": Mean.of(-delta_bp, counts_bp),
    }


def _mismatch(gap_bp: jax.Array, counts_bp: jax.Array) -> dict[str, Reducer]:
    """How far the trainer's log-probabilities are from the sampler's, which should be the same."""
    ratio_bp, size_bp = _exp(gap_bp), jnp.abs(gap_bp)
    return {
        "mismatch/ratio/mean": Mean.of(ratio_bp, counts_bp),
        "mismatch/ratio/min": Min.of(ratio_bp, counts_bp),
        "mismatch/ratio/max": Max.of(ratio_bp, counts_bp),
        "mismatch/abs/mean": Mean.of(size_bp, counts_bp),
        "mismatch/abs/max": Max.of(size_bp, counts_bp),
        "mismatch/abs": Quantiles.of(size_bp, counts_bp),
        "mismatch/k3": Mean.of(ratio_bp - 1 - gap_bp, counts_bp),
    }
