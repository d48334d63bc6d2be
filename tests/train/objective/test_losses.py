"""The policy loss by hand: ratios, bounds, corrections, and their gradients."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.config import validate
from noisyjax.errors import UsageError
from noisyjax.train.objective.config import LossConfig
from noisyjax.train.objective.losses import check_reference, policy_loss
from noisyjax.train.objective.metrics import reduce


class Batch(NamedTuple):
    """What the loss reads of the training rows."""

    sequence_bp: Any
    weight_bp: Any
    advantage_bp: Any
    old_bp: Any = None
    ref_bp: Any = None
    rollout_bp: Any = None


def row(advantage, *, weight=1.0, sequence=0, **more):
    """One row; scalars are spread over its targets."""
    advantage = np.atleast_1d(np.asarray(advantage, np.float32))
    spread = {
        "advantage_bp": advantage,
        "weight_bp": np.broadcast_to(np.float32(weight), advantage.shape),
        "sequence_bp": np.broadcast_to(np.int32(sequence), advantage.shape),
        **{f"{name}_bp": np.asarray(value, np.float32) for name, value in more.items()},
    }
    return Batch(**{name: value[None] for name, value in spread.items()})


def solve(new, batch, cfg=LossConfig(), entropy=None):
    """Loss, gradient by target, figures."""
    entropy = None if entropy is None else jnp.asarray(entropy, jnp.float32)[None]
    new_bp = jnp.asarray(new, jnp.float32)[None]
    (loss, metrics), grad = jax.value_and_grad(policy_loss, has_aux=True)(new_bp, batch, cfg, entropy)
    return float(loss), np.asarray(grad[0]), reduce(metrics)


LN = np.log


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "held"),
    [
        (1.0, 2.0, -2.0, -2.0, None),
        (1.1, 2.0, -2.2, -2.2, None),
        (1.5, 2.0, -2.4, 0.0, "high"),  # held at 1.2
        (0.5, 2.0, -1.0, -1.0, None),  # a good token that became rarer may come back
        (1.0, -2.0, 2.0, 2.0, None),
        (0.9, -2.0, 1.8, 1.8, None),
        (0.5, -2.0, 1.6, 0.0, "low"),  # held at 0.8
        (1.5, -2.0, 3.0, 3.0, None),
        (2.9, -2.0, 5.8, 5.8, None),
        (5.0, -2.0, 6.0, 0.0, "dual"),  # held at 3
        (1.5, 0.0, 0.0, 0.0, None),
    ],
)
def test_token_surrogate(ratio, advantage, loss, gradient, held):
    got = solve([LN(ratio) - 1], row(advantage, old=[-1.0]))
    assert got[0] == pytest.approx(loss, rel=1e-5)
    assert got[1][0] == pytest.approx(gradient, rel=1e-5)
    shares = {name: got[2][f"clip/{name}"] for name in ("low", "high", "dual")}
    assert shares == {name: float(name == held) for name in shares}


def test_bounds_are_options():
    """Clip-higher, a wider lower bound, and no dual clip."""
    cfg = LossConfig(clip_low=0.6, clip_high=0.28, dual_clip=None)
    assert solve([LN(1.25)], row(1.0, old=[0.0]), cfg)[1][0] == pytest.approx(-1.25)
    assert solve([LN(1.30)], row(1.0, old=[0.0]), cfg)[0] == pytest.approx(-1.28)
    assert solve([LN(0.5)], row(-1.0, old=[0.0]), cfg)[1][0] == pytest.approx(0.5)
    loss, gradient, figures = solve([LN(5.0)], row(-1.0, old=[0.0]), cfg)
    assert (loss, gradient[0]) == (pytest.approx(5.0), pytest.approx(5.0))
    assert "clip/dual" not in figures


def test_on_policy_is_the_plain_policy_gradient():
    """Without old log-probabilities the ratio is 1 and the gradient -weight * advantage, halved by no tie."""
    loss, gradient, figures = solve([-1.0, -2.0], row([3.0, -5.0], weight=0.5))
    assert loss == pytest.approx(1.0)
    np.testing.assert_allclose(gradient, [-1.5, 2.5])
    assert (figures["ratio/mean"], figures["ratio/min"], figures["ratio/max"]) == (1, 1, 1)
    assert figures["log_ratio/abs_max"] == 0
    assert solve([-1.0, -2.0], row([3.0, -5.0], weight=0.5, old=[-1.0, -2.0]))[0] == loss


def test_log_ratio_is_clamped():
    """A log-ratio of 100 would be infinite in float32; at the clamp it has no gradient."""
    loss, gradient, figures = solve([0.0], row(-1.0, old=[-100.0]), LossConfig(dual_clip=None))
    assert loss == pytest.approx(math.exp(20), rel=1e-5)
    assert gradient[0] == 0
    assert figures["log_ratio/abs_max"] == 100


def test_metrics_count_targets_of_weight_only():
    figures = solve(
        [LN(1.1), LN(0.9), 9.0],
        row([1.0, 1.0, 1.0], weight=[0.25, 0.75, 0.0], old=[0.0, 0.0, 0.0]),
        entropy=[1.0, 2.0, 7.0],
    )[2]
    assert figures["ratio/mean"] == pytest.approx(1.0)
    assert figures["ratio/max"] == pytest.approx(1.1)
    assert figures["ratio/min"] == pytest.approx(0.9)
    assert figures["kl/old"] == pytest.approx(-(LN(1.1) + LN(0.9)) / 2, rel=1e-4)
    assert figures["entropy"] == 1.5
    assert figures["loss"] == pytest.approx(-(0.25 * 1.1 + 0.75 * 0.9))


SEQUENCES = {"sequence": [0, 0, 2], "weight": [0.25, 0.25, 0.5]}
GSPO = LossConfig(ratio="sequence", clip_low=0.3, clip_high=0.3, dual_clip=None)


def test_sequence_ratio():
    """Responses of 2 and 1 tokens: ratios exp((0.1 + 0.3) / 2) and exp(-0.1). The loss is the mean of -A s, and the
    gradient that of the closed form, -A s / (2 length)."""
    batch = row([1.0, 1.0, -2.0], old=[-1.0, -1.0, -1.0], **SEQUENCES)
    loss, gradient, figures = solve([-0.9, -0.7, -1.1], batch, GSPO)
    first, second = math.exp(0.2), math.exp(-0.1)
    assert loss == pytest.approx((-first + 2 * second) / 2, rel=1e-5)
    np.testing.assert_allclose(gradient, [-first / 4, -first / 4, 2 * second / 2], rtol=1e-5)
    assert figures["ratio/max"] == pytest.approx(first, rel=1e-5)


def test_sequence_ratio_clips_whole_responses():
    """The first response is at exp(0.3) > 1.3 on the average: none of its tokens has a gradient, not even the one that
    did not move."""
    batch = row([1.0, 1.0, 1.0], old=[-1.0, -1.0, -1.0], **SEQUENCES)
    loss, gradient, figures = solve([-0.4, -1.0, -1.0], batch, GSPO)
    assert loss == pytest.approx(-(1.3 + 1) / 2, rel=1e-5)
    np.testing.assert_allclose(gradient, [0, 0, -0.5], rtol=1e-5)
    assert figures["clip/high"] == pytest.approx(2 / 3)


def test_sequence_numbers_may_exceed_the_targets():
    """Empty responses have numbers but no targets."""
    batch = row([1.0, 1.0, -2.0], old=[-1.0, -1.0, -1.0], **(SEQUENCES | {"sequence": [900, 900, 7]}))
    want = solve([-0.9, -0.7, -1.1], row([1.0, 1.0, -2.0], old=[-1.0, -1.0, -1.0], **SEQUENCES), GSPO)
    assert solve([-0.9, -0.7, -1.1], batch, GSPO)[0] == want[0]


GAP = LN(np.array([2.0, 0.5, 8.0]))  # trainer over sampler, per token


@pytest.mark.parametrize(
    ("correction", "sequence", "trust"),
    [
        ("none", [0, 0, 1], [1, 1, 1]),
        ("token", [0, 0, 1], [2, 0.5, 3]),
        ("sequence", [0, 0, 1], [1, 1, 3]),
        ("sequence", [0, 1, 1], [2, 3, 3]),
        ("sequence_mask", [0, 0, 1], [1, 1, 0]),
        ("sequence_mask", [0, 1, 1], [2, 0, 0]),
    ],
)
def test_truncated_importance_sampling(correction, sequence, trust):
    """The cap is 3. Weights multiply the policy term and have no gradient of their own."""
    cfg = LossConfig(correction=correction, correction_cap=3.0)
    batch = row([1.0, 1.0, 1.0], sequence=sequence, rollout=-1.0 - GAP)
    loss, gradient, figures = solve([-1.0, -1.0, -1.0], batch, cfg)
    assert loss == pytest.approx(-sum(trust), rel=1e-5)
    np.testing.assert_allclose(gradient, -np.array(trust, float), rtol=1e-5)
    if correction != "none":
        assert figures["correction/weight"] == pytest.approx(sum(trust) / 3, rel=1e-5)


def test_correction_compares_the_sampler_with_the_old_policy():
    """Not with the new one: the ratio holds that part."""
    batch = row([1.0], old=[-1.0], rollout=[-1.0 - LN(1.5)])
    assert solve([-1.0 + LN(1.1)], batch, LossConfig(correction="token"))[0] == pytest.approx(-1.5 * 1.1, rel=1e-5)


def test_correction_leaves_the_kl_term_alone():
    cfg = LossConfig(correction="token", beta=1.0, kl="k2")
    batch = row([0.0], rollout=[-1.0 - LN(2)], ref=[-2.0])
    assert solve([-1.0], batch, cfg)[0] == pytest.approx(0.5)


def test_over_cap_share():
    cfg = LossConfig(correction="sequence_mask", correction_cap=3.0)
    batch = row([1.0, 1.0, 1.0], sequence=[0, 1, 1], rollout=-1.0 - GAP)
    assert solve([-1.0, -1.0, -1.0], batch, cfg)[2]["correction/over_cap"] == pytest.approx(2 / 3)


def test_mismatch_metrics():
    figures = solve([-1.0, -1.0, -1.0], row([0.0, 0.0, 0.0], rollout=-1.0 - GAP))[2]
    assert figures["mismatch/ratio/mean"] == pytest.approx(3.5, rel=1e-5)
    assert figures["mismatch/ratio/min"] == pytest.approx(0.5, rel=1e-5)
    assert figures["mismatch/ratio/max"] == pytest.approx(8, rel=1e-5)
    assert figures["mismatch/abs/mean"] == pytest.approx(5 * LN(2) / 3, rel=1e-5)
    assert figures["mismatch/abs/max"] == pytest.approx(3 * LN(2), rel=1e-5)
    assert figures["mismatch/abs/p99"] == pytest.approx(3 * LN(2), rel=0.04)
    assert figures["mismatch/k3"] == pytest.approx(3.5 - 1 - LN(2), rel=1e-5)


def test_entropy_is_reported_and_its_bonus_is_an_option():
    batch = row([0.0, 0.0], weight=0.5)
    loss, _, figures = solve([-1.0, -1.0], batch, entropy=[2.0, 4.0])
    assert (loss, figures["entropy"]) == (0.0, 3.0)
    assert solve([-1.0, -1.0], batch, LossConfig(entropy_coef=0.1), [2.0, 4.0])[0] == pytest.approx(-0.3)
    pull = jax.grad(lambda h: policy_loss(jnp.full((1, 2), -1.0), batch, LossConfig(entropy_coef=0.1), h)[0])
    np.testing.assert_allclose(pull(jnp.ones((1, 2))), [[-0.05, -0.05]], rtol=1e-6)
    assert "entropy" not in solve([-1.0, -1.0], batch)[2]


@pytest.mark.parametrize("cfg", [LossConfig(beta=0.1, entropy_coef=0.1, correction="sequence"), GSPO])
def test_padding_may_hold_anything(cfg):
    """Not even nan in every field of a padding target shows, neither in the loss nor in a gradient or a figure."""
    fields = {"old": [-1.2, -0.9], "ref": [-1.0, -1.1], "rollout": [-1.1, -1.0]}
    clean = solve([-1.0, -1.0], row([1.0, -1.0], weight=0.5, **fields), cfg, [1.0, 2.0])
    bad = {name: [*value, np.nan] for name, value in fields.items()}
    batch = row([1.0, -1.0, np.nan], weight=[0.5, 0.5, 0], sequence=[0, 0, -3], **bad)
    loss, gradient, figures = solve([-1.0, -1.0, np.nan], batch, cfg, [1.0, 2.0, np.inf])
    assert loss == pytest.approx(clean[0], rel=1e-6)
    np.testing.assert_allclose(gradient, [*clean[1], 0.0], rtol=1e-6)
    assert figures == pytest.approx(clean[2], rel=1e-6)


def test_a_nan_that_counts_is_not_hidden():
    assert math.isnan(solve([np.nan], row([1.0]))[0])


def test_float32_whatever_comes_in():
    batch = jax.tree.map(lambda x: x.astype(jnp.bfloat16), row([1.0, 1.0, 1.0], weight=0.25, old=[-1.0, -1.0, -1.0]))
    batch = batch._replace(sequence_bp=np.zeros((1, 3), np.int32))
    loss, _ = policy_loss(jnp.full((1, 3), -1.0078125, jnp.bfloat16), batch, LossConfig())
    assert loss.dtype == jnp.float32
    assert float(loss) == pytest.approx(-0.75 * math.exp(-0.0078125), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": "sequence", "aggregation": "token-mean"}, "ratio: sequence is defined with"),
        ({"kl_in": "reward", "kl": "k3+"}, "kl_in: reward has no gradient"),
        ({"kl_importance": True, "kl": "k2"}, "kl_importance: true corrects the gradient of k1 and k3"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"beta": -0.1}, "beta"),
        ({"clip_hi": 0.2}, "did you mean 'clip_high'"),
        ({"kl": "k4"}, "expected one of k1, k2, k3"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UsageError, match=message):
        validate(LossConfig, options, "loss")


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (LossConfig(beta=0.001), r"loss\.beta is 0\.001: a KL term needs a reference model"),
        (LossConfig(correction="token"), r"loss\.correction is token: it needs the sampler's"),
        (LossConfig(entropy_coef=0.1), r"loss\.entropy_coef is 0\.1: it needs the policy's"),
    ],
)
def test_options_without_their_array(cfg, message):
    with pytest.raises(UsageError, match=message):
        policy_loss(jnp.zeros((1, 1)), row([1.0]), cfg)


def test_reference_is_checked_before_anything_runs():
    check_reference(LossConfig(), present=False)
    check_reference(LossConfig(beta=0.1), present=True)
    with pytest.raises(UsageError, match=r"set loss\.beta=0"):
        check_reference(LossConfig(beta=0.1, kl_in="reward", kl="k1"), present=False)


def test_rows_without_advantages():
    with pytest.raises(UsageError, match="rows with advantages"):
        policy_loss(jnp.zeros((1, 1)), row([1.0])._replace(advantage_bp=None), LossConfig())
