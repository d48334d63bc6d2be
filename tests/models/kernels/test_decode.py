"""The decode kernel, interpreted, against the products that visit a whole store.

Legend: L layers, B rows, K kv heads, T queries of a row, N query heads, S room of a row, H head dim.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from noisyjax.models import attention
from noisyjax.models.kernels import decode
from noisyjax.models.sharding import PRESETS, Layout

L, B, K, N, S = 3, 4, 2, 6, 1024
LENGTHS = np.array([0, 1, 513, 1000], np.int32)
"""Nothing at all, a single key, one beyond a block, and two blocks that are not full."""


@functools.cache
def arrays(t: int, n_kv: int = K, h: int = 16) -> tuple[jax.Array, ...]:
    """q_btnh, k_lbksh, v_lbksh, and the keys of another part of the context, [B, K, 5, H] twice."""
    draw = np.random.default_rng(0)
    shapes = ((B, t, N, h), *[(L, B, n_kv, S, h)] * 2, *[(B, n_kv, 5, h)] * 2)
    return tuple(jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in shapes)


def low_of(t: int, window: int | None) -> np.ndarray:
    """int32 [B, T]: queries that follow what is stored, the first at once."""
    if window is None:
        return np.full((B, t), -1, np.int32)
    return np.maximum(LENGTHS[:, None] + np.arange(t) - window, -1).astype(np.int32)


def seen(t: int, layer: int, window: int | None, visit_rows, n_kv: int = K, h: int = 16) -> jax.Array:
    """[B, K, R, H]: attention to the stored keys of a layer, and to those of another part before them."""
    q, *store, k_part, v_part = arrays(t, n_kv, h)
    q = attention.split_heads(q, n_kv)
    acc = attention.visit(attention.start(q), q, k_part, v_part, jnp.ones((1, 1, 1, 1), bool))
    return attention.finish(visit_rows(acc, q, *store, layer, low_of(t, window)), jnp.float32)[0]


def whole(acc, q, k, v, layer, low_bt):
    """All keys of the store in one product, what is not seen masked."""
    index = np.arange(S)
    see_bts = (index < LENGTHS[:, None, None]) & (index > low_bt[:, :, None])
    see = jnp.tile(see_bts, (1, q.shape[2] // low_bt.shape[1], 1))[:, None]
    return attention.visit(acc, q, k[layer], v[layer], see)


def by_kernel(acc, q, k, v, layer, low_bt, layout=None):
    run = jax.jit(functools.partial(decode.visit, layout=layout))
    return run(acc, q, k, v, jnp.int32(layer), jnp.asarray(LENGTHS), jnp.asarray(low_bt))


@pytest.mark.parametrize(("t", "window"), [(1, None), (1, 100), (4, None), (4, 3), (4, 600)])
def test_rows_of_all_lengths(t, window):
    """One query and several, each with its own window; a row that has stored nothing sees the other part alone."""
    got, expected = (seen(t, 1, window, visit) for visit in (by_kernel, whole))
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert np.abs(np.asarray(expected - seen(t, 0, window, whole))[1:]).max() > 0.1  # the layer matters


def test_wide_heads():
    """Narrow ones have their keys along the lanes, wide ones do not."""
    got, expected = (seen(4, 2, 600, visit, h=128) for visit in (by_kernel, whole))
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("h", [16, 128])
def test_types_and_many_heads(h, monkeypatch):
    """Half precision, as the weights of a softmax have it; blocks that are smaller than usual."""
    monkeypatch.setattr(decode, "BYTES", 2**17)
    assert (decode._block(2, 1024, h, 2), decode._block(8, 1024, 128, 2)) == (256, 128)
    half = [x.astype(jnp.bfloat16) for x in arrays(1, h=h)[:3]]
    q = attention.split_heads(half[0], K)
    got, expected = (f(attention.start(q), q, *half[1:], 2, low_of(1, None)) for f in (by_kernel, whole))
    for a, b in (
        (x.max_bkr + jnp.log(x.sum_bkr) for x in (got, expected)),
        (attention.finish(x, jnp.float32)[0] for x in (got, expected)),
    ):
        np.testing.assert_allclose(a[1:], b[1:], atol=0.01)


def test_no_more_is_read_than_is_seen():
    """What lies behind a row's length, before its window or in other layers may be anything."""
    t, window = 4, 300
    q, k, v, *_ = arrays(t)
    index, first = np.arange(S), low_of(t, window).min(1)[:, None]
    blocks = (index // 512 * 512 < LENGTHS[:, None]) & (index // 512 * 512 + 511 > first)
    hidden = np.ones((L, B, S), bool)
    hidden[1] = ~blocks
    hidden = hidden[:, :, None, :, None]
    q = attention.split_heads(q, K)
    run = functools.partial(by_kernel, attention.start(q), q, layer=1, low_bt=low_of(t, window))
    got, expected = run(k=jnp.where(hidden, jnp.nan, k), v=jnp.where(hidden, jnp.nan, v)), run(k=k, v=v)
    np.testing.assert_array_equal(got[0][2:], expected[0][2:])
    assert not np.isnan(got[0][2:]).any()


@pytest.mark.parametrize(("shape", "n_kv"), [((2, 2), 2), ((2, 2), 1), ((1, 4), 2)])
def test_rows_and_heads_over_a_mesh(shape, n_kv):
    """Heads that divide; fewer kv heads than devices, which every device then has."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(shape), ("data", "tensor"))
    layout = Layout(mesh, PRESETS["tensor"])
    got = seen(4, 2, 100, functools.partial(by_kernel, layout=layout), n_kv)
    np.testing.assert_allclose(got, seen(4, 2, 100, whole, n_kv), atol=1e-5)
