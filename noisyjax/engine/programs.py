"""The engine's two compiled programs: prefill a tile of prompts, and decode a chunk of tokens.

Prefill handles every prompt token but the last; the decode loop is fed the last one, so the head, the sampler and the
capture exist in one place only, and the first token of a completion is made like every other.

Legend: B slots, R tile rows, T tokens of a tile or of a decode step, C chunk length, D model, K kv heads, H head dim,
        V vocabulary, L layers, A captured attention heads (1 when averaged), Q captured layers, Z labels,
        J top-k log-probabilities, W text width.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from noisyjax.engine import cache, drafts, sample
from noisyjax.engine.cache import KV, N_LABELS, View
from noisyjax.models import attention
from noisyjax.models.decoder import Decoder
from noisyjax.models.layers import Own
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
    random keys; draw: sampling parameters. With guesses also text_bw, int32 [B, W], all of the row's tokens with
    token_b as the last, held_b of them, and room for a chunk.
    """

    token_b: Any
    label_b: Any
    made_b: Any
    budget_b: Any
    active_b: Any
    eos_stops_b: Any
    key_b2: Any
    draw: sample.Draw
    text_bw: Any = None
    held_b: Any = None


class Chunk(NamedTuple):
    """What a decode chunk made. steps: loop steps run; count_b: tokens of each row (its stop token included).

    token_bc int32; logprob_bc, entropy_bc float32; top_id_bcj, top_logprob_bcj; mass_bcqaz float32. Absent captures
    are None. Entries past a row's count are meaningless.
    """

    steps: Any
    count_b: Any
    done_b: Any
    token_bc: Any
    logprob_bc: Any = None
    entropy_bc: Any = None
    top_id_bcj: Any = None
    top_logprob_bcj: Any = None
    mass_bcqaz: Any = None


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
    guesses: int,
    state: nnx.State,
    rows: Any,
    prefixes: tuple[Any, ...],
    slots: Slots,
    view: View,
    valid_v: jax.Array,
    stop_ids: jax.Array,
    return_early: jax.Array,
    kernel: bool | None = None,
) -> tuple[Any, Chunk]:
    """Draw up to `length` tokens for every active slot; rows [B, K, S, H] are donated and come back extended.

    A step feeds each row its last token and `guesses` more (`drafts.py`), and the row takes as many tokens as agree.
    The loop ends when all rows are done, when one has its `length` tokens, or, with `return_early` (work is waiting),
    as soon as any row is done. stop_ids int32 [n], padded with -1.

    kernel: what the rows of stacked layers have stored is visited by the TPU's kernel; None where the model lies on
    TPUs. Where mass is captured XLA does it: the kernel gives none.
    """
    model: Decoder = nnx.merge(graph, state)
    b, idle_b = slots.token_b.shape[0], ~slots.active_b
    width = fresh_width(length, guesses)
    kernel = platform(model.layout) == "tpu" if kernel is None else kernel
    feed = _feeder(model, capture, width, rows, prefixes, slots, view, kernel and model.stacked and not capture.layers)

    def body(now: _Loop) -> _Loop:
        # Without guesses rows move in step, and one index for all is the cheaper way to write.
        at = now.count_b if guesses else now.steps
        fed_bt, text_bw = now.token_b[:, None], now.text_bw
        if text_bw is not None:
            guess_bd = drafts.guess(text_bw, slots.held_b + now.count_b, guesses)
            fed_bt = jnp.concatenate([fed_bt, guess_bd], 1)
        logits_btv, fresh, mass_btqaz = feed(at, fed_bt, now.fresh)
        drawn_bt, made = _drawn(capture, logits_btv, valid_v, slots, slots.made_b + at, mass_btqaz)
        if text_bw is not None:
            text_bw = cache.put(text_bw, drawn_bt, slots.held_b + now.count_b, 1)
        stops_bt = jnp.any(drawn_bt[..., None] == stop_ids, -1) & slots.eos_stops_b[:, None]
        left_b = jnp.minimum(slots.budget_b, length) - now.count_b
        n_b = jnp.minimum(drafts.agreed(fed_bt, drawn_bt), jnp.minimum(_first(stops_bt), left_b))
        n_b = jnp.where(now.done_b, 0, n_b)
        count_b, last_b1 = now.count_b + n_b, jnp.maximum(n_b - 1, 0)[:, None]
        stopped_b = jnp.take_along_axis(stops_bt, last_b1, 1)[:, 0]
        return _Loop(
            steps=now.steps + 1,
            token_b=jnp.take_along_axis(drawn_bt, last_b1, 1)[:, 0],
            done_b=now.done_b | stopped_b | (count_b >= slots.budget_b),
            count_b=count_b,
            text_bw=text_bw,
            fresh=fresh,
            out={name: cache.put(now.out[name], made[name], at, 1) for name in now.out},
        )

    def going(now: _Loop) -> jax.Array:
        full, finished = jnp.any(~now.done_b & (now.count_b >= length)), jnp.any(now.done_b & slots.active_b)
        return jnp.any(~now.done_b) & ~full & ~(return_early & finished)

    fresh = jax.tree.map(lambda x: jnp.zeros((*x.shape[:-2], width, x.shape[-1]), x.dtype), rows)
    out = _empty_outputs(capture, width, b, model.cfg.n_heads)
    start = _Loop(jnp.int32(0), slots.token_b, idle_b, jnp.zeros(b, jnp.int32), slots.text_bw, fresh, out)
    end = jax.lax.while_loop(going, body, start)
    rows = cache.write(rows, end.fresh, jnp.where(idle_b, 0, view.filled_b))
    return rows, Chunk(end.steps, end.count_b, end.done_b & slots.active_b, **end.out)


