"""Experts against a loop over tokens, their gradients against those of a dense sum, and the router by hand.

Legend: N tokens, D model, F ffn, E experts, K experts of a token, M rows, O outputs, I inputs.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.models import MoeConfig
from noisyjax.models.moe import (
    Experts,
    Packed,
    experts,
    gated,
    load,
    pull,
    route,
    router_logits,
    tile_rows,
)

PLAIN = MoeConfig(n_experts=5, top_k=2, d_ff=6, norm_topk=True)
CLAMPED = MoeConfig(n_experts=5, top_k=2, d_ff=6, norm_topk=True, bias=True, clamp=0.8)


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


def weights(cfg: MoeConfig, d: int = 4) -> Experts:
    e, f = cfg.n_experts, cfg.d_ff
    shapes = [(e, f, d), (e, f, d), (e, d, f)] + ([(e, f), (e, f), (e, d)] if cfg.bias else [])
    return Experts(*(random(*shape, seed=i) for i, shape in enumerate(shapes)))


def dense(x_nd, weight_nk, expert_nk, w: Experts, cfg: MoeConfig):
    """Every expert on every token, and a sum weighted by mostly zeros."""
    biases = [None if b is None else b[None] for b in w[3:]]
    gate, up = (jnp.einsum("nd,efd->nef", x_nd, w[i]) + (0 if biases[i] is None else biases[i]) for i in range(2))
    y_ned = jnp.einsum("nef,edf->ned", gated(gate, up, cfg), w.down_edf) + (0 if biases[2] is None else biases[2])
    share_ne = (jax.nn.one_hot(expert_nk, cfg.n_experts) * weight_nk[..., None]).sum(1)
    return jnp.einsum("ned,ne->nd", y_ned, share_ne)


def test_route_by_hand():
    logits = jnp.log(jnp.asarray([[1.0, 2.0, 4.0, 3.0], [6.0, 1.0, 1.0, 2.0]]))
    shares, chosen = route(logits, 2, norm_topk=False)
    np.testing.assert_array_equal(chosen, [[2, 3], [0, 3]])
    np.testing.assert_allclose(shares, [[0.4, 0.3], [0.6, 0.2]], rtol=1e-6)
    shares, chosen = route(logits, 2, norm_topk=True)
    np.testing.assert_array_equal(chosen, [[2, 3], [0, 3]])
    np.testing.assert_allclose(shares, [[4 / 7, 3 / 7], [0.75, 0.25]], rtol=1e-6)


def test_the_router_is_float32_in_a_bfloat16_model():
    """Two experts whose logits differ by less than bfloat16 can tell apart."""
    x = jnp.ones((1, 512), jnp.bfloat16)
    w = jnp.ones((2, 512), jnp.bfloat16).at[1, 0].set(1.125)
    logits = router_logits(x, w)
    assert logits.dtype == jnp.float32
    np.testing.assert_array_equal(logits, [[512.0, 512.125]])
    assert jnp.bfloat16(512.125) == jnp.bfloat16(512.0)


def test_gated_units_by_hand():
    gate, up = jnp.asarray([2.0, -3.0, 0.5]), jnp.asarray([-2.0, 0.25, 2.0])
    np.testing.assert_allclose(gated(gate, up, PLAIN), gate / (1 + np.exp(-gate)) * up, rtol=1e-6)
    low, high = np.float32([0.8, -3.0, 0.5]), np.float32([-0.8, 0.25, 0.8])  # the gate is not clamped from below
    np.testing.assert_allclose(gated(gate, up, CLAMPED), (high + 1) * low / (1 + np.exp(-1.702 * low)), rtol=1e-6)


@pytest.mark.parametrize("cfg", [PLAIN, CLAMPED], ids=["plain", "clamped"])
@pytest.mark.parametrize("tokens", [1, 7, 200])
def test_experts_and_their_gradients_are_those_of_a_dense_sum(cfg, tokens):
    x_nd, w = random(tokens, 4), weights(cfg)
    logits = random(tokens, cfg.n_experts, seed=3).at[:, 1].add(-9.0)  # nobody asks expert 1

    def total(how, x, logits, w):
        shares, chosen = route(logits, cfg.top_k, cfg.norm_topk)
        y = how(x, shares, chosen, w, cfg)
        return jnp.sum(y * random(*y.shape, seed=9)), y

    got, expected = (
        jax.jit(jax.value_and_grad(lambda *a, how=how: total(how, *a), argnums=(0, 1, 2), has_aux=True))(
            x_nd, logits, w
        )
        for how in (experts, dense)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=1e-4), got, expected)
    assert np.all(np.asarray(got[1][2].gate_efd)[1] == 0)


@pytest.mark.parametrize("sizes", [(0, 0, 40), (40, 0, 0), (1, 38, 1), (13, 14, 13), (8, 16, 16)])
def test_groups_of_any_size(sizes):
    """All tokens to one expert, to some, or to all: tiles that reach over a group's end harm no other group."""
    cfg = MoeConfig(n_experts=3, top_k=1, d_ff=6, norm_topk=True, bias=True, clamp=0.8)
    x_nd, w, up = random(40, 4), weights(cfg), random(40, 4, seed=9)
    chosen = jnp.asarray(np.random.default_rng(0).permutation(np.repeat(np.arange(3), sizes))[:, None])
    shares = random(40, 1, seed=2)

    def loss(how, x, shares, w):
        return jnp.sum(up * how(x, shares, chosen, w, cfg))

    got, expected = (jax.value_and_grad(loss, (1, 2, 3))(how, x_nd, shares, w) for how in (experts, dense))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), got, expected)


