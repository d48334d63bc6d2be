"""Attention on a TPU by JAX's own splash kernel, told while it runs what it may skip: rows of training, stored keys.

The kernel keeps a running softmax over blocks of keys, and leaves out the blocks that a table says nobody sees. Its
makers build table and mask once, on the host, for one arrangement of a row. Here both come with the rows: the table is
worked out from them, and the mask from one number per query (`slots`), so that a program serves every arrangement.

Legend: B batch, T query length, S key length, N query heads, K kv heads, R = T*N/K, H head dim, I and J blocks of
        queries and of keys, W blocks of keys that a block of queries visits, C labels.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as stock
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask_info import MaskInfo
from jax.sharding import PartitionSpec

from ..attention import MASKED, NOTHING, SAVED, Accumulator, merge
from ..sharding import Layout, platform
from . import slots

Window = int | None


class Visits(NamedTuple):
    """The blocks of keys that a block of queries visits, in order, and which of them there are, int32. What there is
    not repeats the last: a block that is there already is not fetched again."""

    block_biw: jax.Array
    on_biw: jax.Array


class Rows(NamedTuple):
    """What the kernel is told of its rows beside queries, keys and values, int32.

    code_bt: what the mask is worked out from. group_bt, key_group_bs: only keys of its group are seen by a query.
    queries: the blocks of queries that visit a block of keys, [B, W, J], for going backward; None without it.
    """

    code_bt: jax.Array
    group_bt: jax.Array
    key_group_bs: jax.Array
    keys: Visits
    queries: Visits | None = None


def _listed(see_bij: jax.Array, most: int) -> Visits:
    """The first `most` partners of each block; none beyond them counts."""
    count = see_bij.sum(-1, keepdims=True)
    place = jnp.arange(most)
    order = jnp.argsort(~see_bij, axis=-1, stable=True)
    listed = jnp.take_along_axis(order, jnp.minimum(place, jnp.maximum(count - 1, 0)), axis=-1)
    return Visits(listed.astype(jnp.int32), (place < count).astype(jnp.int32))


def _kernel(
    q_nth: jax.Array,
    k_ksh: jax.Array,
    v_ksh: jax.Array,
    sink_n: jax.Array | None,
    row: Rows,
    *,
    mask: Callable[[jax.Array, jax.Array], jax.Array],
    interpret: bool,
    with_lse: bool = False,
) -> Any:
    """One row, [N, T, H]; with the log-sum-exp [N, T] if asked, and then without a gradient."""
    q_size, size = slots.block(q_nth.shape[1]), slots.block(k_ksh.shape[1])

    def info(visits: Visits) -> MaskInfo:
        block, on = (x[None] for x in visits)
        # Declared for numpy's arrays, which its makers hold; the kernel takes any.
        return MaskInfo(block, None, on, None, row.code_bt)  # type: ignore[arg-type]

    keys = info(row.keys)
    kernel = stock.SplashAttentionKernel(
        keys,
        keys,
        None if row.queries is None else info(row.queries),
        block_sizes=stock.BlockSizes(
            block_q=q_size,
            block_kv=size,
            block_q_dkv=q_size,
            block_kv_dkv=size,
            block_kv_dkv_compute=size,
            block_q_dq=q_size,
            block_kv_dq=size,
        ),
        is_mqa=False,
        save_residuals=with_lse,
        mask_value=stock.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=SAVED,
        mask_function=mask,
        interpret=interpret,
    )
    scaled_nth = q_nth * q_nth.shape[-1] ** -0.5
    return kernel(scaled_nth, k_ksh, v_ksh, stock.SegmentIds(row.group_bt, row.key_group_bs), sink_n)


def _over_mesh(
    one: Callable[..., Any],
    layout: Layout | None,
    q_bnth: jax.Array,
    k_bksh: jax.Array,
    v_bksh: jax.Array,
    sink_n: jax.Array | None,
    rows: Rows,
) -> Any:
    """`one(q_nth, k_ksh, v_ksh, sink_n, row)` for every row, on the device that holds the row and the heads."""
    every = jax.vmap(one, in_axes=(0, 0, 0, None, 0))
    if layout is None:
        return every(q_bnth, k_bksh, v_bksh, sink_n, rows)
    n, kv, batch = q_bnth.shape[1], k_bksh.shape[1], layout.batch_axes(q_bnth.shape[0]) or None
    cut, kv_cut = layout.cut("heads", n), layout.cut("kv_heads", kv)

    def local(q_bnth: jax.Array, k_bksh: jax.Array, v_bksh: jax.Array, sink_n: Any, rows: Rows) -> Any:
        if cut is not None and kv_cut is None:  # key-value heads are whole: take those of this device's query heads
            own, per = q_bnth.shape[1], n // kv
            step = math.gcd(own, per)
            heads = (jax.lax.axis_index(cut) * own + jnp.arange(0, own, step)) // per
            k_bksh, v_bksh = k_bksh[:, heads], v_bksh[:, heads]
        return every(q_bnth, k_bksh, v_bksh, sink_n, rows)

    by_head, by_kv = PartitionSpec(batch, cut), PartitionSpec(batch, kv_cut)
    specs = (by_head, by_kv, by_kv, PartitionSpec(cut), PartitionSpec(batch))
    run = jax.shard_map(local, mesh=layout.mesh, in_specs=specs, out_specs=by_head, check_vma=False)
    return run(q_bnth, k_bksh, v_bksh, sink_n, rows)


# ---- rows of training


@dataclass(frozen=True)
class _InSlots:
    """The mask of rows in slots. A value, not a closure: equal ones share a program."""

    length: int
    window: Window

    def __call__(self, code: jax.Array, key: jax.Array) -> jax.Array:
        return slots.visible(code, key, self.length, self.window)


class Attention:
    """Attention of rows in slots to themselves; made once for all layers. Differentiable.

    Args:
        code_bt, group_bt: of the rows, int32 (`slots`).
        windows: all that the layers have; a layer whose window is a number that the program works out has one of them.
        reach: blocks of keys that a block of queries visits at most (`slots.partners`).
        layout: the mesh that rows and heads are cut over; None for one device.
        wide: the number that stands for no window.
    """

    def __init__(
        self,
        code_bt: jax.Array,
        group_bt: jax.Array,
        windows: Sequence[Window],
        reach: int,
        layout: Layout | None,
        wide: int,
    ) -> None:
        def rows(window: Window) -> Rows:
            see_bij = slots.partners(code_bt, group_bt, window)
            queries = (x.swapaxes(1, 2) for x in _listed(see_bij.swapaxes(1, 2), see_bij.shape[1]))
            return Rows(code_bt, group_bt, group_bt, _listed(see_bij, reach), Visits(*queries))

        self.layout, self.wide = layout, wide
        self.rows = {window: rows(window) for window in dict.fromkeys(windows)}

    def __call__(
        self, q_btnh: jax.Array, k_btkh: jax.Array, v_btkh: jax.Array, window: Any, sink_n: jax.Array | None
    ) -> jax.Array:
        """[B, T, N, H]; zeros for padding. sink_n: a logit per query head without a value; None for none."""
        given = (q_btnh.swapaxes(1, 2), k_btkh.swapaxes(1, 2), v_btkh.swapaxes(1, 2), sink_n)
        if isinstance(window, jax.Array):
            ways = [functools.partial(self._one, of) for of in self.rows]
            numbers = jnp.asarray([self.wide if of is None else of for of in self.rows], window.dtype)
            out_bnth = jax.lax.switch(jnp.argmax(numbers == window), ways, *given)
        else:
            out_bnth = self._one(window, *given)
        return out_bnth.swapaxes(1, 2)

    def _one(self, window: Window, q: jax.Array, k: jax.Array, v: jax.Array, sink_n: jax.Array | None) -> jax.Array:
        rows, mask = self.rows[window], _InSlots(q.shape[2], window)
        one = functools.partial(_kernel, mask=mask, interpret=platform(self.layout) != "tpu")
        return jnp.where(rows.group_bt[:, None, :, None] > 0, _over_mesh(one, self.layout, q, k, v, sink_n, rows), 0)


# ---- stored keys


def _beyond(low: jax.Array, key: jax.Array) -> jax.Array:
    """The mask of stored keys: those whose index is above the query's number."""
    return key > low


