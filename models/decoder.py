"""The decoder: one pre-norm transformer, made of small Flax NNX modules, for every family.

Weights keep the checkpoint's own [out, in] orientation: it streams from file to device without a transpose, and the
products below contract the last axis of both sides, which is the fast form on the CPU too.

Layers come in two layouts of the same numbers: stacked ([L, ...] leaves, scanned: one layer is compiled, which is what
TPU training and large models want) and unstacked (a list of L layers, a plain loop: XLA's CPU backend copies every
slice of a stacked weight before it multiplies, so decoding there is twice as fast unstacked). Unstacked layers also
join the products that share an input (q, k, v; gate, up).

Legend: B batch, T query length, D model, N heads, K kv heads, H head dim, F ffn, V vocabulary, L layers.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from . import attention, head, lora, moe, rope
from .config import ModelConfig
from .params import param_layers
from .sharding import Layout, platform

EVERYTHING = 2**30
"""A window that no context fills."""


class Own(NamedTuple):
    """What a layer's attention has of its own: a sliding window, or None for all keys; logits of sinks [N], or None."""

    window: int | jax.Array | None
    sink_n: jax.Array | None


Attend = Callable[[Any, Own, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
"""attend(per_layer, own, q_btnh, k_btkh, v_btkh) -> (out_btnh, anything to collect per layer)."""


Remat = Literal["none", "dots", "full"]
"""What a layer keeps for its backward pass: all; the results of weight products and of attention; its input alone."""

InSlots = tuple[jax.Array, int]
"""What the attention kernel must know of rows in slots (`kernels.slots`): codes int32 [B, T]; their reach in blocks."""

Weight = Callable[[str], Any]
"""A layer's parameter by its name inside the layer; None where the family has none."""


def _remat(layer: Callable, remat: Remat, scanned: bool) -> Callable:
    """The layer with `remat`. Only in a scan can it not be merged with its recomputation by the compiler."""
    if remat == "none":
        return layer
    policies = jax.checkpoint_policies
    dots = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(attention.SAVED)
    )
    return jax.checkpoint(layer, policy=dots if remat == "dots" else None, prevent_cse=not scanned)


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


def _norm(cfg: ModelConfig, scale: jax.Array | None) -> Any:
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
        self.q_norm, self.k_norm = (_norm(cfg, weight(f"attn.{x}_norm.scale_h")) for x in "qk")
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
        self.attn_norm, self.mlp_norm = (_norm(cfg, weight(f"{x}_norm.scale_d")) for x in ("attn", "mlp"))
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
        x_btd = _placed(self.layout, x_btd + self.attn.out(o_btnh))
        y_btd, load = self._feed_forward(self.mlp_norm(x_btd), times_bt)
        return _placed(self.layout, x_btd + y_btd), collected if times_bt is None else (collected, load)

    def _feed_forward(self, x_btd: jax.Array, times_bt: jax.Array | None) -> tuple[jax.Array, moe.Load | None]:
        if isinstance(self.mlp, moe.MoE):
            return self.mlp(x_btd, times_bt)
        none_e = jnp.zeros(self.n_experts)
        return self.mlp(x_btd), moe.Load(none_e, none_e, jnp.zeros(()))


def _placed(layout: Layout | None, x_btd: jax.Array) -> jax.Array:
    return x_btd if layout is None else layout.place(x_btd)


def _runs(cfg: ModelConfig) -> list[range]:
    """The layers, cut where dense ones meet ones with experts."""
    dense = [cfg.moe is None or i in cfg.moe.dense_layers for i in range(cfg.n_layers)]
    cuts = [0, *(i for i in range(1, cfg.n_layers) if dense[i] != dense[i - 1]), cfg.n_layers]
    return [range(*pair) for pair in itertools.pairwise(cuts)]


def _scan_alike(
    run: Callable, layers: Layer, x: jax.Array, per_layer: Any, windows: tuple, remat: Remat
) -> tuple[jax.Array, Any]:
    """Run a stack of layers, one after the other: (x, what they collected, stacked)."""
    graph, state = nnx.split(layers)
    alike = len(set(windows)) == 1
    # Layers of one scan share their code: where windows differ they are numbers, and no window is a very wide one.
    window_l = None if alike else jnp.asarray([EVERYTHING if w is None else w for w in windows], jnp.int32)

    def body(x: jax.Array, xs: tuple) -> tuple[jax.Array, Any]:
        return run(nnx.merge(graph, xs[0]), x, xs[1], windows[0] if alike else xs[2])

    return jax.lax.scan(_remat(body, remat, scanned=True), x, (state, per_layer, window_l))


class Table(nnx.Module):
    """A [V, D] matrix: the embedding, and the output head when it is not tied to it."""

    def __init__(self, w_vd: jax.Array):
        self.w_vd = nnx.Param(w_vd)


class Decoder(nnx.Module):
    """Built from a flat {path: array} dict as the loader gives it (see `params.param_specs` for paths and shapes).

    Stacked layers may have adapters among their parameters (`lora.adapter_specs`).

    stacked: keep the layers stacked and scan them; otherwise a list of layers, their input products joined, and a loop.
        Where dense layers stand among those with experts, each run of like layers is a stack of its own.
    layout: the mesh that the parameters lie on; None for a single device.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        params: Mapping[str, jax.Array],
        *,
        stacked: bool = True,
        layout: Layout | None = None,
    ):
        self.cfg, self.stacked, self.layout = cfg, stacked, layout
        self.embed = Table(params["embed.w_vd"])
        self.final_norm = _norm(cfg, params["final_norm.scale_d"])
        self.head = Table(params["head.w_vd"]) if "head.w_vd" in params else None

        def layer(run: range) -> Layer:
            def weight(name: str) -> jax.Array | None:
                path = f"layers.{name}"
                own = [at for at, i in enumerate(param_layers(cfg, path)) if i in run]
                w = params.get(path) if own else None
                if w is None or not stacked:
                    return w if w is None else w[own[0]]
                return w if len(own) == len(w) else w[own[0] : own[-1] + 1]

            return Layer(cfg, weight, joined=not stacked, layout=layout)

        self.runs = tuple(_runs(cfg) if stacked else [range(i, i + 1) for i in range(cfg.n_layers)])
        layers = [layer(run) for run in self.runs]
        self.layers: Any = layers[0] if stacked and len(layers) == 1 else nnx.List(layers)

    def embed_tokens(self, ids_bt: jax.Array) -> jax.Array:
        return self.embed.w_vd[...][ids_bt]

    def run_layers(
        self,
        x_btd: jax.Array,
        pos_bt: jax.Array,
        attend: Attend,
        per_layer: Any = None,
        *,
        remat: Remat = "none",
        times_bt: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """Run every layer and the final norm: (x_btd, what `attend` collected, per layer).

        `per_layer` is handed to `attend` a layer at a time; it and the result are stacked [L, ...] pytrees when the
        layers are stacked, else lists of L pytrees. `remat`: what of a layer its backward pass finds kept.
        With `times_bt` every layer collects a pair: what `attend` did, and its `moe.Load` by tokens counted so often.
        """
        inv_f = rope.inverse_frequencies(self.cfg.rope, self.cfg.head_dim)
        cos, sin = rope.rotation(inv_f, pos_bt, x_btd.dtype, self.cfg.rope.magnitude)
        windows = self.cfg.windows or (None,) * self.cfg.n_layers

        def run(layer: Layer, x: jax.Array, mine: Any, window: Any) -> tuple[jax.Array, Any]:
            return layer(x, cos, sin, attend, mine, window, times_bt)

        x_btd = _placed(self.layout, x_btd)
        if self.stacked:
            x_btd, collected = self._scan(run, x_btd, per_layer, windows, remat)
        else:
            collected = []
            per_layer = [None] * self.cfg.n_layers if per_layer is None else per_layer
            for layer, mine, window in zip(self.layers, per_layer, windows, strict=True):
                bound = functools.partial(run, layer, mine=mine, window=window)
                x_btd, got = _remat(bound, remat, scanned=False)(x_btd)
                collected.append(got)
        return self.final_norm(x_btd), collected

    def _scan(self, run: Callable, x: jax.Array, per_layer: Any, windows: tuple, remat: Remat) -> tuple[jax.Array, Any]:
        if isinstance(self.layers, Layer):
            return _scan_alike(run, self.layers, x, per_layer, windows, remat)
        collected = []
        for layers, part in zip(self.layers, self.runs, strict=True):
            within = slice(part.start, part.stop)
            mine = jax.tree.map(lambda leaf, within=within: leaf[within], per_layer)
            x, got = _scan_alike(run, layers, x, mine, windows[within], remat)
            collected.append(got)
        return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *collected)

    @property
    def table(self) -> jax.Array:
        """The output head [V, D]; the embedding where they are tied."""
        return (self.embed if self.head is None else self.head).w_vd[...]

    def logits(self, x_btd: jax.Array) -> jax.Array:
        """float32 [..., V]."""
        return jnp.einsum("...d,vd->...v", x_btd, self.table, preferred_element_type=jnp.float32)

    def hidden(
        self,
        ids_bt: jax.Array,
        pos_bt: jax.Array | None = None,
        segment_bt: jax.Array | None = None,
        parent_bt: jax.Array | None = None,
        remat: Remat = "none",
        in_slots: InSlots | None = None,
    ) -> jax.Array:
        """Final hidden states of whole rows, [B, T, D]; padding (segment 0) gives finite, meaningless ones.

        Without segments a row is one sequence. A token sees what lies before it in its segment and in its parent
        segment (`attention.self_attention`). `remat`: see `run_layers`. in_slots: of rows for the TPU's kernel, which
        then runs (on the CPU it is interpreted).
        """
        return self._rows(ids_bt, pos_bt, segment_bt, parent_bt, remat, in_slots)[0]

    def hidden_and_load(
        self,
        ids_bt: jax.Array,
        pos_bt: jax.Array,
        segment_bt: jax.Array,
        parent_bt: jax.Array,
        times_bt: jax.Array,
        remat: Remat = "none",
        in_slots: InSlots | None = None,
    ) -> tuple[jax.Array, moe.Load]:
        """`hidden`, and how the tokens load the experts, each `times_bt` times, over the layers that have them."""
        x_btd, got = self._rows(ids_bt, pos_bt, segment_bt, parent_bt, remat, in_slots, times_bt)
        load = got[1] if self.stacked else jax.tree.map(lambda *parts: jnp.stack(parts), *(pair[1] for pair in got))
        return x_btd, jax.tree.map(lambda part_l: part_l.sum(0), load)

    def _rows(
        self,
        ids_bt: jax.Array,
        pos_bt: jax.Array | None,
        segment_bt: jax.Array | None,
        parent_bt: jax.Array | None,
        remat: Remat,
        in_slots: InSlots | None,
        times_bt: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        b, t = ids_bt.shape
        pos_bt = jnp.broadcast_to(jnp.arange(t), (b, t)) if pos_bt is None else pos_bt
        segment_bt = jnp.ones((b, t), jnp.int32) if segment_bt is None else segment_bt
        block = attention.block_for(platform(self.layout), t)
        kernel = None if in_slots is None else self._kernel(*in_slots, segment_bt if parent_bt is None else parent_bt)

        def attend(_, own, q, k, v):
            if self.layout is not None and self.layout.sequence:
                q, k, v = (self.layout.place_heads(*x) for x in ((q, "heads"), (k, "kv_heads"), (v, "kv_heads")))
            if kernel is not None:
                return kernel(q, k, v, own.window, own.sink_n), None
            made = attention.self_attention(
                q, k, v, pos_bt, segment_bt, own.window, block, parent_bt=parent_bt, sink_n=own.sink_n
            )
            return made, None

        return self.run_layers(self.embed_tokens(ids_bt), pos_bt, attend, remat=remat, times_bt=times_bt)

    def _kernel(self, code_bt: jax.Array, reach: int, group_bt: jax.Array) -> Callable[..., jax.Array]:
        from .kernels.splash import Attention  # its imports take long, and the CPU has no use for them

        return Attention(code_bt, group_bt, self.cfg.windows or (None,), reach, self.layout, wide=EVERYTHING)


def forward(model: Decoder, ids_bt: jax.Array, pos_bt: jax.Array | None = None, segment_bt: jax.Array | None = None):
    """Logits of whole sequences: int32 [B, T] -> float32 [B, T, V]."""
    return model.logits(model.hidden(ids_bt, pos_bt, segment_bt))


def token_logprobs(
    model: Decoder, ids_bt: jax.Array, valid_v: jax.Array | None = None, temperature: float = 1.0
) -> jax.Array:
    """log p(ids[t] | ids[<t]) for t >= 1, float32 [B, T-1], as a trainer computes them: one full forward.

    `valid_v` bool [V] removes undecodable vocabulary rows from the normaliser, as the sampler does.
    """
    return head.target_logprobs(model.hidden(ids_bt)[:, :-1], model.table, ids_bt[:, 1:], valid_v, temperature)[0]
