"""The engine's two compiled programs: prefill a tile of prompts, and decode a chunk of tokens.

Prefill handles every prompt token but the last; the decode loop is fed the last one, so the head, the sampler and the
capture exist in one place only, and the first token of a completion is made like every other.

Legend: B slots, R tile rows, T tile length, C chunk length, D model, K kv heads, H head dim, V vocabulary, L layers,
        A captured attention heads (1 when averaged), Q captured layers, Z labels, J top-k log-probabilities.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from noisyjax.engine import cache, sample
from noisyjax.engine.cache import KV, N_LABELS, View
from noisyjax.models import attention
from noisyjax.models.decoder import Decoder, Own
from noisyjax.models.sharding import Layout, platform
from noisyjax.records import LABEL_ID


class Capture(NamedTuple):
    """What to record beside the tokens (static). layers: indices whose attention mass is kept; () for none."""

    logprobs: bool = True
    entropy: bool = True
    top: int = 0
    layers: tuple[int, ...] = ()
    per_head: bool = False


class Slots(NamedTuple):
    """The rows' state at the start of a chunk, host arrays of length B.

    token_b: the next token to feed, and label_b its label id; made_b: tokens drawn so far; budget_b: tokens that may
    still be drawn; active_b: False for empty slots; eos_stops_b: whether stop ids end the row; key_b2 uint32 [B, 2]:
    random keys; draw: sampling parameters.
    """

    token_b: Any
    label_b: Any
    made_b: Any
    budget_b: Any
    active_b: Any
    eos_stops_b: Any
    key_b2: Any
    draw: sample.Draw


class Chunk(NamedTuple):
    """What a decode chunk made. steps: loop steps run; count_b: tokens of each row (its stop token included).

    token_cb int32; logprob_cb, entropy_cb float32; top_id_cbj, top_logprob_cbj; mass_cbqaz float32. Absent captures
    are None. Entries past a row's count are meaningless.
    """

    steps: Any
    count_b: Any
    done_b: Any
    token_cb: Any
    logprob_cb: Any = None
    entropy_cb: Any = None
    top_id_cbj: Any = None
    top_logprob_cbj: Any = None
    mass_cbqaz: Any = None


def _per_layer(model: Decoder, *stores: Any) -> Any:
    """Stores as `run_layers` takes them: one tuple of stacked pairs, or a tuple per layer; a store may be None."""
    if model.stacked:
        return stores
    return list(zip(*(store or [None] * model.cfg.n_layers for store in stores), strict=True))


def _unzip(model: Decoder, collected: Any) -> tuple[Any, Any]:
    """(keys and values, masses) that `run_layers` collected as pairs, in the model's own layout of layers."""
    return collected if model.stacked else ([c[0] for c in collected], [c[1] for c in collected])


def _hot_labels(view: View) -> tuple[jax.Array, jax.Array]:
    """One-hot labels of the stored keys, rows [B, S, Z] and prefixes [X, P, Z]."""
    return cache.one_hot_labels(view.row_label_bs), cache.one_hot_labels(view.prefix_label_xs)


def _mass_of_layers(masses: Any, capture: Capture, t: int) -> jax.Array:
    """Per-layer mass [B, K, R, Z] -> [B, T, Q, A, Z] for the captured layers, averaged over heads if asked."""
    picked = [masses[i] for i in capture.layers]
    mass = jnp.stack([attention.join_heads(m, t) for m in picked], axis=2)  # [B, T, Q, N, Z]
    return mass if capture.per_head else mass.mean(3, keepdims=True)


