"""The decoder: one pre-norm transformer, made of small Flax NNX modules, for every family.

Weights keep the checkpoint's own [out, in] orientation: it streams from file to device without a transpose, and the
products below contract the last axis of both sides, which is the fast form on the CPU too.

Layers come in two layouts of the same numbers: stacked ([L, ...] leaves, scanned: one layer is compiled, which is what
TPU training and large models want) and unstacked (a list of L layers, a plain loop: XLA's CPU backend copies every
slice of a stacked weight before it multiplies, so decoding there is twice as fast unstacked).

Legend: B batch, T query length, D model, N heads, K kv heads, H head dim, F ffn, V vocabulary, L layers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from . import attention, rope
from .config import ModelConfig
from .params import param_specs

Attend = Callable[[Any, int | None, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
"""attend(per_layer, window, q_btnh, k_btkh, v_btkh) -> (out_btnh, anything to collect per layer)."""


class RMSNorm(nnx.Module):
    """x / rms(x) * scale. The mean square is float32; the normalised x is cast back before the scale (HF's order)."""

    def __init__(self, scale: jax.Array, eps: float, axis: str):
        setattr(self, f"scale_{axis}", nnx.Param(scale))
        self.axis, self.eps = axis, eps

    def __call__(self, x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        y = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + self.eps)
        return getattr(self, f"scale_{self.axis}")[...] * y.astype(x.dtype)


def _add(x: jax.Array, bias: nnx.Param | None) -> jax.Array:
    return x if bias is None else x + bias[...]


class Attention(nnx.Module):
    """Projections, optional q/k norms and rotation. What the queries attend to is the caller's business."""

    def __init__(self, cfg: ModelConfig, weight: Callable[[str], nnx.Param | None]):
        self.q_nhd, self.k_khd, self.v_khd = weight("q_nhd"), weight("k_khd"), weight("v_khd")
        self.o_dnh = weight("o_dnh")
        self.q_bias_nh, self.k_bias_kh, self.v_bias_kh = weight("q_bias_nh"), weight("k_bias_kh"), weight("v_bias_kh")
        self.o_bias_d = weight("o_bias_d")
        norms = weight("q_norm.scale_h"), weight("k_norm.scale_h")
        self.q_norm = RMSNorm(norms[0][...], cfg.norm_eps, "h") if norms[0] is not None else None
        self.k_norm = RMSNorm(norms[1][...], cfg.norm_eps, "h") if norms[1] is not None else None

    def qkv(self, x_btd: jax.Array, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        q_btnh = _add(jnp.einsum("btd,nhd->btnh", x_btd, self.q_nhd[...]), self.q_bias_nh)
        k_btkh = _add(jnp.einsum("btd,khd->btkh", x_btd, self.k_khd[...]), self.k_bias_kh)
        v_btkh = _add(jnp.einsum("btd,khd->btkh", x_btd, self.v_khd[...]), self.v_bias_kh)
        if self.q_norm is not None and self.k_norm is not None:
            q_btnh, k_btkh = self.q_norm(q_btnh), self.k_norm(k_btkh)
        return rope.rotate(q_btnh, cos, sin), rope.rotate(k_btkh, cos, sin), v_btkh

    def out(self, o_btnh: jax.Array) -> jax.Array:
        return _add(jnp.einsum("btnh,dnh->btd", o_btnh, self.o_dnh[...]), self.o_bias_d)


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, weight: Callable[[str], nnx.Param | None]):
        self.gate_fd, self.up_fd, self.down_df = weight("gate_fd"), weight("up_fd"), weight("down_df")
        self.gate_bias_f, self.up_bias_f = weight("gate_bias_f"), weight("up_bias_f")
        self.down_bias_d = weight("down_bias_d")

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        gate_btf = _add(jnp.einsum("btd,fd->btf", x_btd, self.gate_fd[...]), self.gate_bias_f)
        up_btf = _add(jnp.einsum("btd,fd->btf", x_btd, self.up_fd[...]), self.up_bias_f)
        return _add(jnp.einsum("btf,df->btd", jax.nn.silu(gate_btf) * up_btf, self.down_df[...]), self.down_bias_d)


class Layer(nnx.Module):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, cfg: ModelConfig, weight: Callable[[str], nnx.Param | None]):
        under = lambda prefix: lambda name: weight(f"{prefix}.{name}")  # noqa: E731
        self.attn_norm = RMSNorm(weight("attn_norm.scale_d")[...], cfg.norm_eps, "d")
        self.attn = Attention(cfg, under("attn"))
        self.mlp_norm = RMSNorm(weight("mlp_norm.scale_d")[...], cfg.norm_eps, "d")
        self.mlp = MLP(under("mlp"))

    def __call__(
        self, x_btd: jax.Array, cos: jax.Array, sin: jax.Array, attend: Attend, per_layer: Any, window: int | None
    ) -> tuple[jax.Array, Any]:
        o_btnh, collected = attend(per_layer, window, *self.attn.qkv(self.attn_norm(x_btd), cos, sin))
        x_btd = x_btd + self.attn.out(o_btnh)
        return x_btd + self.mlp(self.mlp_norm(x_btd)), collected


class Table(nnx.Module):
    """A [V, D] matrix: the embedding, and the output head when it is not tied to it."""

    def __init__(self, w_vd: jax.Array):
        self.w_vd = nnx.Param(w_vd)


