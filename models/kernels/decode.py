"""Attention of decoding on a TPU: the few queries of a step against all that each row has stored.

Rows differ in length, and a store has room for the longest that may come. XLA's products read all of it; this kernel
fetches the blocks in which a row's queries see a key, straight from the store of all layers (a layer cut out of it for
a kernel would be copied). JAX's own paged kernels give a finished softmax. Here it is one part of what a row sees, with
a shared prefix, the tokens of the call and perhaps a sink, so what comes out can be merged with the others'.

Legend: L layers, B rows, K kv heads, G query heads per kv head, T queries of a row, R = G*T as `attention.split_heads`
        orders them, S room of a row, H head dim.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from ..attention import MASKED, NOTHING, Accumulator, merge
from ..sharding import Layout, platform
from . import slots

QUERIES = 16
"""R is filled up to a multiple of it: the rows of a tile of any type."""
LANES = 128
BYTES = 2**20
"""Of a block of keys at most; so many of values stand beside it, and the next two are on their way."""


def visit(
    acc: Accumulator,
    q_bkrh: jax.Array,
    k_lbksh: jax.Array,
    v_lbksh: jax.Array,
    layer: jax.Array,
    length_b: jax.Array,
    low_bt: jax.Array,
    layout: Layout | None,
) -> Accumulator:
    """`attention.visit` of the keys that rows have stored in one layer, all before the queries; no mass, no gradient.

    Args:
        layer: int32 scalar, which of the L.
        length_b: int32 keys that a row has stored; what lies behind them is not seen.
        low_bt: int32 index above which a query sees keys; -1 for all.
        layout: the mesh; rows lie cut along its batch axes, kv heads along their own where they can be.

    S is a multiple of 128.
    """
    b, kv, r, _ = q_bkrh.shape
    q_bkrh = jnp.pad(q_bkrh, ((0, 0), (0, 0), (0, -r % QUERIES), (0, 0)))
    run = functools.partial(_visit, interpret=platform(layout) != "tpu")
    if layout is not None:
        rows, heads = layout.batch_axes(b) or None, layout.cut("kv_heads", kv)
        store, own, by_row = PartitionSpec(None, rows, heads), PartitionSpec(rows, heads), PartitionSpec(rows)
        specs = (PartitionSpec(), by_row, by_row, own, store, store)
        run = jax.shard_map(run, mesh=layout.mesh, in_specs=specs, out_specs=own, check_vma=False)
    out, top, total = run(jnp.reshape(layer, 1), length_b, low_bt, q_bkrh, k_lbksh, v_lbksh)
    return merge(acc, Accumulator(out[:, :, :r], top[:, :, :r, 0], total[:, :, :r, 0], None))


def _block(kv: int, s: int, h: int, itemsize: int) -> int:
    """Keys of a block: few enough for its bytes."""
    sizes = [size for size in (slots.block(s), 256, LANES) if s % size == 0]
    return next((size for size in sizes if kv * size * max(h, LANES) * itemsize <= BYTES), sizes[-1])


def _visit(
    layer_1: jax.Array,
    length_b: jax.Array,
    low_bt: jax.Array,
    q_bkrh: jax.Array,
    k_lbksh: jax.Array,
    v_lbksh: jax.Array,
    *,
    interpret: bool,
) -> Sequence[jax.Array]:
    """On one device: values [B, K, R, H], and maximum and sum [B, K, R, 128], the same in all lanes; float32."""
    (b, kv, r, h), s = q_bkrh.shape, k_lbksh.shape[3]
    size = _block(kv, s, h, k_lbksh.dtype.itemsize)
    # A TPU stores narrow heads with their keys along the lanes, lest half of these be empty: taken otherwise they would
    # be copied.
    along = h % LANES != 0
    store = [x.swapaxes(3, 4) if along else x for x in (k_lbksh, v_lbksh)]
    last_b = jnp.maximum(length_b - 1, 0) // size
    first_b = jnp.minimum((low_bt.min(1) + 1) // size, last_b)

    def keys(i: Any, j: Any, layer_1: Any, first_b: Any, last_b: Any, *_: Any) -> tuple[Any, ...]:
        # Beyond a row's last block it is that one again: what is there already is not fetched.
        at = jnp.minimum(first_b[i] + j, last_b[i])
        return (layer_1[0], i, 0, 0, at) if along else (layer_1[0], i, 0, at, 0)

    def of_row(i: Any, *_: Any) -> tuple[Any, ...]:
        return i, 0, 0, 0

    row = functools.partial(pl.BlockSpec, index_map=of_row)
    block = pl.BlockSpec((None, None, kv, h, size) if along else (None, None, kv, size, h), keys)
    run = pl.pallas_call(
        functools.partial(_body, size=size, n_queries=low_bt.shape[1], along=along),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(b, (last_b - first_b).max() + 1),
            in_specs=[row((None, kv, r, h)), block, block],
            out_specs=[row((None, kv, r, width)) for width in (h, LANES, LANES)],
        ),
        out_shape=[jax.ShapeDtypeStruct((b, kv, r, width), jnp.float32) for width in (h, LANES, LANES)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )
    return run(layer_1, first_b, last_b, length_b, low_bt, q_bkrh, *store)


def _body(
    _layer: Any,
    first_b: Any,
    last_b: Any,
    length_b: Any,
    low_bt: Any,
    q_krh: Any,
    k_ksh: Any,
    v_ksh: Any,
    out_krh: Any,
    top_krx: Any,
    sum_krx: Any,
    *,
    size: int,
    n_queries: int,
    along: bool,
) -> None:
    """A row and one of its blocks; the row's results stay in the vector memory until its last block is done.

    along: keys and values come as [K, H, S].
    """
    i, j = pl.program_id(0), pl.program_id(1)
    at = first_b[i] + j

    @pl.when(j == 0)
    def _start() -> None:
        out_krh[...] = jnp.zeros(out_krh.shape, jnp.float32)
        top_krx[...] = jnp.full(top_krx.shape, NOTHING, jnp.float32)
        sum_krx[...] = jnp.zeros(sum_krx.shape, jnp.float32)

    @pl.when(at <= last_b[i])
    def _add() -> None:
        shape = (q_krh.shape[1], size)
        key_rs = at * size + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        query_rs = jax.lax.broadcasted_iota(jnp.int32, shape, 0) % n_queries
        low_rs = jnp.full(shape, low_bt[i, 0])
        for t in range(1, n_queries):
            low_rs = jnp.where(query_rs == t, low_bt[i, t], low_rs)
        see_rs = (key_rs < length_b[i]) & (key_rs > low_rs)
        for k in range(q_krh.shape[0]):
            score_rs = _product(q_krh[k], k_ksh[k], 0 if along else 1) * q_krh.shape[-1] ** -0.5
            score_rs = jnp.where(see_rs, score_rs, MASKED)
            old_r1 = top_krx[k][:, :1]
            top_r1 = jnp.maximum(old_r1, score_rs.max(-1, keepdims=True))
            weight_rs, fade_r1 = jnp.exp(score_rs - top_r1).astype(v_ksh.dtype), jnp.exp(old_r1 - top_r1)
            out_krh[k] = out_krh[k] * fade_r1 + _product(weight_rs, v_ksh[k], 1 if along else 0)
            sum_krx[k] = sum_krx[k] * fade_r1 + weight_rs.astype(jnp.float32).sum(-1, keepdims=True)
            top_krx[k] = jnp.broadcast_to(top_r1, top_krx.shape[1:])


def _product(x: jax.Array, y: jax.Array, axis: int) -> jax.Array:
    """x [R, X] times y over this axis of y, float32."""
    return jax.lax.dot_general(x, y, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32)
