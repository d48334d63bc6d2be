"""The running softmax against the plain one, and what a query may see.

Legend: B batch, T query length, S key length, N query heads, K kv heads, H head dim, R = (N/K)*T, C labels.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisyjax.models import attention

B, N, K, H = 2, 4, 2, 8


def randn(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def plain(q_btnh, k_bskh, v_bskh, see_bts) -> tuple[np.ndarray, np.ndarray]:
    """(out_btnh, weights_bnts) by the textbook, float64; a query that sees nothing gives zeros."""
    q, k, v = (np.asarray(x, np.float64) for x in (q_btnh, k_bskh, v_bskh))
    groups = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, groups, 2), np.repeat(v, groups, 2)
    score = np.where(see_bts[:, None], np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1]), -1e9)
    weight = np.where(see_bts[:, None], np.exp(score - score.max(-1, keepdims=True)), 0.0)
    total = weight.sum(-1, keepdims=True)
    weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    return np.einsum("bnts,bsnh->btnh", weight, v), weight


def causal_see(t: int, window: int | None = None) -> np.ndarray:
    q, k = np.arange(t)[:, None], np.arange(t)[None]
    return ((k <= q) & (k > q - (window or t)))[None].repeat(B, 0)


def self_attention(q, k, v, segment=None, window=None, block=1024):
    b, t = q.shape[:2]
    pos = jnp.broadcast_to(jnp.arange(t), (b, t))
    segment = jnp.ones((b, t), jnp.int32) if segment is None else jnp.asarray(segment)
    return SELF(q, k, v, pos, segment, window, block)


SELF = jax.jit(attention.self_attention, static_argnums=(5, 6))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("t", "block"), [(1, 4), (13, 1024), (13, 4), (16, 4)])
def test_self_attention_is_the_plain_softmax(t, block, window):
    rng = np.random.default_rng(t)
    q, k, v = randn(rng, B, t, N, H), randn(rng, B, t, K, H), randn(rng, B, t, K, H)
    expected, _ = plain(q, k, v, causal_see(t, window))
    np.testing.assert_allclose(self_attention(q, k, v, window=window, block=block), expected, atol=1e-5)


VISIT = jax.jit(attention.visit)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.3, 0.8, 1.0]), min_size=1, max_size=4), st.integers(0, 2**31), st.booleans())
def test_any_cut_into_blocks_gives_one_softmax_and_its_mass(shares, seed, extreme):
    """Blocks of four keys in any order, each with any share of it visible (none at all too)."""
    rng = np.random.default_rng(seed)
    s, t, size = 4 * len(shares), 3, 30.0 if extreme else 1.0  # scores of a thousand: exp must not overflow
    q, k, v = randn(rng, B, t, N, H) * size, randn(rng, B, s, K, H) * size, randn(rng, B, s, K, H)
    see = rng.random((B, t, s)) < np.repeat(shares, 4)
    hot = np.eye(5, dtype=np.float32)[rng.integers(0, 5, (B, s))]
    q_bkrh = attention.split_heads(q, K)
    acc = attention.start(q_bkrh, 5)
    for i in rng.permutation(len(shares)):
        cut = slice(4 * i, 4 * i + 4)
        visible = np.tile(see[:, :, cut], (1, N // K, 1))[:, None]
        acc = VISIT(acc, q_bkrh, *(np.asarray(x)[:, cut].swapaxes(1, 2) for x in (k, v)), visible, hot[:, cut])
    out, mass = attention.finish(acc, jnp.float32)
    expected, weight = plain(q, k, v, see)
    np.testing.assert_allclose(attention.join_heads(out, t), expected, atol=2e-3 if extreme else 1e-5)
    mass_btnc = np.asarray(attention.join_heads(mass, t))
    np.testing.assert_allclose(mass_btnc, np.einsum("bnts,bsc->btnc", weight, hot), atol=2e-3 if extreme else 1e-5)
    np.testing.assert_allclose(mass_btnc.sum(-1), np.where(see.any(-1), 1.0, 0.0)[:, :, None].repeat(N, 2), atol=1e-5)


def test_split_and_join_heads_are_inverse_and_group_neighbours():
    x = jnp.arange(B * 3 * N * H, dtype=jnp.float32).reshape(B, 3, N, H)
    split = attention.split_heads(x, K)
    np.testing.assert_array_equal(attention.join_heads(split, 3), x)
    # Query heads 2 and 3 belong to kv head 1: its rows are head 2 at t = 0..2, then head 3.
    np.testing.assert_array_equal(split[0, 1, :3], x[0, :, 2])
    np.testing.assert_array_equal(split[0, 1, 3:], x[0, :, 3])


@pytest.mark.parametrize("window", [1, 4, 6])
def test_a_window_counts_the_query_itself(window):
    see = np.asarray(attention.causal(jnp.arange(9)[None], jnp.arange(9)[None], 1, window))[0, 0]
    np.testing.assert_array_equal(see.sum(-1), np.minimum(np.arange(9) + 1, window))
    assert see[8, 8]
    assert see[8, 8 - window + 1]
    assert not see[8, 8 - window]
    assert not np.triu(see, 1).any()


def test_a_window_of_four_forgets_the_fifth_key():
    """A large value four places back reaches the query, five places back it does not."""
    t = 12
    q = jnp.zeros((1, t, N, H))
    v = jnp.zeros((1, t, K, H)).at[:, 3].set(100.0)
    out = np.asarray(self_attention(q, jnp.zeros((1, t, K, H)), v, window=4, block=5))[0, :, 0, 0]
    np.testing.assert_allclose(out, [0, 0, 0, 25, 25, 25, 25, 0, 0, 0, 0, 0], atol=1e-5)


def test_segments_do_not_leak():
    rng = np.random.default_rng(1)
    q, k, v = randn(rng, 1, 11, N, H), randn(rng, 1, 11, K, H), randn(rng, 1, 11, K, H)
    segment = np.asarray([[1] * 4 + [2] * 5 + [0] * 2])
    out = self_attention(q, k, v, segment, block=3)
    for a, b in ((0, 4), (4, 9)):
        alone = self_attention(q[:, a:b], k[:, a:b], v[:, a:b])
        np.testing.assert_allclose(out[:, a:b], alone, atol=1e-5)
    np.testing.assert_array_equal(out[:, 9:], 0.0)
    other = self_attention(q, k.at[:, :4].set(9.0), v.at[:, 9:].set(7.0), segment, block=3)
    np.testing.assert_array_equal(out[:, 4:9], other[:, 4:9])


def naive_attention(q, k, v, see_bts):
    """The textbook in float32, differentiable by JAX itself."""
    k, v = jnp.repeat(k, N // K, 2), jnp.repeat(v, N // K, 2)
    score = jnp.where(jnp.asarray(see_bts)[:, None], jnp.einsum("btnh,bsnh->bnts", q, k) * H**-0.5, -jnp.inf)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(score, -1), v)


def shared_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(position, segment, parent) of two rows: a prompt of 5 with responses of 4, 6 and 3; two such groups."""
    segment = [1] * 5 + [2] * 4 + [3] * 6 + [4] * 3, [1] * 3 + [2] * 4 + [3] * 2 + [4] * 2 + [5] * 3 + [6] * 4
    parent = [1] * 18, [1] * 9 + [4] * 9
    pos = [*range(9), *range(5, 11), *range(5, 8)], [*range(7), 3, 4, *range(5), *range(2, 6)]
    return tuple(np.asarray(x, np.int32) for x in (pos, segment, parent))