def visit(
    acc: Accumulator,
    q_btnh: jax.Array,
    k_bksh: jax.Array,
    v_bksh: jax.Array,
    length_b: jax.Array,
    low_bt: jax.Array,
    layout: Layout | None,
    label_bsc: jax.Array | None = None,
) -> Accumulator:
    """`attention.visit` of stored keys that all lie before the queries; without a gradient.

    Args:
        acc: of q_btnh as `attention.split_heads` orders it, [B, K, R, H].
        length_b: keys that there are; what is stored behind them is not seen.
        low_bt: index above which a query sees keys, int32; -1 for all.
        label_bsc: one-hot labels of the keys, where mass is collected: it is what attention with labels for values
            gives, in float32.

    T and S are multiples of 128. Blocks of keys that nobody sees cost next to nothing.
    """
    (b, t), s = q_btnh.shape[:2], k_bksh.shape[2]
    size, interpret = slots.block(s), platform(layout) != "tpu"
    first_j = jnp.arange(0, s, size)
    least_bi1 = low_bt.reshape(b, -1, slots.block(t)).min(-1)[:, :, None]
    see_bij = (first_j < length_b[:, None, None]) & (first_j + size - 1 > least_bi1)
    inside_bs = (jnp.arange(s) < length_b[:, None]).astype(jnp.int32)
    rows = Rows(low_bt.astype(jnp.int32), jnp.ones((b, t), jnp.int32), inside_bs, _listed(see_bij, s // size))
    one = functools.partial(_kernel, mask=_beyond, interpret=interpret, with_lse=True)
    q_bnth = q_btnh.swapaxes(1, 2)
    out_bnth, (lse_bnt,) = _over_mesh(one, layout, q_bnth, k_bksh, v_bksh, None, rows)
    mass_bnth = None
    if label_bsc is not None:
        hot_bksc = jnp.broadcast_to(label_bsc[:, None], (b, k_bksh.shape[1], *label_bsc.shape[1:]))
        q32, k32, hot32 = (x.astype(jnp.float32) for x in (q_bnth, k_bksh, hot_bksc))
        mass_bnth, _ = _over_mesh(one, layout, q32, k32, hot32, None, rows)

    def whole(x_bnt: jax.Array) -> jax.Array:  # [B, N, T, ...] -> [B, K, R, ...]; nothing for who sees no key
        seen = (lse_bnt > MASKED).reshape(b, -1, t, *[1] * (x_bnt.ndim - 3))
        return jnp.where(seen, x_bnt, 0).astype(jnp.float32).reshape(*acc.max_bkr.shape, *x_bnt.shape[3:])

    top_bkr = jnp.where(lse_bnt > MASKED, lse_bnt, NOTHING).reshape(acc.max_bkr.shape)
    mass = None if mass_bnth is None else whole(mass_bnth)
    return merge(acc, Accumulator(whole(out_bnth), top_bkr, whole(jnp.ones_like(lse_bnt)), mass))
