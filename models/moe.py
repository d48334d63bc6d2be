"""Mixtures of experts: a router, and a dispatch that sorts tokens by expert.

`experts` is the one way in. On a TPU its products are those of a kernel (`kernels.gmm`). In plain XLA it visits the
sorted tokens tile by tile, each with the weights of its own expert, so that its work grows with the tokens and not with
the number of experts, and what lies between an expert's products never leaves the cache (`jax.lax.ragged_dot` is a
masked dense product on the CPU and on most TPUs).

Legend: N tokens, D model, F ffn of an expert, E experts, K experts of a token, L layers, T rows of a tile,
        M = N*K rows of tokens sorted by expert, and some spare ones; O outputs, G groups of 32 inputs, B their bytes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from .config import MoeConfig
from .expert_parallel import over_mesh
from .families import mxfp4
from .kernels import gmm
from .params import packed_paths
from .sharding import Layout, platform

Dispatch = Literal["sorted", "kernel", "interpreted"]
"""How rows meet their experts: in plain XLA; by the TPU's kernel; by the same kernel on a CPU, for tests."""


class Packed(NamedTuple):
    """A weight [E, outputs, inputs] held in MXFP4, uint8 (see `families.mxfp4`)."""

    blocks_eogb: jax.Array
    scales_eog: jax.Array


class Experts(NamedTuple):
    """The weights of all experts, [E, outputs, inputs] or packed, and their biases [E, outputs], or None."""

    gate_efd: jax.Array | Packed
    up_efd: jax.Array | Packed
    down_edf: jax.Array | Packed
    gate_bias_ef: jax.Array | None = None
    up_bias_ef: jax.Array | None = None
    down_bias_ed: jax.Array | None = None


def dense(w: Experts, dtype: Any) -> Experts:
    """The same weights as numbers, what is packed in `dtype`; of all experts or of one, without the axis E."""
    packed = {name: x for name, x in w._asdict().items() if isinstance(x, Packed)}
    return w._replace(**{name: mxfp4.unpacked(*x, dtype) for name, x in packed.items()})


def router_logits(x_nd: jax.Array, w_ed: jax.Array, bias_e: jax.Array | None = None) -> jax.Array:
    """float32 [N, E], whatever the type of x: which experts are chosen hangs on small differences.

    x_nd: any number of leading axes, which the result has too.
    """
    logit_ne = jnp.einsum("...d,ed->...e", x_nd, w_ed, preferred_element_type=jnp.float32)
    return logit_ne if bias_e is None else logit_ne + bias_e.astype(jnp.float32)


def route(logit_ne: jax.Array, top_k: int, norm_topk: bool) -> tuple[jax.Array, jax.Array]:
    """(weights float32 [N, K], experts int32 [N, K]) of the best experts of each token.

    norm_topk: weights sum to one. That is a softmax over the chosen logits alone (gpt-oss), or one over all divided by
    the sum of the chosen (Qwen3): the same numbers. Otherwise they are what a softmax over all experts gives.
    """
    top_nk, expert_nk = jax.lax.top_k(logit_ne, top_k)
    total_n1 = jax.nn.logsumexp(top_nk if norm_topk else logit_ne, axis=-1, keepdims=True)
    return jnp.exp(top_nk - total_n1), expert_nk


class Load(NamedTuple):
    """How much the router gives each expert, summed over tokens and layers, float32. Loads of parts add up.

    choice_e: choices that fell on it, without gradient; prob_e: probabilities; rows: tokens times layers, a scalar.
    """

    choice_e: jax.Array
    prob_e: jax.Array
    rows: jax.Array


