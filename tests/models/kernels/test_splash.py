"""The splash kernel, interpreted, against the blockwise form: the same rows, forwards and backwards.

Legend: B batch, T query length, N query heads, K kv heads, H head dim.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from noisyjax.models import attention
from noisyjax.models.decoder import EVERYTHING
from noisyjax.models.kernels import slots
from noisyjax.models.kernels.splash import Attention, visit
from noisyjax.models.sharding import PRESETS, Layout

B, T, N, K, H = 2, 384, 4, 2, 8
LAID = [[(100, 128, 0), (128, 200, 1), (256, 260, 1)], [(120, 128, 0), (128, 131, 1), (256, 384, 0)]]
"""Rows of (begin, end) and whether it is a response to the first prompt: one row with two of them, one with a response
and another sequence. They lie in slots of 128 tokens, the prompts at their slots' ends."""


def rows() -> tuple[np.ndarray, ...]:
    """(positions, segments, parents, codes), int32 [B, T]."""
    pos, segment, parent = np.zeros((3, B, T), np.int32)
    code = np.tile(np.arange(T, dtype=np.int32), (B, 1))
    for b, row in enumerate(LAID):
        for number, (begin, end, response) in enumerate(row, 1):
            place, first = np.arange(begin, end), row[0][1] - row[0][0] if response else 0
            pos[b, place], segment[b, place] = np.arange(end - begin) + first, number
            parent[b, place] = 1 if response else number
            code[b, place] = slots.encode(place, begin // 128 * 128, row[0][1] if response else 0, T)
    return pos, segment, parent, code


def arrays(n_kv: int = K) -> tuple[jax.Array, ...]:
    """q, k, v, a sink per head and a cotangent of the output."""
    draw = np.random.default_rng(0)
    shapes = ((B, T, N, H), (B, T, n_kv, H), (B, T, n_kv, H), (N,), (B, T, N, H))
    return tuple(jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in shapes)


def with_gradient(run, q, k, v, sink, up):
    """(the output, its gradients with respect to q, k, v and the sinks)."""
    out, pull = jax.vjp(run, q, k, v, sink)
    return out, *pull(up)


@functools.cache
def blockwise(window, sinks: bool, n_kv: int = K):
    pos, segment, parent, _ = rows()

    def run(q, k, v, sink):
        sink = sink if sinks else None
        return attention.self_attention(q, k, v, pos, segment, window, 128, parent_bt=parent, sink_n=sink)

    return jax.jit(functools.partial(with_gradient, run))(*arrays(n_kv))


def kernel(q, k, v, sink, window, *, windows, reach=3, layout=None):
    _, _, parent, code = map(jnp.asarray, rows())
    return Attention(code, parent, windows, reach, layout, EVERYTHING)(q, k, v, window, sink)


def assert_same(got, expected):
    for name, a, b in zip(("out", "q", "k", "v", "sink"), got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(("window", "sinks"), [(None, False), (40, True)])
def test_shared_rows_windows_and_sinks(window, sinks):
    """Grouped heads, rows of several sequences, blocks that nobody sees, padding."""

    def run(q, k, v, sink):
        return kernel(q, k, v, sink if sinks else None, window, windows=(window,))

    got = jax.jit(functools.partial(with_gradient, run))(*arrays())
    assert_same(got, blockwise(window, sinks))
    padding = rows()[1] == 0
    np.testing.assert_array_equal(np.asarray(got[0])[padding], 0)
    assert float(jnp.abs(got[4]).max() > 0.01) == sinks


def test_heads_over_a_mesh_and_a_window_that_a_scan_works_out():
    """Two kv heads over four devices, rows over two; layers of one scan have their windows as numbers."""
    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(2, 4), ("data", "tensor"))
    layout = Layout(mesh, PRESETS["tensor"])

    def run(q, k, v, sink, window):
        return kernel(q, k, v, sink, window, windows=(None, 40), layout=layout)

    program = jax.jit(lambda window, *xs: with_gradient(lambda *qkvs: run(*qkvs, window), *xs))
    assert_same(program(jnp.int32(40), *arrays()), blockwise(40, True))
    assert_same(program(jnp.int32(EVERYTHING), *arrays()), blockwise(None, True))


def test_no_block_beyond_the_reach_is_visited():
    """Two blocks of keys are all that a block of queries sees here, if its own is one of them: the reach is exact."""
    _, _, parent, code = rows()
    assert slots.partners(code, parent).sum(-1).max() == 2
    q, k, v, *_ = arrays()
    got = jax.jit(lambda *x: kernel(*x, None, None, windows=(None,), reach=2))(q, k, v)
    np.testing.assert_allclose(got, blockwise(None, False)[0], atol=1e-5)


@pytest.mark.parametrize("window", [None, 50])
def test_stored_keys_and_their_labels(window):
    """Queries behind 300 keys of the first row; the second has none stored. What was seen before stays."""
    draw = np.random.default_rng(1)
    q, k, v = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in ((B, 128, N, H), *[(B, K, T, H)] * 2))
    hot = jax.nn.one_hot(draw.integers(0, 5, (B, T)), 16)
    length, index = jnp.asarray([300, 0]), np.arange(T)
    low = jnp.broadcast_to(-1 if window is None else 300 + jnp.arange(128) - window, (B, 128))
    q_bkrh = attention.split_heads(q, K)
    before = attention.start(q_bkrh, 16)
    before = attention.visit(before, q_bkrh, k[:, :, :3], v[:, :, :3], jnp.asarray(True), hot[:, :3])
    see = (index < length[:, None, None]) & (index > low[..., None])
    see = jnp.tile(see, (1, N // K, 1))[:, None]
    expected = attention.finish(attention.visit(before, q_bkrh, k, v, see, hot), jnp.float32)
    got = attention.finish(jax.jit(lambda acc: visit(acc, q, k, v, length, low, None, hot))(before), jnp.float32)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