def test_a_token_is_answered_alike_in_any_company():
    """Rows of other tokens change neither the choice nor the sum."""
    cfg, w = PLAIN, weights(PLAIN)
    x_nd, router = random(64, 4), random(5, 4, seed=8)

    def run(x):
        return experts(x, *route(router_logits(x, router), cfg.top_k, cfg.norm_topk), w, cfg)

    whole = run(x_nd)
    for i in (0, 31, 63):
        np.testing.assert_allclose(run(x_nd[i : i + 1])[0], whole[i], atol=1e-6)
    order = np.random.default_rng(0).permutation(64)
    np.testing.assert_allclose(run(x_nd[order]), whole[order], atol=1e-6)


def test_bfloat16_experts_keep_their_type():
    w = jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights(CLAMPED))
    x = random(30, 4).astype(jnp.bfloat16)
    shares, chosen = route(random(30, 5), 2, norm_topk=True)
    y = experts(x, shares, chosen, w, CLAMPED)
    assert y.dtype == jnp.bfloat16
    expected = dense(*(a.astype(jnp.float32) for a in (x, shares)), chosen, jax.tree.map(jnp.float32, w), CLAMPED)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.05 * float(jnp.abs(expected).max()))


def balance(logit_lne: jax.Array, top_k: int, times_n: jax.Array | None = None) -> jax.Array:
    """Of all layers together."""
    times_n = jnp.ones(logit_lne.shape[1]) if times_n is None else times_n.astype(jnp.float32)
    whole = jax.tree.map(lambda *parts: sum(parts), *(load(logit_ne, top_k, times_n) for logit_ne in logit_lne))
    return pull(whole) @ whole.prob_e


def test_balance_by_hand():
    """Two tokens, two experts, one choice each: shares (1, 0) with probabilities (.75, .25), and so on."""
    logits = jnp.log(jnp.asarray([[[3.0, 1.0], [3.0, 1.0]]]))
    assert balance(logits, 1) == pytest.approx(2 * 0.75)
    both = jnp.log(jnp.asarray([[[3.0, 1.0], [1.0, 3.0]]]))
    assert balance(both, 1) == pytest.approx(2 * (0.5 * 0.5 + 0.5 * 0.5))
    padded = jnp.concatenate([logits, jnp.log(jnp.asarray([[[1.0, 99.0]]]))], 1)
    assert balance(padded, 1, jnp.asarray([True, True, False])) == pytest.approx(2 * 0.75)
    assert balance(both, 1, jnp.asarray([2, 1])) == pytest.approx(2 * (2 / 3 * (1.75 / 3) + 1 / 3 * (1.25 / 3)))
    assert balance(jnp.zeros((3, 4, 8)), 2) == pytest.approx(2.0)
    assert np.isfinite(balance(both, 1, jnp.zeros(2, bool)))


def test_balance_pulls_towards_balance():
    logits = random(2, 50, 4) + jnp.asarray([2.0, 0.0, 0.0, 0.0])
    slope = jax.grad(lambda x: balance(x, 2))(logits)
    assert slope[..., 0].sum() > 0 > slope[..., 1:].sum()


def test_packed_experts_have_no_gradient():
    packed = Packed(jnp.zeros((2, 32, 1, 16), jnp.uint8), jnp.zeros((2, 32, 1), jnp.uint8))
    cfg, x_nd = MoeConfig(n_experts=2, top_k=1, d_ff=32, norm_topk=True), random(3, 32)
    chosen = jnp.zeros((3, 1), jnp.int32)
    with pytest.raises(TypeError, match="keep_quantised"):
        jax.grad(lambda x: experts(x, jnp.ones((3, 1)), chosen, Experts(packed, packed, packed), cfg).sum())(x_nd)


@pytest.mark.parametrize(("rows", "groups"), itertools.product((1, 64, 4096), (4, 128)))
def test_tiles_are_small_against_their_groups(rows, groups):
    tile = tile_rows(rows, groups)
    assert 8 <= tile <= 128
    assert tile == 8 or tile <= 4 * max(rows / groups, 1)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("masked", [False, True])
def test_balance_is_that_of_transformers(masked):
    torch = pytest.importorskip("torch", reason="needs the `parity` extra")
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    logits = random(3, 24, 8)
    mask = np.arange(24).reshape(2, 12) % 12 < (9 if masked else 12)
    theirs = load_balancing_loss_func(
        tuple(torch.tensor(np.asarray(x)) for x in logits), 8, 3, torch.tensor(mask) if masked else None
    )
    assert balance(logits, 3, jnp.asarray(mask.reshape(-1))) == pytest.approx(float(theirs), rel=1e-5)
