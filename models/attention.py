"""Attention as a running softmax over parts of the keys.

Every use of attention here (training, prefill, decoding, replay of a finished sequence) is the same sum over key
blocks, kept as an accumulator of (weighted values, running maximum, running weight). Parts of a context that lie in
different arrays (a prefix that many rows share, a row's own cache, the tokens of this call) are visited one after the
other and never copied together, and the memory is that of one block of scores, whatever the length.

Legend: B batch, T query length, S key length, N query heads, K kv heads, G = N/K, H head dim,
        R = G*T query rows per kv head, C labels, I and J blocks of queries and of keys.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

MASKED = -1e30  # finite, so that a row with no visible key gives zeros and finite gradients instead of NaN
NOTHING = -1e29  # the maximum of no key: so far above a masked score that exp(MASKED - NOTHING) is 0
SAVED = "attention"
"""The name under which a remat policy may keep attention's results rather than make them again."""


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
        jnp.full(shape, NOTHING, jnp.float32),
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

    The softmax is float32 whatever the model's type; its weights are cast to the values' type, and their sum and the
    mass are those of the cast ones.
    """
    score = jnp.einsum("bkrh,bksh->bkrs", q_bkrh, k_bksh, preferred_element_type=jnp.float32)
    score = jnp.where(visible, score * q_bkrh.shape[-1] ** -0.5, MASKED)
    top = jnp.maximum(acc.max_bkr, score.max(-1))
    weight = jnp.exp(score - top[..., None]).astype(v_bksh.dtype)
    fade = jnp.exp(acc.max_bkr - top)
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    out = product("bkrs,bksh->bkrh", weight, v_bksh)
    # A product with ones, and not a sum: XLA would make the exponentials once more for it.
    total = product("bkrs,sx->bkrx", weight, jnp.ones((weight.shape[-1], 8), weight.dtype))[..., 0]
    mass = None
    if acc.mass_bkrc is not None and label_bsc is not None:
        mass = acc.mass_bkrc * fade[..., None] + product("bkrs,bsc->bkrc", weight, label_bsc.astype(weight.dtype))
    return Accumulator(acc.out_bkrh * fade[..., None] + out, top, acc.sum_bkr * fade + total, mass)


def merge(acc: Accumulator, other: Accumulator) -> Accumulator:
    """An accumulator that has seen what both have; with mass where both have it."""
    top = jnp.maximum(acc.max_bkr, other.max_bkr)
    fade, fades = jnp.exp(acc.max_bkr - top), jnp.exp(other.max_bkr - top)

    def both(x: jax.Array, y: jax.Array) -> jax.Array:
        return x * fade[..., None] + y * fades[..., None]

    mass = None if acc.mass_bkrc is None or other.mass_bkrc is None else both(acc.mass_bkrc, other.mass_bkrc)
    return Accumulator(both(acc.out_bkrh, other.out_bkrh), top, acc.sum_bkr * fade + other.sum_bkr * fades, mass)


def add_sink(acc: Accumulator, sink_n: jax.Array | None, label: int | None = None) -> Accumulator:
    """Add a key without a value to every query: its logit is its head's, float [N]. None adds nothing.

    label: the column of the mass that it counts for, where mass is collected.
    """
    if sink_n is None:
        return acc
    sink_kr = _per_row(sink_n, acc.max_bkr)
    top = jnp.maximum(acc.max_bkr, sink_kr)
    fade, weight = jnp.exp(acc.max_bkr - top), jnp.exp(sink_kr - top)
    mass = None
    if acc.mass_bkrc is not None and label is not None:
        mass = (acc.mass_bkrc * fade[..., None]).at[..., label].add(weight)
    return Accumulator(acc.out_bkrh * fade[..., None], top, acc.sum_bkr * fade + weight, mass)


def _per_row(sink_n: jax.Array, like_bkr: jax.Array) -> jax.Array:
    """[N] -> float32 [K, R], one number for every row of `split_heads`."""
    _, k, r = like_bkr.shape
    return jnp.repeat(sink_n.astype(jnp.float32).reshape(k, -1), r * k // sink_n.size, axis=1)


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


def block_for(platform: str, tokens: int) -> int:
    """Tokens per block of queries and keys, for rows of so many. Small blocks stay in a core's cache and leave out more
    of what nobody sees, which is most of a row of short sequences; a TPU wants large products."""
    if platform != "cpu":
        return 512
    return 128 if tokens < 2048 else 256


def self_attention(
    q_btnh: jax.Array,
    k_btkh: jax.Array,
    v_btkh: jax.Array,
    pos_bt: jax.Array,
    segment_bt: jax.Array,
    window: int | jax.Array | None = None,
    block: int | None = None,
    *,
    parent_bt: jax.Array | None = None,
    sink_n: jax.Array | None = None,
) -> jax.Array:
    """Attention of packed rows to themselves, [B, T, N, H]; memory O(T), forwards and backwards.

    A query sees a key that does not lie behind it in the row, if the key's segment is the query's own or its parent,
    and its position is inside the window. So a response sees its prompt and itself, whatever lies between them.

    Args:
        pos_bt: int32 positions; only a window looks at them.
        segment_bt: int32 numbers of the sequences in a row; 0 is padding, which neither sees nor is seen: zeros.
        window: positions back that a query sees, itself included; None for all.
        block: tokens per block of queries and keys at most; None picks what suits the hardware.
        parent_bt: int32 the segment that is visible beside a token's own; None for no other.
        sink_n: a logit per query head that takes part in the softmax without a value; None for none.
    """
    t, kv = q_btnh.shape[1], k_btkh.shape[2]
    count = -(-t // (block or block_for(jax.default_backend(), t)))
    size = -(-t // count)

    def blocks(x: jax.Array) -> jax.Array:  # [B, T, ...] -> [I, B, size, ...]
        x = jnp.pad(x, [(0, 0), (0, count * size - t)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(x.shape[0], count, size, *x.shape[2:]).swapaxes(0, 1)

    sight = Sight(
        blocks(pos_bt),
        blocks(segment_bt),
        blocks(segment_bt if parent_bt is None else parent_bt),
        None if window is None else jnp.asarray(window, jnp.int32),
    )
    q = jax.vmap(lambda x: split_heads(x, kv))(blocks(q_btnh))
    out = _blockwise(q, blocks(k_btkh).swapaxes(2, 3), blocks(v_btkh).swapaxes(2, 3), sink_n, sight)
    out = jax.vmap(lambda x: join_heads(x, size))(out).swapaxes(0, 1)
    return out.reshape(out.shape[0], count * size, *q_btnh.shape[2:])[:, :t]


class Sight(NamedTuple):
    """What decides who sees whom: positions, segments and parent segments in blocks, int32 [I, B, size]; the window."""

    pos: jax.Array
    segment: jax.Array
    parent: jax.Array
    window: jax.Array | None

    def visible(self, i: jax.Array, j: jax.Array, groups: int) -> jax.Array:
        """bool [B, 1, groups*size, size]: which keys of block j the queries of block i see."""
        size = self.pos.shape[-1]
        q_pos, q_segment, q_parent = (x[i][:, :, None] for x in self[:3])
        k_pos, k_segment = (x[j][:, None, :] for x in self[:2])
        index = jnp.arange(size)
        see = (j * size + index[None, :] <= i * size + index[:, None]) & (q_segment > 0)
        see &= (k_segment == q_segment) | (k_segment == q_parent)
        if self.window is not None:
            see &= k_pos > q_pos - self.window
        return jnp.tile(see, (1, groups, 1))[:, None]

    def partners(self) -> jax.Array:
        """bool [I, J]: pairs of query and key blocks in which a query of some row may see a key.

        Judged by the range of segments in a block, so that it costs nothing and never leaves out a pair that matters.
        """

        def span(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jnp.where(x > 0, x, jnp.iinfo(x.dtype).max).min(-1), x.max(-1)

        def meet(q: tuple[jax.Array, jax.Array], k: tuple[jax.Array, jax.Array]) -> jax.Array:
            return (q[0][:, None] <= k[1][None]) & (k[0][None] <= q[1][:, None])

        keys = span(self.segment)
        may = meet(keys, keys) | meet(span(self.parent), keys)
        if self.window is not None:
            may &= self.pos.max(-1)[None] > self.pos.min(-1)[:, None] - self.window
        return jnp.tril(may.any(-1))


def _over(partners_x: jax.Array, body: Callable[[jax.Array, Any], Any], carry: Any) -> Any:
    """`body(j, carry)` for every j at which `partners_x` is True, in order."""
    order = jnp.argsort(~partners_x, stable=True)
    return jax.lax.fori_loop(0, partners_x.sum(), lambda x, carry: body(order[x], carry), carry)


@jax.custom_vjp
def _blockwise(
    q_ibkrh: jax.Array, k_jbksh: jax.Array, v_jbksh: jax.Array, sink_n: jax.Array | None, sight: Sight
) -> jax.Array:
    """Attention between blocks, shaped like the queries. Its backward pass keeps one number per query and head."""
    return _blockwise_forward(q_ibkrh, k_jbksh, v_jbksh, sink_n, sight)[0]


def _blockwise_forward(q_ibkrh, k_jbksh, v_jbksh, sink_n, sight):
    groups = q_ibkrh.shape[3] // k_jbksh.shape[3]

    def one(xs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, q, partners = xs
        acc = _over(
            partners, lambda j, acc: visit(acc, q, k_jbksh[j], v_jbksh[j], sight.visible(i, j, groups)), start(q)
        )
        acc = add_sink(acc, sink_n)
        lse = acc.max_bkr + jnp.log(jnp.maximum(acc.sum_bkr, 1e-37))
        return finish(acc, q.dtype)[0], jnp.where(acc.sum_bkr > 0, lse, 0.0)

    out, lse = jax.lax.map(one, (jnp.arange(len(q_ibkrh)), q_ibkrh, sight.partners()))
    out, lse = checkpoint_name(out, SAVED), checkpoint_name(lse, SAVED)
    return out, (q_ibkrh, k_jbksh, v_jbksh, sink_n, sight, out, lse)


def _blockwise_backward(residuals: tuple, dout_ibkrh: jax.Array):
    """Blocks of weights are made again from the kept log-sum-exp (Dao et al. 2022, FlashAttention, algorithm 4)."""
    q_ibkrh, k_jbksh, v_jbksh, sink_n, sight, out_ibkrh, lse_ibkr = residuals
    groups, scale = q_ibkrh.shape[3] // k_jbksh.shape[3], q_ibkrh.shape[-1] ** -0.5
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    delta_ibkr = product("ibkrh,ibkrh->ibkr", dout_ibkrh, out_ibkrh)

    def one(dkv: tuple[jax.Array, jax.Array], xs: tuple) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        i, q, lse, dout, delta, partners = xs

        def body(j: jax.Array, carry: tuple) -> tuple:
            dq, dk, dv = carry
            k, v = k_jbksh[j], v_jbksh[j]
            score = product("bkrh,bksh->bkrs", q, k) * scale
            weight = jnp.where(sight.visible(i, j, groups), jnp.exp(score - lse[..., None]), 0.0)
            dscore = (weight * (product("bkrh,bksh->bkrs", dout, v) - delta[..., None]) * scale).astype(q.dtype)
            dv = dv.at[j].add(product("bkrs,bkrh->bksh", weight.astype(v.dtype), dout))
            dk = dk.at[j].add(product("bkrs,bkrh->bksh", dscore, q))
            return dq + product("bkrs,bksh->bkrh", dscore, k), dk, dv

        dq, *dkv = _over(partners, body, (jnp.zeros(q.shape, jnp.float32), *dkv))
        return (dkv[0], dkv[1]), dq.astype(q.dtype)

    xs = (jnp.arange(len(q_ibkrh)), q_ibkrh, lse_ibkr, dout_ibkrh, delta_ibkr, sight.partners())
    (dk, dv), dq = jax.lax.scan(one, (jnp.zeros(k_jbksh.shape, jnp.float32), jnp.zeros(v_jbksh.shape, jnp.float32)), xs)
    dsink_n = None
    if sink_n is not None:  # its weight is pulled down by what the others give: the derivative of a softmax
        pull_ibkr = jnp.exp(_per_row(sink_n, lse_ibkr[0]) - lse_ibkr) * delta_ibkr
        kv = pull_ibkr.shape[2]
        dsink_n = -pull_ibkr.sum((0, 1)).reshape(kv, sink_n.size // kv, -1).sum(-1).reshape(-1).astype(sink_n.dtype)
    return dq, dk.astype(k_jbksh.dtype), dv.astype(v_jbksh.dtype), dsink_n, None


_blockwise.defvjp(_blockwise_forward, _blockwise_backward)