class Decoder(nnx.Module):
    """Built from a flat {path: array} dict as the loader gives it (see `params.param_specs` for paths and shapes).

    stacked: keep the layers stacked and scan them; otherwise a list of layers and a loop.
    """

    def __init__(self, cfg: ModelConfig, params: Mapping[str, jax.Array], *, stacked: bool = True):
        self.cfg, self.stacked = cfg, stacked
        self.embed = Table(params["embed.w_vd"])
        self.final_norm = RMSNorm(params["final_norm.scale_d"], cfg.norm_eps, "d")
        self.head = Table(params["head.w_vd"]) if "head.w_vd" in params else None

        def layer(index: int | None) -> Layer:
            def weight(name: str) -> nnx.Param | None:
                w = params.get(f"layers.{name}")
                return None if w is None else nnx.Param(w if index is None else w[index])

            return Layer(cfg, weight)

        self.layers = layer(None) if stacked else nnx.List([layer(i) for i in range(cfg.n_layers)])

    def embed_tokens(self, ids_bt: jax.Array) -> jax.Array:
        return self.embed.w_vd[...][ids_bt]

    def run_layers(
        self, x_btd: jax.Array, pos_bt: jax.Array, attend: Attend, per_layer: Any = None
    ) -> tuple[jax.Array, Any]:
        """Run every layer and the final norm: (x_btd, what `attend` collected, per layer).

        `per_layer` is handed to `attend` a layer at a time; it and the result are stacked [L, ...] pytrees when the
        layers are stacked, else lists of L pytrees.
        """
        cos, sin = rope.rotation(rope.inverse_frequencies(self.cfg.rope, self.cfg.head_dim), pos_bt, x_btd.dtype)
        windows = self.cfg.windows or (None,) * self.cfg.n_layers
        if isinstance(self.layers, Layer):
            x_btd, collected = self._scan(x_btd, cos, sin, attend, per_layer, windows)
        else:
            collected = []
            per_layer = [None] * self.cfg.n_layers if per_layer is None else per_layer
            for layer, mine, window in zip(self.layers, per_layer, windows, strict=True):
                x_btd, got = layer(x_btd, cos, sin, attend, mine, window)
                collected.append(got)
        return self.final_norm(x_btd), collected

    def _scan(
        self, x: jax.Array, cos: jax.Array, sin: jax.Array, attend: Attend, per_layer: Any, windows: tuple
    ) -> tuple[jax.Array, Any]:
        if len(set(windows)) > 1:
            raise NotImplementedError("layers with different windows cannot share one scan; load with stacked=False")
        graph, state = nnx.split(self.layers)

        def body(x: jax.Array, xs: tuple) -> tuple[jax.Array, Any]:
            layer = nnx.merge(graph, xs[0])
            return layer(x, cos, sin, attend, xs[1], windows[0])

        return jax.lax.scan(body, x, (state, per_layer))

    def logits(self, x_btd: jax.Array) -> jax.Array:
        """float32 [..., V]."""
        table = self.embed if self.head is None else self.head
        return jnp.einsum("...d,vd->...v", x_btd, table.w_vd[...], preferred_element_type=jnp.float32)

    def hidden(self, ids_bt: jax.Array, pos_bt: jax.Array | None = None, segment_bt: jax.Array | None = None):
        """Final hidden states of whole sequences, [B, T, D]; padding (segment 0) gives finite, meaningless rows."""
        b, t = ids_bt.shape
        pos_bt = jnp.broadcast_to(jnp.arange(t), (b, t)) if pos_bt is None else pos_bt
        segment_bt = jnp.ones((b, t), jnp.int32) if segment_bt is None else segment_bt

        def attend(_, window, q, k, v):
            return attention.self_attention(q, k, v, pos_bt, segment_bt, window), None

        return self.run_layers(self.embed_tokens(ids_bt), pos_bt, attend)[0]


def forward(model: Decoder, ids_bt: jax.Array, pos_bt: jax.Array | None = None, segment_bt: jax.Array | None = None):
    """Logits of whole sequences: int32 [B, T] -> float32 [B, T, V]."""
    return model.logits(model.hidden(ids_bt, pos_bt, segment_bt))


def token_logprobs(
    model: Decoder, ids_bt: jax.Array, valid_v: jax.Array | None = None, temperature: float = 1.0, chunk: int = 1024
) -> jax.Array:
    """log p(ids[t] | ids[<t]) for t >= 1, float32 [B, T-1], as a trainer computes them: one full forward.

    The [B, T, V] logits are never held whole: positions go through the head `chunk` at a time. `valid_v` bool [V]
    removes undecodable vocabulary rows from the normaliser, as the sampler does.
    """
    x_btd, next_bt = model.hidden(ids_bt)[:, :-1], ids_bt[:, 1:]
    b, t, d = x_btd.shape
    size = min(chunk, t)
    pad = -t % size
    x = jnp.pad(x_btd, ((0, 0), (0, pad), (0, 0))).reshape(b, -1, size, d).swapaxes(0, 1)
    nxt = jnp.pad(next_bt, ((0, 0), (0, pad))).reshape(b, -1, size).swapaxes(0, 1)

    @jax.checkpoint
    def piece(xs: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = model.logits(xs[0]) / temperature
        if valid_v is not None:
            logits = jnp.where(valid_v, logits, attention.MASKED)
        picked = jnp.take_along_axis(logits, xs[1][..., None], -1)[..., 0]
        return picked - jax.nn.logsumexp(logits, -1)

    return jax.lax.map(piece, (x, nxt)).swapaxes(0, 1).reshape(b, -1)[:, :t]


def abstract_params(cfg: ModelConfig, dtype: jnp.dtype | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of every parameter, for ahead-of-time compilation and memory estimates."""
    return {p: jax.ShapeDtypeStruct(s.shape, dtype or jnp.dtype(cfg.dtype)) for p, s in param_specs(cfg).items()}
