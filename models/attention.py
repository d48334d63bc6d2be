"""Attention as a running softmax over parts of the keys.

Every use of attention here (training, prefill, decoding, replay of a finished sequence) is the same sum over key
blocks, kept as an accumulator of (weighted values, running maximum, running weight). Parts of a context that lie in
different arrays (a prefix that many rows share, a row's own cache, the tokens of this call) are visited one after the
other and never copied together, and the memory is that of one block of scores, whatever the length.

Legend: B batch, T query length, S key length, N query heads, K kv heads, G = N/K, H head dim,
        R = G*T query rows per kv head, C labels.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

MASKED = -1e30  # finite, so that a row with no visible key gives zeros and finite gradients instead of NaN


class Accumulator(NamedTuple):
    """Running softmax. out_bkrh float32 [B,K,R,H] and mass_bkrc [B,K,R,C] are relative to exp(max_bkr)."""

    out_bkrh: jax.Array
    max_bkr: jax.Array
    sum_bkr: jax.Array
    mass_bkrc: jax.Array | None


def start(q_bkrh: jax.Array, n_labels: int = 0) -> Accumulator:
    """An accumulator that has seen no key. `n_labels` > 0 also collects the attention mass per key label."""
    shape = q_bkrh.shape[:-1]
    return Accumulator(
        jnp.zeros(q_bkrh.shape, jnp.float32),
        jnp.full(shape, MASKED, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, n_labels), jnp.float32) if n_labels else None,
    )


def visit(
    acc: Accumulator,
    q_bkrh: jax.Array,
    k_bksh: jax.Array,
    v_bksh: jax.Array,
    visible: jax.Array,
    label_bsc: jax.Array | None = None,
) -> Accumulator:
    """Add one block of keys to the accumulator.

    Args:
        q_bkrh: queries [B, K, R, H], not yet scaled by H^-0.5.
        k_bksh, v_bksh: keys and values [B, K, S, H]; B may be 1 when all rows share them.
        visible: bool, broadcastable to [B, K, R, S].
        label_bsc: one-hot labels of the keys, float32 [B, S, C] (B may be 1); needed when the accumulator has mass.

    The softmax is float32 whatever the model's type; the weights are cast to the values' type for the product.
    """
    score = jnp.einsum("bkrh,bksh->bkrs", q_bkrh, k_bksh, preferred_element_type=jnp.float32)
    score = jnp.where(visible, score * q_bkrh.shape[-1] ** -0.5, MASKED)
    top = jnp.maximum(acc.max_bkr, score.max(-1))
    weight = jnp.where(visible, jnp.exp(score - top[..., None]), 0.0)
    fade = jnp.exp(acc.max_bkr - top)
    out = jnp.einsum("bkrs,bksh->bkrh", weight.astype(v_bksh.dtype), v_bksh, preferred_element_type=jnp.float32)
    mass = None
    if acc.mass_bkrc is not None and label_bsc is not None:
        mass = acc.mass_bkrc * fade[..., None] + jnp.einsum("bkrs,bsc->bkrc", weight, label_bsc)
    return Accumulator(acc.out_bkrh * fade[..., None] + out, top, acc.sum_bkr * fade + weight.sum(-1), mass)


def finish(acc: Accumulator, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array | None]:
    """Normalise: (out_bkrh in `dtype`, mass_bkrc float32 or None). A row that saw no key gives zeros."""
    scale = jnp.where(acc.sum_bkr > 0, 1.0 / jnp.maximum(acc.sum_bkr, 1e-37), 0.0)[..., None]
    mass = None if acc.mass_bkrc is None else acc.mass_bkrc * scale
    return (acc.out_bkrh * scale).astype(dtype), mass


def split_heads(q_btnh: jax.Array, n_kv: int) -> jax.Array:
    """[B, T, N, H] -> [B, K, R, H]: query head j belongs to kv head j // G, rows ordered (G, T)."""
    b, t, n, h = q_btnh.shape
    return q_btnh.reshape(b, t, n_kv, n // n_kv, h).transpose(0, 2, 3, 1, 4).reshape(b, n_kv, (n // n_kv) * t, h)


def join_heads(out_bkrh: jax.Array, t: int) -> jax.Array:
    """[B, K, R, H] -> [B, T, N, H], the inverse of `split_heads`. Works for any last axis."""
    b, k, r, h = out_bkrh.shape
    return out_bkrh.reshape(b, k, r // t, t, h).transpose(0, 3, 1, 2, 4).reshape(b, t, k * (r // t), h)


def causal(q_pos_bt: jax.Array, k_pos_bs: jax.Array, groups: int, window: int | jax.Array | None = None) -> jax.Array:
    """bool [B, 1, G*T, S]: key position <= query position, and inside the sliding window (self included) if any.

    window 4, query at position 5 sees 2, 3, 4, 5:  5 - 4 < k <= 5.
    """
    q, k = q_pos_bt[:, :, None], k_pos_bs[:, None, :]
    see = k <= q
    if window is not None:
        see &= k > q - window
    return jnp.tile(see, (1, groups, 1))[:, None]


def self_attention(
    q_btnh: jax.Array,
    k_btkh: jax.Array,
    v_btkh: jax.Array,
    pos_bt: jax.Array,
    segment_bt: jax.Array,
    window: int | jax.Array | None = None,
    block: int = 1024,
) -> jax.Array:
    """Causal attention of a sequence to itself, [B, T, N, H]; memory O(block x block), differentiable.

    pos_bt int32 are positions; segment_bt int32 numbers the packed sequences, 0 for padding: a query sees keys of its
    own segment only, and a padding row gives zeros.
    """
    b, t, n, h = q_btnh.shape
    kv = k_btkh.shape[2]
    size = min(block, t)
    pad = -t % size

    def blocks(x: jax.Array) -> jax.Array:  # [B, T, ...] -> [T/size, B, size, ...]
        x = jnp.pad(x, [(0, 0), (0, pad)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(b, -1, size, *x.shape[2:]).swapaxes(0, 1)

    keys = (blocks(k_btkh), blocks(v_btkh), blocks(pos_bt), blocks(segment_bt))

    @jax.checkpoint
    def one_query_block(q_block: tuple[jax.Array, ...]) -> jax.Array:
        q, q_pos, q_seg = q_block
        q_bkrh = split_heads(q, kv)

        def body(acc: Accumulator, key_block: tuple[jax.Array, ...]) -> tuple[Accumulator, None]:
            k, v, k_pos, k_seg = key_block
            same = (q_seg[:, :, None] == k_seg[:, None, :]) & (q_seg[:, :, None] > 0)
            see = causal(q_pos, k_pos, n // kv, window) & jnp.tile(same, (1, n // kv, 1))[:, None]
            return visit(acc, q_bkrh, k.swapaxes(1, 2), v.swapaxes(1, 2), see), None

        acc, _ = jax.lax.scan(body, start(q_bkrh), keys)
        return join_heads(finish(acc, q.dtype)[0], size)

    out = jax.lax.map(one_query_block, (blocks(q_btnh), blocks(pos_bt), blocks(segment_bt)))
    return out.swapaxes(0, 1).reshape(b, t + pad, n, h)[:, :t]
