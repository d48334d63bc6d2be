"""From rewards to gradients: how a batch is cut, ordered or packed does not show, and everything stays finite."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisyjax.train.objective.advantages import advantages
from noisyjax.train.objective.config import AdvantageConfig, LossConfig
from noisyjax.train.objective.losses import policy_loss
from noisyjax.train.objective.metrics import merge, reduce
from noisyjax.train.objective.weights import high_entropy, token_weights

FEATURES, VOCABULARY, LIMIT = 5, 7, 6


class Batch(NamedTuple):
    """What the loss reads of the training rows."""

    sequence_bp: Any
    weight_bp: Any
    advantage_bp: Any
    old_bp: Any
    ref_bp: Any
    rollout_bp: Any


class Sample(NamedTuple):
    """One response: hidden states [R, D], tokens [R], and per token what the loss wants."""

    hidden: np.ndarray
    target: np.ndarray
    old: np.ndarray
    ref: np.ndarray
    rollout: np.ndarray
    entropy: np.ndarray


def make_samples(lengths, seed=0):
    rng = np.random.default_rng(seed)

    def noise(n):
        return (-2 + 0.3 * rng.standard_normal(n)).astype(np.float32)

    return [
        Sample(
            rng.standard_normal((n, FEATURES)).astype(np.float32),
            rng.integers(0, VOCABULARY, n),
            noise(n),
            noise(n),
            noise(n),
            rng.random(n).astype(np.float32),
        )
        for n in lengths
    ]


def pack(rows, samples, weight_n, advantage_nt, targets):
    """Rows are lists of sample numbers; each is padded to `targets` with values that would be noticed."""
    hidden = np.full((len(rows), targets, FEATURES), 9.0, np.float32)
    target = np.full((len(rows), targets), 3)
    fields = {name: np.full((len(rows), targets), 50.0, np.float32) for name in Batch._fields}
    fields["sequence_bp"], fields["weight_bp"] = np.full_like(target, 77), np.zeros((len(rows), targets), np.float32)
    for b, row in enumerate(rows):
        at = 0
        for s, i in enumerate(row):
            here = slice(at, at := at + len(samples[i].target))
            hidden[b, here], target[b, here] = samples[i].hidden, samples[i].target
            fields["sequence_bp"][b, here], fields["weight_bp"][b, here] = s, weight_n[i]
            fields["advantage_bp"][b, here] = advantage_nt[i]
            for name in ("old", "ref", "rollout"):
                fields[f"{name}_bp"][b, here] = getattr(samples[i], name)
    return hidden, target, Batch(**fields)


@functools.partial(jax.jit, static_argnames="cfg")
def gradient(w, hidden, target, batch, cfg):
    def loss(w):
        logp_bpv = jax.nn.log_softmax(hidden @ w)
        new_bp = jnp.take_along_axis(logp_bpv, target[..., None], -1)[..., 0]
        return policy_loss(new_bp, batch, cfg, -(jnp.exp(logp_bpv) * logp_bpv).sum(-1))

    return jax.value_and_grad(loss, has_aux=True)(w)


def solve(micro_batches, samples, weight_n, advantage_nt, cfg, targets):
    """Sums of losses and gradients over the micro-batches, and the figures."""
    w = jax.random.normal(jax.random.key(1), (FEATURES, VOCABULARY)) * 0.3
    total, grads, parts = 0.0, jnp.zeros_like(w), []
    for rows in micro_batches:
        (loss, metrics), grad = gradient(w, *pack(rows, samples, weight_n, advantage_nt, targets), cfg)
        total, grads = total + float(loss), grads + grad
        parts.append(metrics)
    return total, np.asarray(grads), reduce(merge(parts))


LENGTHS = [6, 1, 4, 0, 3, 5, 2, 1]
WHOLE = [[[i] for i in range(8)]]  # one micro-batch of eight rows
SPLITS = {
    "4x2": [[[0], [1]], [[2], [3]], [[4], [5]], [[6], [7]]],
    "8x1 backwards": [[[i], []] for i in reversed(range(8))],
    "packed": [[[7, 3, 0], [5]], [[2, 1], [6, 4]]],
}
PADDED, PADDED_MORE = 7, 11  # targets per row: of the whole and of the splits
CASES = [
    LossConfig(aggregation="token-mean", clip_high=0.28),
    LossConfig(aggregation="seq-mean-token-mean", beta=0.1, entropy_coef=0.05, correction="token"),
    LossConfig(aggregation="seq-mean-token-sum", beta=0.1, kl="k3+", correction="sequence"),
    LossConfig(aggregation="seq-mean-token-sum-norm", beta=0.1, kl="k2", correction="sequence_mask"),
    LossConfig(ratio="sequence", beta=0.1, kl="k1", kl_importance=True, entropy_share=0.4),
]


@pytest.mark.parametrize("cfg", CASES, ids=lambda cfg: f"{cfg.aggregation}-{cfg.ratio}-{cfg.correction}")
def test_micro_batches_do_not_matter(cfg):
    """Eight responses of unequal lengths, one empty and one left out: the gradient of 1 x 8, of 4 x 2 and of others."""
    samples = make_samples(LENGTHS)
    solved = advantages(np.array([1, 0, 2, 2, np.nan, 1, 0, 0.5]), [0, 0, 0, 0, 1, 1, 1, 1], AdvantageConfig())
    left_out = np.arange(8) == 2
    weight_n = token_weights(LENGTHS, cfg.aggregation, left_out_n=left_out, max_length=LIMIT)
    kept = high_entropy([s.entropy for s in samples], cfg.entropy_share, left_out_n=left_out)
    advantage_nt = [a * k for a, k in zip(solved.advantage_n, kept, strict=True)]
    loss, grad, figures = solve(WHOLE, samples, weight_n, advantage_nt, cfg, PADDED)
    assert np.abs(grad).max() > 1e-2
    for name, split in SPLITS.items():
        other_loss, other_grad, other_figures = solve(split, samples, weight_n, advantage_nt, cfg, PADDED_MORE)
        np.testing.assert_allclose(other_grad, grad, atol=1e-6, err_msg=name)
        assert other_loss == pytest.approx(loss, abs=1e-6)
        assert other_figures == pytest.approx(figures, abs=2e-6, rel=1e-5)


def test_a_mean_per_micro_batch_would_matter():
    """What the weights are for: with denominators of the parts, the same case gives another gradient."""
    samples, advantage_nt = make_samples(LENGTHS), np.array([1, -1, 1, -1, 1, -1, 1, -1.0])
    cfg = CASES[0]
    grad = solve(WHOLE, samples, token_weights(LENGTHS, cfg.aggregation), advantage_nt, cfg, PADDED)[1]
    local = np.zeros(8, np.float32)
    for rows in SPLITS["4x2"]:
        part = [i for row in rows for i in row]
        local[part] = token_weights([LENGTHS[i] for i in part], cfg.aggregation) / 4
    other = solve(SPLITS["4x2"], samples, local, advantage_nt, cfg, PADDED_MORE)[1]
    assert np.abs(other - grad).max() > 1e-3


def test_constant_groups_dilute_or_leave():
    """Two groups of two one-token responses, the second constant; loss by hand with ratio 1 and k2 at d = 1.

    keep: four tokens, each 1/4; advantages cancel to 0, and KL is 0.5 on each. drop: two tokens, each 1/2.
    """
    for flat, weight in (("keep", [0.25] * 4), ("drop", [0.5, 0.5, 0, 0])):
        solved = advantages(np.array([1.0, 0, 1, 1]), [0, 0, 1, 1], AdvantageConfig(flat_groups=flat))
        weight_n = token_weights([1] * 4, "token-mean", left_out_n=solved.left_out_n)
        assert weight_n.tolist() == weight
        column = {name: np.full((4, 1), -1.0, np.float32) for name in ("old_bp", "rollout_bp")}
        batch = Batch(
            np.zeros((4, 1), int),
            weight_n[:, None],
            solved.advantage_n[:, None],
            ref_bp=np.full((4, 1), -2.0),
            **column,
        )
        cfg = LossConfig(beta=1.0, kl="k2", aggregation="token-mean")
        grad = jax.grad(lambda new, batch, cfg: policy_loss(new, batch, cfg)[0])(jnp.full((4, 1), -1.0), batch, cfg)
        half = 0.5**0.5
        expected = [w * (1 - a) for w, a in zip(weight, [half, -half, 0, 0], strict=True)]
        np.testing.assert_allclose(grad[:, 0], expected, atol=1e-5)


samples_strategy = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from([0.0, 1.0, 2.0, float("nan")]), st.integers(0, 1)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(
    samples_strategy,
    st.sampled_from(CASES),
    st.sampled_from(["keep", "drop"]),
    st.booleans(),
)
def test_always_finite_and_the_absent_is_counted(rows, cfg, drop, mask_truncated):
    """Empty responses, all truncated, constant groups, groups of one, no verdict at all."""
    lengths, truncated, rewards, groups = (np.array(column) for column in zip(*rows, strict=True))
    solved = advantages(rewards, groups, AdvantageConfig(flat_groups=drop, undefined=drop))
    left_out = solved.left_out_n | (truncated & mask_truncated)
    samples = make_samples(lengths)
    weight_n = token_weights(lengths, cfg.aggregation, left_out_n=left_out, max_length=LIMIT)
    filled = [[[i] for i in range(len(rows))] + [[]] * (4 - len(rows))]
    loss, grad, figures = solve(filled, samples, weight_n, solved.advantage_n, cfg, targets=3)
    assert np.isfinite(loss)
    assert np.isfinite(grad).all()
    if (weight_n * lengths).any():
        assert all(value is not None for value in figures.values())
    else:
        assert loss == 0
        assert not grad.any()
        assert all(value is None for value in figures.values())
