"""Where keys and values live, and how a query reads them. One interface for prefill, decoding and replay.

Three stores, all made of the same per-layer pair (k, v) of shape [rows, K, length, H]:

    rows     [B, K, S, H]    each slot's own tokens: position = row's base + index
    prefix   [1, K, P, H]    one of X shared prefixes, stored once however many rows attend to it
    fresh    [B, K, C, H]    the tokens of the running call; a decode chunk appends here, at one index for all rows,
                             and the rows are written once when the chunk ends

The rows are read only inside the compiled decode loop, so the loop never copies a cache: the cost of an append is one
small update per layer, whatever the length of the context.

Legend: B rows, T query length, S row capacity, X prefixes, P prefix capacity, K kv heads, G = N/K, H head dim,
        L layers, C labels.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from noisyjax.models import attention
from noisyjax.models.config import ModelConfig
from noisyjax.records import LABELS

BLOCK = 512
"""Keys visited at a time where a cache is visited in blocks, and the grain of prefix capacities."""
GRAIN = 128
"""Row capacities are multiples of this."""
WHOLE = 4096
"""Longest cache that decoding visits in one piece: XLA's CPU backend copies a block out before it multiplies."""


class KV(NamedTuple):
    """Keys and values of one layer (or of all, with a leading [L], when the layers are stacked)."""

    k: jax.Array
    v: jax.Array


class View(NamedTuple):
    """What the rows of a call may see, beside their fresh tokens. Small arrays, sent with every call.

    base_b: tokens of the shared prefix before each row's own (0 without one); prefix_b: index of that prefix, -1 for
    none; filled_b: the row's own tokens in its cache; row_blocks: blocks to visit for the longest row; prefix_length_x:
    tokens of each prefix that some row of this call sees, else 0.
    Label ids (uint8) of every stored key, row_label_bs and prefix_label_xs, are only read when mass is captured.
    """

    base_b: Any
    prefix_b: Any
    filled_b: Any
    row_blocks: Any
    prefix_length_x: Any
    row_label_bs: Any
    prefix_label_xs: Any


def allocate(cfg: ModelConfig, rows: int, length: int, dtype: jnp.dtype, stacked: bool, sharding: Any = None) -> Any:
    """Zeroed store: a list of L KV pairs, or one pair with a leading [L]."""
    shape = (*([cfg.n_layers] if stacked else []), rows, cfg.n_kv_heads, length, cfg.head_dim)

    def pair() -> KV:
        return KV(jnp.zeros(shape, dtype, device=sharding), jnp.zeros(shape, dtype, device=sharding))

    return pair() if stacked else [pair() for _ in range(cfg.n_layers)]


