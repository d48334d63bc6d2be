"""Where keys and values live, and how a query reads them. One interface for prefill, decoding and replay.

Three stores, all made of the same per-layer pair (k, v) of shape [rows, K, length, H]:

    rows     [B, K, S, H]    each slot's own tokens: position = row's base + index
    prefix   [1, K, X*P, H]  X shared prefixes of up to P tokens, stored once however many rows attend to them
    fresh    [B, K, C, H]    the tokens of the running call; a decode chunk appends here, at one index for all rows,
                             and the rows are written once when the chunk ends

The rows are read only inside the compiled decode loop, so the loop never copies a cache: the cost of an append is one
small update per layer, whatever the length of the context.

Legend: B rows, T query length, S row capacity, X prefixes, P prefix capacity, K kv heads, G = N/K, H head dim,
        L layers, C labels.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from noisyjax.models import attention
from noisyjax.models.config import ModelConfig
from noisyjax.records import LABELS

BLOCK = 512
"""Keys visited at a time. Capacities are multiples of it; a row pays for the blocks it fills, not for its capacity."""


class KV(NamedTuple):
    """Keys and values of one layer (or of all, with a leading [L], when the layers are stacked)."""

    k: jax.Array
    v: jax.Array


class View(NamedTuple):
    """What the rows of a call may see, beside their fresh tokens. Small arrays, sent with every call.

    base_b: tokens of the shared prefix before each row's own (0 without one); prefix_b: index of that prefix, -1 for
    none; filled_b: the row's own tokens in its cache; row_blocks: blocks to visit for the longest row; prefix_blocks
    int32 [X*P/BLOCK]: numbers of the prefix blocks to visit, the first n_prefix_blocks of them; prefix_length_x.
    Label ids (uint8) of every stored key: row_label_bs, prefix_label_s; only read when mass is captured.
    """

    base_b: Any
    prefix_b: Any
    filled_b: Any
    row_blocks: Any
    prefix_blocks: Any
    n_prefix_blocks: Any
    prefix_length_x: Any
    row_label_bs: Any
    prefix_label_s: Any


def allocate(cfg: ModelConfig, rows: int, length: int, dtype: jnp.dtype, stacked: bool, sharding: Any = None) -> Any:
    """Zeroed store: a list of L KV pairs, or one pair with a leading [L]."""
    shape = (rows, cfg.n_kv_heads, length, cfg.head_dim)
    if stacked:
        shape = (cfg.n_layers, *shape)
    zeros = jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)
    return KV(zeros(), zeros()) if stacked else [KV(zeros(), zeros()) for _ in range(cfg.n_layers)]


def n_blocks(tokens: int) -> int:
    """Blocks that hold `tokens` keys."""
    return -(-int(tokens) // BLOCK)


def one_hot_labels(label_bs: jax.Array) -> jax.Array:
    """float32 [B, S, 16]: one column per label, padded to a width that kernels like."""
    return jax.nn.one_hot(label_bs, 16, dtype=jnp.float32)


N_LABELS = 16
assert len(LABELS) <= N_LABELS


def attend_stored(
    acc: attention.Accumulator,
    q_bkrh: jax.Array,
    q_pos_bt: jax.Array,
    rows: KV | None,
    prefix: KV | None,
    view: View,
    labels: tuple[jax.Array, jax.Array] | None,
    window: int | None,
) -> attention.Accumulator:
    """Visit the shared prefixes and then the rows' own caches, block by block; unfilled blocks cost nothing.

    labels: one-hot (rows [B, S, C], prefix [1, X*P, C]) when mass is captured.
    """
    groups = q_bkrh.shape[2] // q_pos_bt.shape[1]
    capacity = 0 if prefix is None else prefix.k.shape[2] // view.prefix_length_x.shape[0]

    def visible(inside_bs: jax.Array, key_pos_bs: jax.Array) -> jax.Array:
        if window is None:  # every stored key lies before every query of the call
            return inside_bs[:, None, None, :]
        return attention.causal(q_pos_bt, key_pos_bs, groups, window) & inside_bs[:, None, None, :]

    def prefix_block(i: jax.Array, acc: attention.Accumulator) -> attention.Accumulator:
        assert prefix is not None
        begin = view.prefix_blocks[i] * BLOCK
        which, offset = begin // capacity, begin % capacity
        k, v = (jax.lax.dynamic_slice_in_dim(x, begin, BLOCK, 2) for x in prefix)
        pos_s = offset + jnp.arange(BLOCK)
        mine_b = view.prefix_b == which
        inside_bs = mine_b[:, None] & (pos_s < view.prefix_length_x[which])[None]
        see = visible(inside_bs, jnp.broadcast_to(pos_s, (mine_b.shape[0], BLOCK)))
        hot = labels and jax.lax.dynamic_slice_in_dim(labels[1], begin, BLOCK, 1)
        return _visit_shared(acc, q_bkrh, k, v, see, hot)

    def row_block(i: jax.Array, acc: attention.Accumulator) -> attention.Accumulator:
        assert rows is not None
        k, v = (jax.lax.dynamic_slice_in_dim(x, i * BLOCK, BLOCK, 2) for x in rows)
        index_s = i * BLOCK + jnp.arange(BLOCK)
        see = visible(index_s < view.filled_b[:, None], view.base_b[:, None] + index_s)
        hot = labels and jax.lax.dynamic_slice_in_dim(labels[0], i * BLOCK, BLOCK, 1)
        return attention.visit(acc, q_bkrh, k, v, see, hot)

    if prefix is not None:
        acc = jax.lax.fori_loop(0, view.n_prefix_blocks, prefix_block, acc)
    return acc if rows is None else jax.lax.fori_loop(0, view.row_blocks, row_block, acc)


def _visit_shared(
    acc: attention.Accumulator, q: jax.Array, k: jax.Array, v: jax.Array, see: jax.Array, hot: jax.Array | None
) -> attention.Accumulator:
    """`attention.visit` for keys that all rows share: the rows fold into the query axis, so the keys are read once."""
    b, kv, r, _ = q.shape

    def fold(x: jax.Array) -> jax.Array:  # [B, K, R, ...] -> [1, K, B*R, ...]
        return x.swapaxes(0, 1).reshape(1, kv, b * r, *x.shape[3:])

    def unfold(x: jax.Array) -> jax.Array:
        return x.reshape(kv, b, r, *x.shape[3:]).swapaxes(0, 1)

    see = jnp.broadcast_to(see, (b, 1, r, see.shape[-1])).reshape(1, 1, b * r, -1)
    folded = attention.visit(jax.tree.map(fold, acc), fold(q), k, v, see, hot)
    return jax.tree.map(unfold, folded)


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
        start = [0] * old.ndim
        start[batch] = target
        return jax.lax.dynamic_update_slice(old, row[..., : old.shape[-2], :], start)

    return jax.tree.map(copy, store, tile)


def store_prefix(store: Any, tile: Any, which: jax.Array, prefixes: int) -> Any:
    """Copy a prefilled row [1, K, P, H] into place `which` of the prefix store [1, K, X*P, H], every layer."""

    def copy(old: jax.Array, new: jax.Array) -> jax.Array:
        start = [0] * old.ndim
        start[-2] = which * (old.shape[-2] // prefixes)
        return jax.lax.dynamic_update_slice(old, new, start)

    return jax.tree.map(copy, store, tile)


def idle_view(rows: int, capacity: int, prefixes: int, prefix_capacity: int) -> View:
    """A view of empty rows and no prefix, in host memory; the scheduler fills a copy of it in."""
    return View(
        base_b=np.zeros(rows, np.int32),
        prefix_b=np.full(rows, -1, np.int32),
        filled_b=np.zeros(rows, np.int32),
        row_blocks=np.int32(0),
        prefix_blocks=np.zeros(max(1, prefixes * prefix_capacity // BLOCK), np.int32),
        n_prefix_blocks=np.int32(0),
        prefix_length_x=np.zeros(prefixes, np.int32),
        row_label_bs=np.zeros((rows, capacity), np.uint8),
        prefix_label_s=np.zeros(prefixes * prefix_capacity, np.uint8),
    )
