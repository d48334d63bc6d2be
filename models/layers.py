"""One layer of a decoder and what it is made of: small Flax NNX modules over a layer's weights.

Weights keep the checkpoint's own [out, in] orientation: it streams from file to device without a transpose, and the
products below contract the last axis of both sides, which is the fast form on the CPU too.

Legend: B batch, T query length, D model, N heads, K kv heads, H head dim, F ffn, E experts, I inputs, O outputs.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from . import lora, moe, rope
from .config import ModelConfig
from .sharding import Layout


class Own(NamedTuple):
    """What a layer's attention has of its own: a sliding window, or None for all keys; logits of sinks [N], or None."""

    window: int | jax.Array | None
    sink_n: jax.Array | None


Attend = Callable[[Any, Own, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
"""attend(per_layer, own, q_btnh, k_btkh, v_btkh) -> (out_btnh, anything to collect per layer)."""

Weight = Callable[[str], Any]
"""A layer's parameter by its name inside the layer; None where the family has none."""


def _param(x: jax.Array | None) -> Any:
    return None if x is None else nnx.Param(x)


class RMSNorm(nnx.Module):
    """x / rms(x) * scale. The mean square is float32; the normalised x is cast back before the scale (HF's order),
    or after it with `scale_f32`."""

    def __init__(self, scale: jax.Array, eps: float, scale_f32: bool = False):
        self.scale, self.eps, self.scale_f32 = nnx.Param(scale), eps, scale_f32

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        y = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + self.eps)
        if self.scale_f32:
            return (self.scale[...].astype(jnp.float32) * y).astype(x.dtype)
        return self.scale[...] * y.astype(x.dtype)


def norm(cfg: ModelConfig, scale: jax.Array | None) -> Any:
    """A layer's or the final norm; None without a scale."""
    return None if scale is None else RMSNorm(scale, cfg.norm_eps, cfg.norm_scale_f32)


def project(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """x [..., I] times w [*O, I] over the last axis of both: [..., *O], plus bias [*O].

    Both are flattened to two axes first: left to itself XLA's CPU backend transposes a weight of three axes at every
    call, and takes twice as long for the gradient of an x of three.
    """
    y = jax.lax.dot_general(x.reshape(-1, x.shape[-1]), w.reshape(-1, w.shape[-1]), (((1,), (1,)), ((), ())))
    y = y.reshape(*x.shape[:-1], *w.shape[:-1])
    return y if bias is None else y + bias


class Linear(nnx.Module):
    """x [..., *I] times w [*O, *I] plus bias [*O]: [..., *O]. With an adapter, (x a^T) b^T is added (see `lora`).

    inputs: how many axes of w are inputs.
    """

    def __init__(self, w: jax.Array, bias: jax.Array | None, adapter: tuple[jax.Array, jax.Array] | None, inputs: int):
        self.w, self.bias = nnx.Param(w), _param(bias)
        self.a, self.b = (_param(x) for x in adapter or (None, None))
        self.inputs = inputs

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(*x.shape[: x.ndim - self.inputs], -1)
        y = project(x, self._matrix(self.w), None if self.bias is None else self.bias[...])
        return y if self.a is None else y + project(project(x, self._matrix(self.a)), self.b[...])

    def _matrix(self, w: Any) -> jax.Array:
        w = w[...]
        return w.reshape(*w.shape[: w.ndim - self.inputs], -1)


def _linear(weight: Weight, path: str) -> Linear:
    """The layer's projection called `path`, "attn.q_nhd", with its bias and adapter if it has them."""
    outputs, inputs = lora.split_axes(path)
    a, b = (weight(name) for name in lora.adapter_paths(path))
    bias = weight(f"{path.rsplit('_', 1)[0]}_bias_{outputs}")
    return Linear(weight(path), bias, None if a is None or b is None else (a, b), len(inputs))


def _linears(weight: Weight, paths: Sequence[str], joined: bool) -> nnx.List:
    """Projections of one input. joined: as a single one (fewer, larger products decode faster on the CPU)."""
    made = [_linear(weight, path) for path in paths]
    if joined:
        if any(one.a is not None for one in made):
            raise ValueError("layers in a list have no adapters: merge them first, or keep the layers stacked")
        bias = None if made[0].bias is None else jnp.concatenate([one.bias[...] for one in made])
        made = [Linear(jnp.concatenate([one.w[...] for one in made]), bias, None, made[0].inputs)]
    return nnx.List(made)


class Attention(nnx.Module):
    """Projections, optional q/k norms and rotation. What the queries attend to is the caller's business."""

    def __init__(self, cfg: ModelConfig, weight: Weight, joined: bool):
        self.qkv_in = _linears(weight, ("attn.q_nhd", "attn.k_khd", "attn.v_khd"), joined)
        self.out = _linear(weight, "attn.o_dnh")
        self.q_norm, self.k_norm = (norm(cfg, weight(f"attn.{x}_norm.scale_h")) for x in "qk")
        self.sink = _param(weight("attn.sink_n"))
        self.heads = (cfg.n_heads, cfg.n_kv_heads)

    def qkv(self, x_btd: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """q_btnh and k_btkh rotated, v_btkh."""
        made = [linear(x_btd) for linear in self.qkv_in]
        if len(made) == 1:
            n, k = self.heads
            made = jnp.split(made[0], [n, n + k], axis=2)
        q_btnh, k_btkh, v_btkh = made
        if self.q_norm is not None and self.k_norm is not None:
            q_btnh, k_btkh = self.q_norm(q_btnh), self.k_norm(k_btkh)
        return rope.rotate(q_btnh, cos, sin), rope.rotate(k_btkh, cos, sin), v_btkh


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, weight: Weight, joined: bool):
        self.gate_up = _linears(weight, ("mlp.gate_fd", "mlp.up_fd"), joined)
        self.down = _linear(weight, "mlp.down_df")

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        made = [linear(x_btd) for linear in self.gate_up]
        gate_btf, up_btf = jnp.split(made[0], 2, axis=-1) if len(made) == 1 else made
        return self.down(jax.nn.silu(gate_btf) * up_btf)


class Layer(nnx.Module):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)), where mlp may be a mixture of experts."""

    def __init__(self, cfg: ModelConfig, weight: Weight, joined: bool, layout: Layout | None):
        self.layout = layout
        self.attn_norm, self.mlp_norm = (norm(cfg, weight(f"{x}_norm.scale_d")) for x in ("attn", "mlp"))
        self.attn = Attention(cfg, weight, joined)
        experts = None if cfg.moe is None or weight("moe.router_ed") is None else cfg.moe
        self.mlp = MLP(weight, joined) if experts is None else moe.MoE(experts, weight, layout)
        self.n_experts = 0 if cfg.moe is None else cfg.moe.n_experts

    def __call__(
        self,
        x_btd: jax.Array,
        cos: jax.Array,
        sin: jax.Array,
        attend: Attend,
        per_layer: Any,
        window: Any,
        times_bt: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """(x_btd, what `attend` collected); with `times_bt` also its router's `moe.Load`, zeros where it has none."""
        own = Own(window, None if self.attn.sink is None else self.attn.sink[...])
        o_btnh, collected = attend(per_layer, own, *self.attn.qkv(self.attn_norm(x_btd), cos, sin))
        x_btd = placed(self.layout, x_btd + self.attn.out(o_btnh))
        y_btd, load = self._feed_forward(self.mlp_norm(x_btd), times_bt)
        return placed(self.layout, x_btd + y_btd), collected if times_bt is None else (collected, load)

    def _feed_forward(self, x_btd: jax.Array, times_bt: jax.Array | None) -> tuple[jax.Array, moe.Load | None]:
        if isinstance(self.mlp, moe.MoE):
            return self.mlp(x_btd, times_bt)
        none_e = jnp.zeros(self.n_experts)
        return self.mlp(x_btd), moe.Load(none_e, none_e, jnp.zeros(()))


def placed(layout: Layout | None, x_btd: jax.Array) -> jax.Array:
    """Activations between layers where the layout wants them."""
    return x_btd if layout is None else layout.place(x_btd)