def n_blocks(tokens: int) -> int:
    """Blocks that hold `tokens` keys."""
    return -(-int(tokens) // BLOCK)


def capacity(tokens: int) -> int:
    """The row capacity for `tokens`: a multiple of GRAIN, and of BLOCK where the row is visited in blocks."""
    grain = GRAIN if tokens <= WHOLE else BLOCK
    return -(-int(tokens) // grain) * grain


def one_hot_labels(label_bs: jax.Array) -> jax.Array:
    """float32 [B, S, 16]: one column per label, padded to a width that kernels like."""
    return jax.nn.one_hot(label_bs, 16, dtype=jnp.float32)


N_LABELS = 16
assert len(LABELS) <= N_LABELS


class Stored(NamedTuple):
    """What one layer's queries read: the rows' own KV (or None), X prefixes, and one-hot labels of both or None."""

    rows: KV | None
    prefixes: tuple[KV, ...]
    row_hot_bsc: jax.Array | None = None
    prefix_hot_xsc: jax.Array | None = None


def attend_stored(
    acc: attention.Accumulator,
    q_bkrh: jax.Array,
    q_pos_bt: jax.Array,
    stored: Stored,
    view: View,
    window: int | jax.Array | None,
    whole: bool = False,
) -> attention.Accumulator:
    """Visit the shared prefixes and then the rows' own caches.

    A prefix that no row of the call sees costs nothing. Caches are visited block by block, so that unfilled blocks
    cost nothing either; with `whole` (decoding, where cutting a block out costs more than reading all of it), a cache
    of up to WHOLE keys is visited in one piece.
    """
    groups = q_bkrh.shape[2] // q_pos_bt.shape[1]
    b = q_pos_bt.shape[0]

    def see(inside_bs: jax.Array, key_pos_bs: jax.Array) -> jax.Array:
        if window is None:  # every stored key lies before every query of the call
            return inside_bs[:, None, None, :]
        return attention.causal(q_pos_bt, key_pos_bs, groups, window) & inside_bs[:, None, None, :]

    for x, prefix in enumerate(stored.prefixes):
        length, mine_b = view.prefix_length_x[x], view.prefix_b == x
        hot = None if stored.prefix_hot_xsc is None else stored.prefix_hot_xsc[x : x + 1]

        def visit_prefix(acc, kv: KV, index_s, hot, length=length, mine_b=mine_b):
            inside_bs = mine_b[:, None] & (index_s < length)[None]
            visible = see(inside_bs, jnp.broadcast_to(index_s, (b, index_s.shape[0])))
            return _visit_shared(acc, q_bkrh, kv, visible, hot)

        acc = jax.lax.cond(
            length > 0,
            lambda acc, kv=prefix, hot=hot, visit=visit_prefix, length=length: _visit_blocks(
                acc, kv, hot, visit, (length + BLOCK - 1) // BLOCK, whole
            ),
            lambda acc: acc,
            acc,
        )
    if stored.rows is None:
        return acc

    def visit_rows(acc, kv: KV, index_s, hot):
        visible = see(index_s < view.filled_b[:, None], view.base_b[:, None] + index_s)
        return attention.visit(acc, q_bkrh, kv.k, kv.v, visible, hot)

    return _visit_blocks(acc, stored.rows, stored.row_hot_bsc, visit_rows, view.row_blocks, whole)


def _visit_blocks(acc: attention.Accumulator, kv: KV, hot, visit: Callable, blocks: jax.Array, whole: bool):
    """`visit(acc, kv, index_s, hot)` for all keys at once, or for `blocks` blocks of them, one after the other."""
    length = kv.k.shape[2]
    if length <= (WHOLE if whole else BLOCK):
        return visit(acc, kv, jnp.arange(length), hot)

    def body(i: jax.Array, acc: attention.Accumulator) -> attention.Accumulator:
        def cut(x: jax.Array, axis: int) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(x, i * BLOCK, BLOCK, axis, allow_negative_indices=False)

        block = KV(cut(kv.k, 2), cut(kv.v, 2))
        return visit(acc, block, i * BLOCK + jnp.arange(BLOCK), None if hot is None else cut(hot, 1))

    return jax.lax.fori_loop(0, blocks, body, acc)


def _visit_shared(
    acc: attention.Accumulator, q: jax.Array, kv: KV, visible: jax.Array, hot: jax.Array | None
) -> attention.Accumulator:
    """`attention.visit` for keys that all rows share: the rows fold into the query axis, so the keys are read once."""
    b, n_kv, r, _ = q.shape

    def fold(x: jax.Array) -> jax.Array:  # [B, K, R, ...] -> [1, K, B*R, ...]
        return x.swapaxes(0, 1).reshape(1, n_kv, b * r, *x.shape[3:])

    def unfold(x: jax.Array) -> jax.Array:
        return x.reshape(n_kv, b, r, *x.shape[3:]).swapaxes(0, 1)

    visible = jnp.broadcast_to(visible, (b, 1, r, visible.shape[-1])).reshape(1, 1, b * r, -1)
    return jax.tree.map(unfold, attention.visit(jax.tree.map(fold, acc), fold(q), *kv, visible, hot))


def put(x: jax.Array, new: jax.Array, at: jax.Array, axis: int) -> jax.Array:
    """x with `new` written from index `at` of an axis on: one index for all rows (axis 0), or one for each, [B]."""
    new = new.astype(x.dtype)
    if at.ndim == 0:
        return jax.lax.dynamic_update_slice_in_dim(x, new, at, axis)
    return jax.vmap(lambda x, new, at: jax.lax.dynamic_update_slice_in_dim(x, new, at, axis - 1))(x, new, at)


def write(store: Any, fresh: Any, offset_b: jax.Array) -> Any:
    """Copy fresh tokens [B, K, T, H] of every layer into rows [B, K, S, H], row b from index offset_b[b] on.

    The caller keeps offset + T within the capacity; what lies beyond a row's valid tokens is overwritten later.
    """

    def one_row(row_ksh: jax.Array, new_kth: jax.Array, offset: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(row_ksh, new_kth, (0, offset, 0))

    rows = jax.vmap(one_row)
    if isinstance(store, KV):  # stacked: the same offsets for every layer
        rows = jax.vmap(rows, in_axes=(0, 0, None))
    return jax.tree.map(lambda old, new: rows(old, new.astype(old.dtype), offset_b), store, fresh)


def copy_row(store: Any, tile: Any, source: jax.Array, target: jax.Array) -> Any:
    """Copy row `source` of a prefilled tile [R, K, T, H] to the start of row `target` of the store, every layer."""

    def copy(old: jax.Array, new: jax.Array) -> jax.Array:
        batch = old.ndim - 4
        row = jax.lax.dynamic_slice_in_dim(new, source, 1, batch)
        return jax.lax.dynamic_update_slice_in_dim(old, row[..., : old.shape[-2], :], target, batch)

    return jax.tree.map(copy, store, tile)


def idle_view(rows: int, capacity: int, prefixes: int, prefix_capacity: int) -> View:
    """A view of empty rows and no prefix, in host memory; the scheduler fills a copy of it in."""
    return View(
        base_b=np.zeros(rows, np.int32),
        prefix_b=np.full(rows, -1, np.int32),
        filled_b=np.zeros(rows, np.int32),
        row_blocks=np.int32(0),
        prefix_length_x=np.zeros(prefixes, np.int32),
        row_label_bs=np.zeros((rows, capacity), np.uint8),
        prefix_label_xs=np.zeros((prefixes, prefix_capacity), np.uint8),
    )
