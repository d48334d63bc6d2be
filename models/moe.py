"""Mixtures of experts: a router, a dispatch that sorts tokens by expert, and products of groups of rows.

`grouped_dot` is the one product, and the place for a kernel: rows sorted by group, each group times its own matrix. In
plain XLA it visits the rows tile by tile, so its work grows with the rows and not with the number of experts
(`jax.lax.ragged_dot` is a masked dense product on the CPU and on most TPUs).

Legend: N tokens, D model, F ffn of an expert, E experts, K experts of a token, L layers, T rows of a tile,
        M = N*K rows of tokens sorted by expert, I inputs and O outputs of a product.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from .config import MoeConfig

SAVED = "experts"
"""The name under which a remat policy may keep the experts' products rather than make them again."""


class Experts(NamedTuple):
    """The weights of all experts, [E, outputs, inputs], and their biases [E, outputs], or None."""

    gate_efd: jax.Array
    up_efd: jax.Array
    down_edf: jax.Array
    gate_bias_ef: jax.Array | None = None
    up_bias_ef: jax.Array | None = None
    down_bias_ed: jax.Array | None = None


def router_logits(x_nd: jax.Array, w_ed: jax.Array, bias_e: jax.Array | None = None) -> jax.Array:
    """float32 [N, E], whatever the type of x: which experts are chosen hangs on small differences."""
    logit_ne = jnp.einsum("nd,ed->ne", x_nd, w_ed, preferred_element_type=jnp.float32)
    return logit_ne if bias_e is None else logit_ne + bias_e.astype(jnp.float32)


def route(logit_ne: jax.Array, top_k: int, norm_topk: bool) -> tuple[jax.Array, jax.Array]:
    """(weights float32 [N, K], experts int32 [N, K]) of the best experts of each token.

    norm_topk: weights sum to one. That is a softmax over the chosen logits alone (gpt-oss), or one over all divided by
    the sum of the chosen (Qwen3): the same numbers. Otherwise they are what a softmax over all experts gives.
    """
    top_nk, expert_nk = jax.lax.top_k(logit_ne, top_k)
    total_n1 = jax.nn.logsumexp(top_nk if norm_topk else logit_ne, axis=-1, keepdims=True)
    return jnp.exp(top_nk - total_n1), expert_nk


def load_balancing_loss(logit_lne: jax.Array, top_k: int, mask_n: jax.Array | None = None) -> jax.Array:
    """E times the sum over experts of (share of tokens sent there) x (mean probability given to it), float32 scalar.

    Switch Transformer (Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6), over all layers at once and with K
    choices a token, as transformers' `load_balancing_loss_func` has it: perfect balance gives K. mask_n: bool [N],
    False for padding.
    """
    n_experts = logit_lne.shape[-1]
    p_lne = jax.nn.softmax(logit_lne.astype(jnp.float32), axis=-1)
    hit_lne = jax.nn.one_hot(jax.lax.top_k(p_lne, top_k)[1], n_experts, dtype=jnp.float32).sum(-2)
    weight_n = jnp.ones(logit_lne.shape[1]) if mask_n is None else mask_n.astype(jnp.float32)
    rows = jnp.maximum(weight_n.sum() * logit_lne.shape[0], 1.0)
    share_e, mean_e = (jnp.einsum("lne,n->e", x, weight_n) / rows for x in (hit_lne, p_lne))
    return n_experts * jnp.sum(share_e * mean_e)


def gated(gate: jax.Array, up: jax.Array, cfg: MoeConfig) -> jax.Array:
    """SwiGLU, silu(gate) up; with `clamp` gpt-oss's (up + 1) gate sigmoid(alpha gate), of clamped gate and up.

    gate, up: [..., F]. gate is clamped from above only.
    """
    if cfg.clamp is None:
        return jax.nn.silu(gate) * up
    gate, up = jnp.minimum(gate, cfg.clamp), jnp.clip(up, -cfg.clamp, cfg.clamp)
    return (up + 1) * gate * jax.nn.sigmoid(cfg.alpha * gate)