def load(logit_ne: jax.Array, top_k: int, times_n: jax.Array) -> Load:
    """The load of one layer by tokens that count `times_n` times each, float32 [N]; padding counts 0 times."""
    p_ne = jax.nn.softmax(logit_ne.astype(jnp.float32), axis=-1)
    hit_ne = jax.nn.one_hot(jax.lax.top_k(p_ne, top_k)[1], p_ne.shape[-1], dtype=jnp.float32).sum(-2)
    choice_e, prob_e = (jnp.sum(times_n[:, None] * x_ne, 0) for x_ne in (hit_ne, p_ne))
    return Load(choice_e, prob_e, times_n.sum())


def pull(whole: Load) -> jax.Array:
    """float32 [E], without gradient: what `pull @ prob_e` turns into the balance of a batch with this whole load.

    The balance is E times the sum over experts of (share of choices that fell on it) x (mean probability), over all
    layers at once: Switch Transformer (Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6) with K choices a token,
    as transformers' `load_balancing_loss_func` has it; perfect balance gives K. Only the probabilities carry a
    gradient, so that given the whole batch's choices its parts contribute sums.
    """
    rows = jnp.maximum(whole.rows, 1.0)
    return jax.lax.stop_gradient(len(whole.choice_e) * whole.choice_e / rows**2)


def gated(gate: jax.Array, up: jax.Array, cfg: MoeConfig) -> jax.Array:
    """SwiGLU, silu(gate) up; with `clamp` gpt-oss's (up + 1) gate sigmoid(alpha gate), of clamped gate and up.

    gate, up: [..., F]. gate is clamped from above only.
    """
    if cfg.clamp is None:
        return jax.nn.silu(gate) * up
    gate, up = jnp.minimum(gate, cfg.clamp), jnp.clip(up, -cfg.clamp, cfg.clamp)
    return (up + 1) * gate * jax.nn.sigmoid(cfg.alpha * gate)


def expert(x_td: jax.Array, w: Experts, cfg: MoeConfig) -> jax.Array:
    """One expert, its weights numbers without the axis E, on rows [T, D]; products are accumulated in float32."""

    def product(x_ti: jax.Array, w_oi: Any, bias_o: jax.Array | None) -> jax.Array:
        y_to = jnp.einsum("ti,oi->to", x_ti, w_oi, preferred_element_type=jnp.float32).astype(x_ti.dtype)
        return y_to if bias_o is None else y_to + bias_o

    gate_tf, up_tf = product(x_td, w.gate_efd, w.gate_bias_ef), product(x_td, w.up_efd, w.up_bias_ef)
    return product(gated(gate_tf, up_tf, cfg), w.down_edf, w.down_bias_ed)


def experts(
    x_nd: jax.Array,
    weight_nk: jax.Array,
    expert_nk: jax.Array,
    w: Experts,
    cfg: MoeConfig,
    dispatch: Dispatch = "sorted",
) -> jax.Array:
    """The weighted sum of each token's experts, [N, D] in x's type; the sum is made in float32.

    Going backward the sorted dispatch makes the experts' inner values again, tile by tile; the kernel has kept gate and
    up, unless the layer itself is made again. w may hold fewer experts than there are: a choice of one beyond the last
    costs nothing, and is to have weight 0.
    """
    (n, k), n_experts = expert_nk.shape, jax.tree.leaves(w)[0].shape[0]
    expert_m = expert_nk.reshape(-1)
    size_e = jnp.bincount(expert_m, length=n_experts)
    order_m = jnp.argsort(expert_m, stable=True)
    place_m = jnp.zeros_like(order_m).at[order_m].set(jnp.arange(n * k), unique_indices=True)
    # The last tile reaches beyond the last row: what is read and written there goes nowhere.
    if dispatch == "sorted":
        tile = tile_rows(n * k, n_experts)
        source_m = jnp.pad(order_m, (0, tile)) // k
        y_md = _by_expert(cfg, tile, x_nd[source_m], size_e, w)
    else:
        tile = gmm.tile_rows(n * k, n_experts)
        source_m = jnp.pad(order_m, (0, -n * k % tile)) // k
        y_md = _by_kernel(cfg, tile, dispatch == "interpreted", x_nd[source_m], size_e, w)
    parts = [y_md[place_n] * weight_nk[:, i, None] for i, place_n in enumerate(place_m.reshape(n, k).T)]
    return functools.reduce(jnp.add, parts).astype(x_nd.dtype)