def prefill(
    graph: nnx.GraphDef,
    capture: Capture | None,
    state: nnx.State,
    scratch: Any,
    prefixes: tuple[Any, ...],
    ids_rt: jax.Array,
    label_rt: jax.Array,
    view: View,
    kernel: bool | None = None,
) -> tuple[Any, jax.Array | None]:
    """Run a tile of prompt tokens [R, T] and give its keys and values.

    With `scratch` (one row, a long prompt in pieces) the tile also sees what the scratch holds, up to view.filled_b,
    and is written after it; the updated scratch is returned. Without, the result is the tile's own KV [R, K, T, H].
    Right padding is harmless: a causal query never sees what comes after it. With `capture`, also the attention mass
    of every query, float32 [R, T, Q, A, Z].

    kernel: what is stored is visited by the TPU's attention kernel; None where the model lies on TPUs. Only a piece of
    a long prompt is: short ones see little that is stored, and many of them see the same.
    """
    model: Decoder = nnx.merge(graph, state)
    kernel = scratch is not None and (platform(model.layout) == "tpu" if kernel is None else kernel)
    n_kv, t = model.cfg.n_kv_heads, ids_rt.shape[1]
    groups = model.cfg.n_heads // n_kv
    pos_rt = (view.base_b + view.filled_b)[:, None] + jnp.arange(t)
    hot = _hot_labels(view) if capture else (None, None)
    fresh_hot = cache.one_hot_labels(label_rt) if capture else None

    def attend(stores: tuple[Any, ...], own: Own, q, k, v):
        q_rkmh = attention.split_heads(q, n_kv)
        k_rkth, v_rkth = k.swapaxes(1, 2), v.swapaxes(1, 2)
        acc = attention.start(q_rkmh, N_LABELS if capture else 0)
        stored = cache.Stored(stores[0], stores[1:], *hot)
        if kernel:
            acc = _attend_by_kernel(acc, q, pos_rt, stored, view, own.window, model.layout)
        else:
            acc = cache.attend_stored(acc, q_rkmh, pos_rt, stored, view, own.window)
        visible = attention.causal(pos_rt, pos_rt, groups, own.window)
        acc = attention.visit(acc, q_rkmh, k_rkth, v_rkth, visible, fresh_hot)
        out, mass = attention.finish(attention.add_sink(acc, own.sink_n, LABEL_ID["sink"]), q.dtype)
        return attention.join_heads(out, t), (KV(k_rkth, v_rkth), mass)

    stores = _per_layer(model, scratch, *prefixes)
    _, collected = model.run_layers(model.embed_tokens(ids_rt), pos_rt, attend, stores)
    fresh, masses = _unzip(model, collected)
    mass = _mass_of_layers(masses, capture, t) if capture else None
    return (fresh if scratch is None else cache.write(scratch, fresh, view.filled_b)), mass


def _attend_by_kernel(
    acc: attention.Accumulator,
    q_1tnh: jax.Array,
    pos_1t: jax.Array,
    stored: cache.Stored,
    view: View,
    window: int | jax.Array | None,
    layout: Layout | None,
) -> attention.Accumulator:
    """`cache.attend_stored` of a single row. What it does not see costs nothing."""
    from noisyjax.models.kernels import splash  # its imports take long, and the CPU has no use for them

    hots = [None] * len(stored.prefixes) if stored.prefix_hot_xsc is None else list(stored.prefix_hot_xsc[:, None])
    mine_x = view.prefix_b[0] == jnp.arange(len(hots))
    parts = list(zip(stored.prefixes, [0] * len(hots), jnp.where(mine_x, view.prefix_length_x, 0), hots, strict=True))
    assert stored.rows is not None
    for kv, first, length, hot in [*parts, (stored.rows, view.base_b[0], view.filled_b[0], stored.row_hot_bsc)]:
        low_1t = jnp.full_like(pos_1t, -1) if window is None else pos_1t - first - window
        see = functools.partial(
            splash.visit,
            q_btnh=q_1tnh,
            k_bksh=kv.k,
            v_bksh=kv.v,
            length_b=length[None],
            low_bt=low_1t,
            layout=layout,
            label_bsc=hot,
        )
        acc = jax.lax.cond(length > 0, see, lambda acc: acc, acc)
    return acc


def decode(
    graph: nnx.GraphDef,
    capture: Capture,
    length: int,
    state: nnx.State,
    rows: Any,
    prefixes: tuple[Any, ...],
    slots: Slots,
    view: View,
    valid_v: jax.Array,
    stop_ids: jax.Array,
    return_early: jax.Array,
) -> tuple[Any, Chunk]:
    """Draw up to `length` tokens for every active slot; rows [B, K, S, H] are donated and come back extended.

    The loop ends when all rows are done, after `length` steps, or, with `return_early` (work is waiting), as soon as
    any row is done. stop_ids int32 [n], padded with -1.
    """
    model: Decoder = nnx.merge(graph, state)
    b, idle_b = slots.token_b.shape[0], ~slots.active_b
    feed = _feeder(model, capture, length, rows, prefixes, slots, view)

    def body(carry: tuple) -> tuple:
        i, token_b, done_b, count_b, fresh, out = carry
        logits_bv, fresh, mass_bqaz = feed(i, token_b, fresh)
        logp_bv = sample.distribution(logits_bv, valid_v, slots.draw.temperature)
        token_b = sample.choose(logp_bv, slots.draw, slots.key_b2, slots.made_b + i)
        made = _recorded(capture, token_b, logp_bv, mass_bqaz)
        out = {name: jax.lax.dynamic_update_index_in_dim(out[name], made[name], i, 0) for name in out}
        count_b = jnp.where(done_b, count_b, i + 1)
        stopped_b = jnp.any(token_b[:, None] == stop_ids[None], 1) & slots.eos_stops_b
        done_b = done_b | stopped_b | (i + 1 >= slots.budget_b)
        return i + 1, token_b, done_b, count_b, fresh, out

    def going(carry: tuple) -> jax.Array:
        i, done_b = carry[0], carry[2]
        finished = jnp.any(done_b & slots.active_b)
        return (i < length) & jnp.any(~done_b) & ~(return_early & finished)

    fresh = jax.tree.map(lambda x: jnp.zeros((*x.shape[:-2], length, x.shape[-1]), x.dtype), rows)
    out = _empty_outputs(capture, length, b, model.cfg.n_heads)
    start = (jnp.int32(0), slots.token_b, idle_b, jnp.zeros(b, jnp.int32), fresh, out)
    steps, _, done_b, count_b, fresh, out = jax.lax.while_loop(going, body, start)
    rows = cache.write(rows, fresh, jnp.where(idle_b, 0, view.filled_b))
    return rows, Chunk(steps, count_b, done_b & slots.active_b, **out)