def experts(x_nd: jax.Array, weight_nk: jax.Array, expert_nk: jax.Array, w: Experts, cfg: MoeConfig) -> jax.Array:
    """The weighted sum of each token's experts, [N, D] in x's type; the sum is made in float32."""
    n, k = expert_nk.shape
    expert_m = expert_nk.reshape(-1)
    order_m = jnp.argsort(expert_m, stable=True)
    size_e = jnp.bincount(expert_m, length=cfg.n_experts)
    sorted_m = expert_m[order_m]

    def product(x_mi: jax.Array, w_eoi: jax.Array, bias_eo: jax.Array | None) -> jax.Array:
        y_mo = checkpoint_name(grouped_dot(x_mi, w_eoi, size_e), SAVED)
        return y_mo if bias_eo is None else y_mo + bias_eo[sorted_m]

    x_md = x_nd[order_m // k]
    h_mf = gated(product(x_md, w.gate_efd, w.gate_bias_ef), product(x_md, w.up_efd, w.up_bias_ef), cfg)
    y_md = product(h_mf, w.down_edf, w.down_bias_ed)
    y_nkd = y_md[jnp.argsort(order_m)].reshape(n, k, -1)
    return jnp.einsum("nkd,nk->nd", y_nkd, weight_nk, preferred_element_type=jnp.float32).astype(x_nd.dtype)


class MoE(nnx.Module):
    """A feed-forward of experts, [B, T, D] -> [B, T, D]."""

    def __init__(self, cfg: MoeConfig, weight: Callable[[str], Any]):
        self.cfg = cfg
        self.router, self.router_bias = (_param(weight(f"moe.{name}")) for name in ("router_ed", "router_bias_e"))
        for name in Experts._fields:
            setattr(self, name, _param(weight(f"moe.{name}")))

    def logits(self, x_nd: jax.Array) -> jax.Array:
        """The router's, float32 [N, E]."""
        return router_logits(x_nd, _value(self.router), _value(self.router_bias))

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        x_nd = x_btd.reshape(-1, x_btd.shape[-1])
        weight_nk, expert_nk = route(self.logits(x_nd), self.cfg.top_k, self.cfg.norm_topk)
        w = Experts(*(_value(getattr(self, name)) for name in Experts._fields))
        return experts(x_nd, weight_nk, expert_nk, w, self.cfg).reshape(x_btd.shape)


def _param(x: jax.Array | None) -> Any:
    return None if x is None else nnx.Param(x)


def _value(param: Any) -> Any:
    return None if param is None else param[...]


# ---- products of groups of rows


@jax.custom_vjp
def grouped_dot(x_mi: jax.Array, w_eoi: jax.Array, size_e: jax.Array) -> jax.Array:
    """Rows times the matrix of their group: x [M, I], w [E, O, I] -> [M, O] in x's type, accumulated in float32.

    size_e: int32 [E], rows of each group; they lie one group after the other and are M in all.
    """
    return _rows_by_group(x_mi, w_eoi, size_e, "ti,oi->to")


def _forward(x_mi: jax.Array, w_eoi: jax.Array, size_e: jax.Array) -> tuple[jax.Array, tuple]:
    return _rows_by_group(x_mi, w_eoi, size_e, "ti,oi->to"), (x_mi, w_eoi, size_e)


def _backward(residuals: tuple, dy_mo: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x_mi, w_eoi, size_e = residuals
    return _rows_by_group(dy_mo, w_eoi, size_e, "to,oi->ti"), _outer_by_group(dy_mo, x_mi, size_e, w_eoi.dtype), None


grouped_dot.defvjp(_forward, _backward)


def tile_rows(rows: int, groups: int) -> int:
    """Rows of a tile: few against a group, whose last tile is partly wasted, but enough for a good product."""
    return int(np.clip(2 ** round(math.log2(max(rows / groups, 1)) / 2 + 2), 8, 128))


def _over_groups(size_e: jax.Array, tile: int, body: Callable[[jax.Array, jax.Array, jax.Array, Any], Any], carry: Any):
    """`body(group, its first row, its number of tiles, carry)` for every group that has rows, in order."""
    start_e, tiles_e = jnp.cumsum(size_e) - size_e, (size_e + tile - 1) // tile
    active_e = jnp.argsort(size_e == 0, stable=True)

    def one(i: jax.Array, carry: Any) -> Any:
        e = active_e[i]
        return body(e, start_e[e], tiles_e[e], carry)

    return jax.lax.fori_loop(0, (size_e > 0).sum(), one, carry)


def _rows_by_group(x_mi: jax.Array, w_eoi: jax.Array, size_e: jax.Array, product: str) -> jax.Array:
    """`product` (an einsum of a tile and one matrix) of every row with its group's matrix."""
    rows, tile = x_mi.shape[0], tile_rows(x_mi.shape[0], w_eoi.shape[0])
    x_mi = jnp.pad(x_mi, ((0, tile), (0, 0)))

    def group(e: jax.Array, start: jax.Array, tiles: jax.Array, out: jax.Array) -> jax.Array:
        w_oi = w_eoi[e]

        def one(i: jax.Array, out: jax.Array) -> jax.Array:
            # The last tile reaches into the next group, whose own tiles come later and write over it.
            x_ti = jax.lax.dynamic_slice_in_dim(x_mi, start + i * tile, tile)
            y_to = jnp.einsum(product, x_ti, w_oi, preferred_element_type=jnp.float32).astype(out.dtype)
            return jax.lax.dynamic_update_slice_in_dim(out, y_to, start + i * tile, 0)

        return jax.lax.fori_loop(0, tiles, one, out)

    width = w_eoi.shape[1 if product.endswith("o") else 2]
    return _over_groups(size_e, tile, group, jnp.zeros((rows + tile, width), x_mi.dtype))[:rows]


def _outer_by_group(dy_mo: jax.Array, x_mi: jax.Array, size_e: jax.Array, dtype: Any) -> jax.Array:
    """[E, O, I]: the sum over each group's rows of dy x^T."""
    tile = tile_rows(x_mi.shape[0], size_e.shape[0])
    dy_mo, x_mi = (jnp.pad(a, ((0, tile), (0, 0))) for a in (dy_mo, x_mi))
    shape = (dy_mo.shape[1], x_mi.shape[1])

    def group(e: jax.Array, start: jax.Array, tiles: jax.Array, dw_eoi: jax.Array) -> jax.Array:
        def one(i: jax.Array, dw_oi: jax.Array) -> jax.Array:
            dy_to, x_ti = (jax.lax.dynamic_slice_in_dim(a, start + i * tile, tile) for a in (dy_mo, x_mi))
            mine_t1 = (i * tile + jnp.arange(tile) < size_e[e])[:, None]
            dy_to = jnp.where(mine_t1, dy_to, 0)
            return dw_oi + jnp.einsum("to,ti->oi", dy_to, x_ti, preferred_element_type=jnp.float32)

        dw_oi = jax.lax.fori_loop(0, tiles, one, jnp.zeros(shape, jnp.float32))
        return jax.lax.dynamic_update_index_in_dim(dw_eoi, dw_oi.astype(dtype), e, 0)

    return _over_groups(size_e, tile, group, jnp.zeros((size_e.shape[0], *shape), dtype))
