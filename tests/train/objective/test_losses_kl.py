"""The KL estimators: values by hand, and expected gradients against the closed forms of a three-token policy."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.train.objective.config import LossConfig
from noisyjax.train.objective.losses import kl_estimate, policy_loss, reward_kl
from noisyjax.train.objective.metrics import reduce

LOGITS = jnp.array([0.4, -0.3, 0.1])
REFERENCE = jax.nn.log_softmax(jnp.array([-0.2, 0.5, 0.3]))
KINDS = ("k1", "k2", "k3", "k1+", "k3+")


class Batch(NamedTuple):
    """What the loss reads of the training rows."""

    sequence_bp: Any
    weight_bp: Any
    advantage_bp: Any
    old_bp: Any = None
    ref_bp: Any = None
    rollout_bp: Any = None


def expected(cfg):
    """Loss and gradient by logit in expectation over the policy: every token once, weighted by its probability."""
    batch = Batch(
        sequence_bp=np.arange(3)[None],
        weight_bp=jax.nn.softmax(LOGITS)[None],
        advantage_bp=np.zeros((1, 3), np.float32),
        ref_bp=REFERENCE[None],
    )
    return jax.value_and_grad(lambda x: policy_loss(jax.nn.log_softmax(x)[None], batch, cfg)[0])(LOGITS)


POLICY = np.asarray(jax.nn.softmax(LOGITS), np.float64)
D = np.log(POLICY) - np.asarray(REFERENCE, np.float64)
KL = (POLICY * D).sum()
REVERSE = POLICY * (D - KL)  # gradient of KL(policy || reference) by the logits
FORWARD = POLICY - np.exp(D * -1) * POLICY  # gradient of KL(reference || policy): policy - reference


@pytest.mark.parametrize(
    ("kind", "importance", "gradient"),
    [
        ("k1", False, np.zeros(3)),
        ("k2", False, REVERSE),
        ("k3", False, FORWARD),
        ("k1+", False, REVERSE),
        ("k3+", False, REVERSE),
        ("k1", True, REVERSE),
        ("k3", True, REVERSE),
    ],
)
def test_expected_gradient(kind, importance, gradient):
    assert np.abs(REVERSE - FORWARD).max() > 0.02  # the case can tell them apart
    cfg = LossConfig(beta=0.5, kl=kind, kl_importance=importance)
    np.testing.assert_allclose(expected(cfg)[1], 0.5 * gradient, atol=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k3", "k1+", "k3+"])
def test_expected_value_is_the_kl(kind):
    assert float(expected(LossConfig(beta=0.5, kl=kind))[0]) == pytest.approx(0.5 * KL, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "value", "gradient"),
    [
        ("k1", 0.5, 1.0),
        ("k2", 0.125, 0.5),
        ("k3", np.exp(-0.5) - 0.5, 1 - np.exp(-0.5)),
        ("k1+", 0.5, 0.5),
        ("k3+", np.exp(-0.5) - 0.5, 0.5),
    ],
)
def test_by_hand(kind, value, gradient):
    """d = 0.5. k3 is exp(-d) + d - 1."""
    got = jax.value_and_grad(kl_estimate)(jnp.float32(-1.0), jnp.float32(-1.5), kind)
    assert got == (pytest.approx(value, rel=1e-5), pytest.approx(gradient, rel=1e-5))


@pytest.mark.parametrize(("d", "value"), [(-100.0, 10.0), (-3.0, 10.0), (-2.0, np.exp(2) - 3), (100.0, 10.0)])
def test_k3_is_clamped(d, value):
    """The value at 10; where it is, k3 has lost its gradient and k3+ has not."""
    new = jnp.float32(d)
    assert float(kl_estimate(new, jnp.float32(0), "k3")) == pytest.approx(value, rel=1e-5)
    pull = {kind: float(jax.grad(kl_estimate)(new, jnp.float32(0), kind)) for kind in ("k3", "k3+")}
    assert pull["k3+"] == d
    assert (pull["k3"] == 0) == (value == 10.0)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_policies_have_no_kl_and_no_pull(kind):
    got = jax.value_and_grad(kl_estimate)(jnp.float32(-1.0), jnp.float32(-1.0), kind)
    assert got == (0.0, 1.0 if kind == "k1" else 0.0)


def one_token(cfg, **fields):
    batch = Batch(np.zeros((1, 1), int), np.ones((1, 1), np.float32), np.ones((1, 1), np.float32))
    batch = batch._replace(**{f"{name}_bp": np.full((1, 1), value, np.float32) for name, value in fields.items()})
    loss, metrics = policy_loss(jnp.full((1, 1), -1.0), batch, cfg)
    return float(loss), reduce(metrics)


def test_kl_in_the_loss():
    loss, figures = one_token(LossConfig(beta=0.1, kl="k2"), ref=-3.0)
    assert loss == pytest.approx(-1 + 0.1 * 2)
    assert figures["kl"] == 2
    assert figures["loss/kl"] == pytest.approx(0.2)
    assert figures["loss/policy"] == -1


def test_kl_importance_multiplies_by_the_ratio():
    loss, figures = one_token(LossConfig(beta=0.1, kl="k1", kl_importance=True), ref=-3.0, old=-1.1)
    assert figures["loss/kl"] == pytest.approx(0.1 * 2 * np.exp(0.1), rel=1e-5)
    assert loss == pytest.approx(-np.exp(0.1) + 0.2 * np.exp(0.1), rel=1e-5)


@pytest.mark.parametrize("cfg", [LossConfig(), LossConfig(beta=0.1, kl="k1", kl_in="reward")])
def test_kl_is_only_reported_when_it_is_not_in_the_loss(cfg):
    loss, figures = one_token(cfg, ref=-3.0)
    assert loss == -1
    assert figures["kl"] > 0
    assert "loss/kl" not in figures
    assert "kl" not in one_token(LossConfig())[1]


def test_kl_in_the_reward():
    """Sums over the tokens of each response; one without tokens has moved nowhere."""
    logprob, ref = (
        [np.array([-1.0, -2.0]), np.array([]), np.array([-1.0])],
        [np.array([-1.5, -2.25]), np.array([]), np.array([-0.5])],
    )
    np.testing.assert_allclose(reward_kl(logprob, ref, "k1"), [0.75, 0, -0.5])
    np.testing.assert_allclose(reward_kl(logprob, ref, "k2"), [0.125 + 0.03125, 0, 0.125])
    np.testing.assert_allclose(reward_kl(logprob[:1], ref[:1], "k3"), [np.exp(-0.5) + np.exp(-0.25) - 1.25])
    with pytest.raises(ValueError, match="response 0: 2 log-probabilities, but 1 of the reference"):
        reward_kl(logprob[:1], ref[2:], "k1")
    with pytest.raises(ValueError, match="no such KL estimator: 'k1\\+'"):
        reward_kl(logprob, ref, "k1+")