def _feeder(
    model: Decoder, capture: Capture, length: int, rows: Any, prefixes: tuple[Any, ...], slots: Slots, view: View
) -> Callable:
    """feed(i, token_b, fresh) -> (logits_bv, fresh with the token's keys at index i, mass_bqaz or None)."""
    n_kv, wants_mass = model.cfg.n_kv_heads, bool(capture.layers)
    hot = _hot_labels(view) if wants_mass else (None, None)
    shape = (slots.token_b.shape[0], length)
    fresh_label_bc = jnp.full(shape, LABEL_ID["generated"], jnp.uint8).at[:, 0].set(slots.label_b)
    fresh_hot = cache.one_hot_labels(fresh_label_bc) if wants_mass else None
    index_c = jnp.arange(length)

    def feed(i: jax.Array, token_b: jax.Array, fresh: Any) -> tuple[jax.Array, Any, jax.Array | None]:
        pos_b1 = (view.base_b + view.filled_b + i)[:, None]

        def attend(stores: tuple[KV, ...], own: Own, q, k, v):
            old, stored = stores[0], cache.Stored(stores[1], stores[2:], *hot)
            pairs = zip(old, (k, v), strict=True)
            new = KV(*(jax.lax.dynamic_update_slice_in_dim(x, y.swapaxes(1, 2), i, 2) for x, y in pairs))
            q_bkgh = attention.split_heads(q, n_kv)
            visible_c = (index_c <= i) if own.window is None else (index_c <= i) & (index_c > i - own.window)
            acc = attention.start(q_bkgh, N_LABELS if wants_mass else 0)
            acc = attention.visit(acc, q_bkgh, *new, visible_c, fresh_hot)
            acc = cache.attend_stored(acc, q_bkgh, pos_b1, stored, view, own.window, whole=True)
            out, mass = attention.finish(attention.add_sink(acc, own.sink_n, LABEL_ID["sink"]), q.dtype)
            return attention.join_heads(out, 1), (new, mass)

        stores = _per_layer(model, fresh, rows, *prefixes)
        x_b1d, collected = model.run_layers(model.embed_tokens(token_b[:, None]), pos_b1, attend, stores)
        new, masses = _unzip(model, collected)
        mass = _mass_of_layers(masses, capture, 1)[:, 0] if wants_mass else None
        return model.logits(x_b1d[:, 0]), new, mass

    return feed


def _recorded(
    capture: Capture, token_b: jax.Array, logp_bv: jax.Array, mass_bqaz: jax.Array | None
) -> dict[str, jax.Array | None]:
    """One step's outputs under the names of `Chunk`'s fields."""
    made: dict[str, jax.Array | None] = {"token_cb": token_b, "mass_cbqaz": mass_bqaz}
    if capture.logprobs:
        made["logprob_cb"] = jnp.take_along_axis(logp_bv, token_b[:, None], 1)[:, 0]
    if capture.entropy:
        made["entropy_cb"] = sample.entropy(logp_bv)
    if capture.top:
        made["top_logprob_cbj"], made["top_id_cbj"] = jax.lax.top_k(logp_bv, capture.top)
    return made


def _empty_outputs(capture: Capture, length: int, b: int, n_heads: int) -> dict[str, jax.Array]:
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {"token_cb": ((), jnp.int32)}
    if capture.logprobs:
        shapes["logprob_cb"] = ((), jnp.float32)
    if capture.entropy:
        shapes["entropy_cb"] = ((), jnp.float32)
    if capture.top:
        shapes["top_logprob_cbj"], shapes["top_id_cbj"] = ((capture.top,), jnp.float32), ((capture.top,), jnp.int32)
    if capture.layers:
        heads = n_heads if capture.per_head else 1
        shapes["mass_cbqaz"] = ((len(capture.layers), heads, N_LABELS), jnp.float32)
    return {name: jnp.zeros((length, b, *tail), dtype) for name, (tail, dtype) in shapes.items()}
