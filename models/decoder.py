"""The decoder: one pre-norm transformer for every family, made of `layers.Layer`s.

Layers come in two layouts of the same numbers: stacked ([L, ...] leaves, scanned: one layer is compiled, which is what
TPU training and large models want) and unstacked (a list of L layers, a plain loop: XLA's CPU backend copies every
slice of a stacked weight before it multiplies, so decoding there is twice as fast unstacked). Unstacked layers also
join the products that share an input (q, k, v; gate, up).

Legend: B batch, T query length, D model, V vocabulary, L layers.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from . import attention, head, moe, rope
from .config import ModelConfig
from .layers import Attend, Layer, norm, placed
from .params import param_layers
from .sharding import Layout, platform

EVERYTHING = 2**30
"""A window that no context fills."""

Remat = Literal["none", "dots", "full"]
"""What a layer keeps for its backward pass: all; the results of weight products and of attention; its input alone."""

InSlots = tuple[jax.Array, int]
"""What the attention kernel must know of rows in slots (`kernels.slots`): codes int32 [B, T]; their reach in blocks."""


def _remat(layer: Callable, remat: Remat, scanned: bool) -> Callable:
    """The layer with `remat`. Only in a scan can it not be merged with its recomputation by the compiler."""
    if remat == "none":
        return layer
    policies = jax.checkpoint_policies
    dots = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(attention.SAVED)
    )
    return jax.checkpoint(layer, policy=dots if remat == "dots" else None, prevent_cse=not scanned)


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
        self.final_norm = norm(cfg, params["final_norm.scale_d"])
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

        x_btd = placed(self.layout, x_btd)
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