@functools.partial(
    jax.checkpoint, static_argnums=(0, 1, 2), policy=jax.checkpoint_policies.save_only_these_names("experts")
)
def _by_kernel(cfg: MoeConfig, tile: int, interpret: bool, x_md: jax.Array, size_e: jax.Array, w: Experts) -> jax.Array:
    """As `_by_expert`, for rows [M, D] of whole tiles. Packed weights become numbers a product at a time."""

    def product(x_mi: jax.Array, w: Any, bias_eo: jax.Array | None) -> jax.Array:
        packed = isinstance(w, Packed)
        if packed:
            x_mi, w = mxfp4.halves(x_mi), mxfp4.unpacked_by_input(w.blocks_eogb, w.scales_eog, x_mi.dtype)
        return gmm.product(x_mi, w, bias_eo, size_e, tile=tile, interpret=interpret, inputs_first=packed)

    pairs = (w.gate_efd, w.gate_bias_ef), (w.up_efd, w.up_bias_ef)
    gate_mf, up_mf = (checkpoint_name(product(x_md, *pair), "experts") for pair in pairs)
    return product(gated(gate_mf, up_mf, cfg), w.down_edf, w.down_bias_ed)


class MoE(nnx.Module):
    """A feed-forward of experts, [B, T, D] -> [B, T, D]."""

    def __init__(self, cfg: MoeConfig, weight: Callable[[str], Any], layout: Layout | None = None):
        self.cfg, self.layout = cfg, layout
        self.router, self.router_bias = (_param(weight(f"moe.{name}")) for name in ("router_ed", "router_bias_e"))
        for name in Experts._fields:
            setattr(self, name, _weight(weight, f"moe.{name}"))

    def logits(self, x_nd: jax.Array) -> jax.Array:
        """The router's, float32 [N, E]."""
        return router_logits(x_nd, _value(self.router), _value(self.router_bias))

    def __call__(self, x_btd: jax.Array, times_bt: jax.Array | None = None) -> tuple[jax.Array, Load | None]:
        """(the layer's output, its load by tokens that count `times_bt` times each; None without it)."""
        logit_bte = self.logits(x_btd)
        weight_btk, expert_btk = route(logit_bte, self.cfg.top_k, self.cfg.norm_topk)
        w = Experts(*(_value(getattr(self, name)) for name in Experts._fields))
        dispatch: Dispatch = "kernel" if platform(self.layout) == "tpu" else "sorted"
        product = functools.partial(experts, cfg=self.cfg, dispatch=dispatch)
        y_btd = over_mesh(product, self.layout, x_btd, weight_btk, expert_btk, w)
        if times_bt is None:
            return y_btd, None
        return y_btd, load(logit_bte.reshape(-1, logit_bte.shape[-1]), self.cfg.top_k, times_bt.reshape(-1))


class PackedParam(nnx.Module):
    """The two parameters of a weight held in MXFP4."""

    def __init__(self, blocks_eogb: jax.Array, scales_eog: jax.Array):
        self.blocks_eogb, self.scales_eog = nnx.Param(blocks_eogb), nnx.Param(scales_eog)


def _weight(weight: Callable[[str], Any], path: str) -> Any:
    blocks, scales = (weight(part) for part in packed_paths(path))
    return _param(weight(path)) if blocks is None or scales is None else PackedParam(blocks, scales)


def _param(x: jax.Array | None) -> Any:
    return None if x is None else nnx.Param(x)


def _value(param: Any) -> Any:
    if isinstance(param, PackedParam):
        return Packed(param.blocks_eogb[...], param.scales_eog[...])
    return None if param is None else param[...]


# ---- tiles of sorted rows