def shared_see(window: int | None) -> np.ndarray:
    """Who sees whom in `shared_rows`, pair by pair."""
    pos, segment, parent = shared_rows()
    see = np.zeros((2, 18, 18), bool)
    for b, i, j in np.ndindex(2, 18, 18):
        family = segment[b, j] in (segment[b, i], parent[b, i])
        see[b, i, j] = j <= i and family and (window is None or pos[b, i] - pos[b, j] < window)
    return see


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("block", [512, 5, 1])
def test_values_and_gradients_are_those_of_the_plain_form(window, block):
    rng = np.random.default_rng(2)
    q, k, v, up = (randn(rng, 2, 18, n, H) for n in (N, K, K, N))
    pos, segment, parent = map(jnp.asarray, shared_rows())

    @jax.jit
    def ours(q, k, v):
        return attention.self_attention(q, k, v, pos, segment, window, block, parent_bt=parent)

    see = shared_see(window)
    np.testing.assert_allclose(ours(q, k, v), naive_attention(q, k, v, see), atol=1e-5)
    got = jax.jit(jax.grad(lambda *x: (ours(*x) * up).sum(), (0, 1, 2)))(q, k, v)
    expected = jax.jit(jax.grad(lambda *x: (naive_attention(*x, see) * up).sum(), (0, 1, 2)))(q, k, v)
    for mine, theirs in zip(got, expected, strict=True):
        assert np.abs(theirs).max() > 0.1
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("block", [512, 5])
def test_sinks_are_a_column_of_the_softmax_that_is_dropped(window, block):
    """Values and gradients, the sinks' own too, of an extra logit per query head."""
    rng = np.random.default_rng(6)
    q, k, v, up = (randn(rng, 2, 18, n, H) for n in (N, K, K, N))
    sink = randn(rng, N)
    pos, segment, parent = map(jnp.asarray, shared_rows())
    see = shared_see(window)

    def ours(q, k, v, sink):
        return attention.self_attention(q, k, v, pos, segment, window, block, parent_bt=parent, sink_n=sink)

    def naive(q, k, v, sink):
        k, v = jnp.repeat(k, N // K, 2), jnp.repeat(v, N // K, 2)
        score = jnp.where(jnp.asarray(see)[:, None], jnp.einsum("btnh,bsnh->bnts", q, k) * H**-0.5, -jnp.inf)
        column = jnp.broadcast_to(sink[None, :, None, None], (*score.shape[:-1], 1))
        weight = jax.nn.softmax(jnp.concatenate([score, column], -1), -1)[..., :-1]
        return jnp.einsum("bnts,bsnh->btnh", weight, v)

    np.testing.assert_allclose(jax.jit(ours)(q, k, v, sink), naive(q, k, v, sink), atol=1e-5)
    got, expected = (
        jax.jit(jax.grad(lambda *x, how=how: (how(*x) * up).sum(), (0, 1, 2, 3)))(q, k, v, sink)
        for how in (ours, naive)
    )
    for mine, theirs in zip(got, expected, strict=True):
        assert np.abs(theirs).max() > 0.1
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


def test_a_sink_beside_padding_gives_zeros_and_finite_gradients():
    rng = np.random.default_rng(7)
    q, k, v, sink = randn(rng, 1, 6, N, H), randn(rng, 1, 6, K, H), randn(rng, 1, 6, K, H), randn(rng, N)
    mask = jnp.asarray([[1, 1, 1, 0, 0, 0]])

    def out(sink):
        return attention.self_attention(q, k, v, jnp.arange(6)[None], mask, None, 2, sink_n=sink)

    np.testing.assert_array_equal(out(sink)[:, 3:], 0.0)
    np.testing.assert_allclose(out(sink - 1e9), self_attention(q, k, v, mask), atol=1e-6)
    assert np.isfinite(jax.grad(lambda s: jnp.exp(out(s)).sum())(sink)).all()


def test_the_mass_of_a_sink_has_its_own_label():
    """One key and one sink of equal logits halve the mass; heads differ."""
    q = attention.split_heads(jnp.zeros((1, 1, N, H)), K)
    key, hot = jnp.zeros((1, K, 1, H)), jnp.asarray([[[1.0, 0.0, 0.0]]])
    acc = attention.visit(attention.start(q, 3), q, key, key + 2.0, jnp.asarray(True), hot)
    out, mass = attention.finish(attention.add_sink(acc, jnp.log(jnp.asarray([1.0, 3.0, 1.0, 0.25])), 2), jnp.float32)
    expected = np.float32([1 / 2, 3 / 4, 1 / 2, 1 / 5])
    np.testing.assert_allclose(attention.join_heads(mass, 1)[0, 0, :, 2], expected, rtol=1e-6)
    np.testing.assert_allclose(attention.join_heads(mass, 1).sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(attention.join_heads(out, 1)[0, 0, :, 0], 2 * (1 - expected), rtol=1e-6)


@pytest.mark.parametrize("window", [None, 4])
def test_pairs_of_blocks_that_are_left_out_hold_no_visible_key(window):
    size = 3
    pos, segment, parent = (jnp.asarray(x).reshape(2, -1, size).swapaxes(0, 1) for x in shared_rows())
    sight = attention.Sight(pos, segment, parent, None if window is None else jnp.int32(window))
    visited = np.asarray(sight.partners())
    needed = shared_see(window).reshape(2, 6, size, 6, size).any((0, 2, 4))
    assert (visited >= needed).all()
    assert not np.triu(visited, 1).any()


def test_the_cost_of_another_response_is_its_own():
    """Blocks visited grow by the same number with each response: none between responses."""
    size, prompt, response = 8, 4, 3  # in blocks

    def visited(responses: int) -> int:
        number = [1] * prompt + [2 + i for i in range(responses) for _ in range(response)]
        segment = np.repeat(np.asarray(number, np.int32), size).reshape(-1, 1, size)
        sight = attention.Sight(np.zeros_like(segment), segment, np.ones_like(segment), None)
        return int(jax.tree.map(jnp.asarray, sight).partners().sum())

    assert [visited(g) for g in (0, 1, 2, 8)] == [10, 28, 46, 154]  # + 3 * 4 + 6 for each


def test_a_row_of_32768_goes_backward_in_linear_memory():
    """By the compiler's own account; its blocks of weights alone would be 16 GiB."""

    def bytes_needed(t: int) -> int:
        q, k, ids = (
            jax.ShapeDtypeStruct(s, d) for s, d in (((1, t, N, H), "f4"), ((1, t, K, H), "f4"), ((1, t), "i4"))
        )

        def loss(q, k, v, pos, segment, parent):
            return jnp.square(attention.self_attention(q, k, v, pos, segment, parent_bt=parent)).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, k, ids, ids, ids).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long = bytes_needed(8192), bytes_needed(32768)
    assert long < 4.5 * short
    assert long < 100 * 2**20


@pytest.mark.parametrize("segment", [[0] * 8, [1] * 5 + [0] * 3])
def test_rows_without_a_visible_key_give_zeros_and_finite_gradients(segment):
    rng = np.random.default_rng(3)
    q, k, v = randn(rng, B, 8, N, H), randn(rng, B, 8, K, H), randn(rng, B, 8, K, H)
    mask = np.asarray([segment] * B)
    out = self_attention(q, k, v, mask, block=4)
    np.testing.assert_array_equal(np.asarray(out)[mask == 0], 0.0)
    for g in jax.jit(jax.grad(lambda *x: jnp.exp(self_attention(*x, mask, block=4)).sum(), (0, 1, 2)))(q, k, v):
        assert np.isfinite(g).all()
        np.testing.assert_array_equal(np.asarray(g)[mask == 0], 0.0)


def test_bfloat16_keeps_a_float32_softmax():
    rng = np.random.default_rng(4)
    t = 300
    q, k, v = (randn(rng, 1, t, n, H).astype(jnp.bfloat16) for n in (N, K, K))
    out = self_attention(q, k, v, block=64)
    assert out.dtype == jnp.bfloat16
    see = (np.arange(t)[None] <= np.arange(t)[:, None])[None]
    expected, _ = plain(*(x.astype(jnp.float32) for x in (q, k, v)), see)
    np.testing.assert_allclose(np.asarray(out, np.float32), expected, atol=0.02)