def fresh_width(length: int, guesses: int) -> int:
    """Tokens of a row that a chunk writes: those that count, and room for a step after the last of them."""
    return length + guesses + 1 if guesses else length


class _Loop(NamedTuple):
    """What one decode step hands to the next; see `Slots` and `Chunk`."""

    steps: jax.Array
    token_b: jax.Array
    done_b: jax.Array
    count_b: jax.Array
    text_bw: jax.Array | None
    fresh: Any
    out: dict[str, jax.Array]


def _first(hit_bt: jax.Array) -> jax.Array:
    """Tokens up to and with the first hit of each row, int32 [B]; more than there are without one."""
    t = hit_bt.shape[1]
    return jnp.where(hit_bt.any(1), jnp.argmax(hit_bt, 1), t) + 1


def _drawn(
    capture: Capture,
    logits_btv: jax.Array,
    valid_v: jax.Array,
    slots: Slots,
    made: jax.Array,
    mass_btqaz: jax.Array | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """A token after each of a step's tokens, int32 [B, T], and all that is kept of it. made: [B], drawn before."""
    b, t, v = logits_btv.shape
    draw, key_xt2 = jax.tree.map(lambda x: jnp.repeat(x, t, 0), (slots.draw, slots.key_b2))  # rows are X = B*T now
    logp_xv = sample.distribution(logits_btv.reshape(b * t, v), valid_v, draw.temperature)
    token_x = sample.choose(logp_xv, draw, key_xt2, (made[:, None] + jnp.arange(t)).reshape(-1))
    made_x = _recorded(capture, token_x, logp_xv)
    kept = jax.tree.map(lambda x: x.reshape(b, t, *x.shape[1:]), made_x)
    return token_x.reshape(b, t), kept if mass_btqaz is None else {**kept, "mass_bcqaz": mass_btqaz}


def _feeder(
    model: Decoder,
    capture: Capture,
    width: int,
    rows: Any,
    prefixes: tuple[Any, ...],
    slots: Slots,
    view: View,
    kernel: bool,
) -> Callable:
    """feed(at, token_bt, fresh) -> (logits_btv, fresh with the tokens' keys from index `at` on, mass_btqaz or None).

    at: one index for all rows, or int32 [B]. width: of the buffer of fresh tokens.
    """
    n_kv, wants_mass = model.cfg.n_kv_heads, bool(capture.layers)
    groups = model.cfg.n_heads // n_kv
    hot = _hot_labels(view) if wants_mass else (None, None)
    shape = (slots.token_b.shape[0], width)
    fresh_label_bc = jnp.full(shape, LABEL_ID["generated"], jnp.uint8).at[:, 0].set(slots.label_b)
    fresh_hot = cache.one_hot_labels(fresh_label_bc) if wants_mass else None
    index_1c = jnp.arange(width)[None]

    def feed(at: jax.Array, token_bt: jax.Array, fresh: Any) -> tuple[jax.Array, Any, jax.Array | None]:
        t = token_bt.shape[1]
        index_bt = jnp.broadcast_to(at, shape[:1])[:, None] + jnp.arange(t)
        pos_bt = (view.base_b + view.filled_b)[:, None] + index_bt

        def attend(stores: tuple[Any, ...], own: Own, q, k, v):
            old, stored = stores[0], cache.Stored(None if kernel else stores[1], stores[2:], *hot)
            new = KV(*(cache.put(x, y.swapaxes(1, 2), at, 2) for x, y in zip(old, (k, v), strict=True)))
            q_bkrh = attention.split_heads(q, n_kv)
            visible = attention.causal(index_bt, index_1c, groups, own.window)
            acc = attention.start(q_bkrh, N_LABELS if wants_mass else 0)
            acc = attention.visit(acc, q_bkrh, *new, visible, fresh_hot)
            acc = cache.attend_stored(acc, q_bkrh, pos_bt, stored, view, own.window, whole=True)
            if kernel:
                acc = _rows_by_kernel(acc, q_bkrh, pos_bt, rows, stores[1], view, own.window, model.layout)
            out, mass = attention.finish(attention.add_sink(acc, own.sink_n, LABEL_ID["sink"]), q.dtype)
            return attention.join_heads(out, t), (new, mass)

        # The kernel finds a layer's rows by its number in the store of all.
        stores = _per_layer(model, fresh, jnp.arange(model.cfg.n_layers) if kernel else rows, *prefixes)
        x_btd, collected = model.run_layers(model.embed_tokens(token_bt), pos_bt, attend, stores)
        new, masses = _unzip(model, collected)
        mass = _mass_of_layers(masses, capture, t) if wants_mass else None
        return model.logits(x_btd), new, mass

    return feed


def _rows_by_kernel(
    acc: attention.Accumulator,
    q_bkrh: jax.Array,
    pos_bt: jax.Array,
    rows: KV,
    layer: jax.Array,
    view: View,
    window: int | jax.Array | None,
    layout: Layout | None,
) -> attention.Accumulator:
    """`cache.attend_stored` of one layer's rows, [L, B, K, S, H], in decoding. What a row does not see is not read."""
    from noisyjax.models.kernels import decode as kernel  # as in `_attend_by_kernel`

    low_bt = jnp.full_like(pos_bt, -1) if window is None else pos_bt - view.base_b[:, None] - window
    return kernel.visit(acc, q_bkrh, *rows, layer, view.filled_b, jnp.maximum(low_bt, -1), layout)


def _recorded(capture: Capture, token_x: jax.Array, logp_xv: jax.Array) -> dict[str, jax.Array]:
    """What is kept of drawn tokens, under the names of `Chunk`'s fields; rows of any meaning."""
    made = {"token_bc": token_x}
    if capture.logprobs:
        made["logprob_bc"] = jnp.take_along_axis(logp_xv, token_x[:, None], 1)[:, 0]
    if capture.entropy:
        made["entropy_bc"] = sample.entropy(logp_xv)
    if capture.top:
        made["top_logprob_bcj"], made["top_id_bcj"] = jax.lax.top_k(logp_xv, capture.top)
    return made


def _empty_outputs(capture: Capture, width: int, b: int, n_heads: int) -> dict[str, jax.Array]:
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {"token_bc": ((), jnp.int32)}
    if capture.logprobs:
        shapes["logprob_bc"] = ((), jnp.float32)
    if capture.entropy:
        shapes["entropy_bc"] = ((), jnp.float32)
    if capture.top:
        shapes["top_logprob_bcj"], shapes["top_id_bcj"] = ((capture.top,), jnp.float32), ((capture.top,), jnp.int32)
    if capture.layers:
        heads = n_heads if capture.per_head else 1
        shapes["mass_bcqaz"] = ((len(capture.layers), heads, N_LABELS), jnp.float32)
    return {name: jnp.zeros((b, width, *tail), dtype) for name, (tail, dtype) in shapes.items()}