def tile_rows(rows: int, groups: int) -> int:
    """Rows of a tile: few against a group, whose last tile is partly wasted, but enough for a good product."""
    return int(np.clip(2 ** round(math.log2(max(rows / groups, 1)) / 2 + 2.5), 8, 128))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _by_expert(cfg: MoeConfig, tile: int, x_md: jax.Array, size_e: jax.Array, w: Experts) -> jax.Array:
    """`expert` on every row [M, D]: those of the first expert, size_e[0] of them, then those of the second, ..."""

    def group(e: jax.Array, start: jax.Array, tiles: jax.Array, y_md: jax.Array) -> jax.Array:
        mine = dense(_take(w, e), x_md.dtype)  # one expert's numbers at a time

        def one(i: jax.Array, y_md: jax.Array) -> jax.Array:
            # A group's last tile reaches into the next one, whose own tiles come later and write over it.
            y_td = expert(_rows(x_md, start + i * tile, tile), mine, cfg)
            return jax.lax.dynamic_update_slice_in_dim(y_md, y_td, start + i * tile, 0)

        return jax.lax.fori_loop(0, tiles, one, y_md)

    return _over_groups(size_e, tile, group, jnp.zeros_like(x_md))


def _forward(cfg: MoeConfig, tile: int, x_md: jax.Array, size_e: jax.Array, w: Experts) -> tuple[jax.Array, tuple]:
    if any(isinstance(x, Packed) for x in w):
        raise TypeError("packed experts have no gradient: load the model without keep_quantised to train it")
    return _by_expert(cfg, tile, x_md, size_e, w), (x_md, size_e, w)


def _backward(cfg: MoeConfig, tile: int, residuals: tuple, dy_md: jax.Array) -> tuple[jax.Array, None, Experts]:
    x_md, size_e, w = residuals

    def group(e: jax.Array, start: jax.Array, tiles: jax.Array, carry: tuple) -> tuple:
        mine = _take(w, e)

        def one(i: jax.Array, carry: tuple) -> tuple:
            dx_md, dmine = carry
            inside_t1 = (i * tile + jnp.arange(tile) < size_e[e])[:, None]
            dy_td = jnp.where(inside_t1, _rows(dy_md, start + i * tile, tile), 0)
            _, pull = jax.vjp(lambda x, w: expert(x, w, cfg), _rows(x_md, start + i * tile, tile), mine)
            dx_td, dw = pull(dy_td)
            dx_md = jax.lax.dynamic_update_slice_in_dim(dx_md, dx_td, start + i * tile, 0)
            return dx_md, jax.tree.map(jnp.add, dmine, dw)

        dx_md, dw = carry
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), mine)
        dx_md, dmine = jax.lax.fori_loop(0, tiles, one, (dx_md, zeros))
        put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=e, axis=0)
        return dx_md, jax.tree.map(lambda whole, part: put(whole, part.astype(whole.dtype)), dw, dmine)

    dx_md, dw = _over_groups(size_e, tile, group, jax.tree.map(jnp.zeros_like, (x_md, w)))
    return dx_md, None, dw


_by_expert.defvjp(_forward, _backward)


def _take(w: Experts, e: jax.Array) -> Experts:
    return jax.tree.map(lambda x: x[e], w)


def _rows(x_md: jax.Array, start: jax.Array, tile: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x_md, start, tile)


def _over_groups(size_e: jax.Array, tile: int, body: Callable[..., Any], carry: Any) -> Any:
    """`carry = body(group, its first row, its number of tiles, carry)` for every group that has rows, in order."""
    start_e, tiles_e = jnp.cumsum(size_e) - size_e, (size_e + tile - 1) // tile
    active_e = jnp.argsort(size_e == 0, stable=True)

    def one(i: jax.Array, carry: Any) -> Any:
        e = active_e[i]
        return body(e, start_e[e], tiles_e[e], carry)

    return jax.lax.fori_loop(0, (size_e > 0).sum(), one, carry)
