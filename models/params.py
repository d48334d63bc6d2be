"""Every parameter of a decoder: its dotted path, its shape and what each dimension is.

This table is the one source that the decoder, loader, exporter and sharding share. The letters after a path's last
underscore name its dimensions, and a path under `layers.` has the layer dimension in front of them, so that
`layers.attn.q_nhd` is [L, N, H, D]. Projections keep the [out, in] orientation of Hugging Face files.

Legend: L layers, V vocabulary, D model, N query heads, K key-value heads, H head dim, F feed-forward,
E experts, R rank of an adapter, G groups of numbers that share a scale, B bytes of a group.
"""

from dataclasses import dataclass

from .config import MXFP4_BLOCK, ModelConfig

AXES = {
    "l": "layers",
    "v": "vocab",
    "d": "embed",
    "n": "heads",
    "k": "kv_heads",
    "h": "head_dim",
    "f": "ffn",
    "e": "experts",
    "r": "rank",
    "g": "groups",
    "b": "bytes",
}
"""Dimension letter -> logical axis name. The router's experts are "routes": every device routes among all of them."""


@dataclass(frozen=True)
class ParamSpec:
    """A parameter's shape with the logical axis of each dimension."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]

    @property
    def stacked(self) -> bool:
        """Whether the first dimension runs over the layers."""
        return self.axes[0] == "layers"

    @property
    def packed(self) -> bool:
        """Whether this is a part of a packed weight: bytes (uint8), not numbers."""
        return "groups" in self.axes

    @property
    def file_shape(self) -> tuple[int, ...]:
        """The shape of one layer's tensor in a file, where heads and head_dim are a single dimension."""
        whole = tuple(slice(0, size) for size in self.layer_shape)
        return tuple(part.stop for part in self.file_index(whole))

    def file_index(self, index: tuple[slice, ...]) -> tuple[slice, ...]:
        """`index` into one layer of the parameter -> the index into its tensor in a file. head_dim is never cut."""
        merged: list[slice] = []
        axes, shape = self.axes[self.stacked :], self.layer_shape
        for i, (axis, size, part) in enumerate(zip(axes, shape, index, strict=True)):
            if axis == "head_dim" and i and axes[i - 1] in ("heads", "kv_heads"):
                merged[-1] = slice(merged[-1].start * size, merged[-1].stop * size)
            else:
                merged.append(part)
        return tuple(merged)

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """The shape without the layer dimension."""
        return self.shape[self.stacked :]


DENSE, EXPERTS = "layers.mlp.", "layers.moe."
"""How the paths of the two kinds of feed-forward begin: a layer has one of them."""


def packed_paths(path: str) -> tuple[str, str]:
    """Where the blocks and the scales of the expert weight at `path` lie when it is packed.

    >>> packed_paths("layers.moe.gate_efd")
    ('layers.moe.gate_blocks_efgb', 'layers.moe.gate_scales_efg')
    """
    name, letters = path.rsplit("_", 1)
    return f"{name}_blocks_{letters[:-1]}gb", f"{name}_scales_{letters[:-1]}g"


def param_layers(cfg: ModelConfig, path: str) -> range | tuple[int, ...]:
    """The layers that have the parameter at `path` (or its adapter), in the order in which they are stacked."""
    dense = () if cfg.moe is None else cfg.moe.dense_layers
    if path.startswith(EXPERTS):
        return tuple(i for i in range(cfg.n_layers) if i not in dense)
    if path.startswith(DENSE) and cfg.moe is not None:
        return tuple(sorted(set(dense)))
    return range(cfg.n_layers)


def param_paths(cfg: ModelConfig) -> list[str]:
    """The dotted paths of a model's parameters, in the order in which a forward pass meets them."""
    optional = [
        (cfg.qkv_bias, ["layers.attn.q_bias_nh", "layers.attn.k_bias_kh", "layers.attn.v_bias_kh"]),
        (cfg.o_bias, ["layers.attn.o_bias_d"]),
        (cfg.qk_norm, ["layers.attn.q_norm.scale_h", "layers.attn.k_norm.scale_h"]),
        (cfg.sinks, ["layers.attn.sink_n"]),
    ]
    dense = ["layers.mlp.gate_fd", "layers.mlp.up_fd", "layers.mlp.down_df"]
    dense += ["layers.mlp.gate_bias_f", "layers.mlp.up_bias_f", "layers.mlp.down_bias_d"] if cfg.mlp_bias else []
    weights = ["layers.moe.gate_efd", "layers.moe.up_efd", "layers.moe.down_edf"]
    if cfg.quantised:
        weights = [part for path in weights for part in packed_paths(path)]
    experts = ["layers.moe.router_ed", *weights]
    if cfg.moe is not None and cfg.moe.bias:
        experts += ["layers.moe.router_bias_e", "layers.moe.gate_bias_ef", "layers.moe.up_bias_ef"]
        experts += ["layers.moe.down_bias_ed"]
    return [
        "embed.w_vd",
        "layers.attn_norm.scale_d",
        "layers.attn.q_nhd",
        "layers.attn.k_khd",
        "layers.attn.v_khd",
        "layers.attn.o_dnh",
        *(path for present, paths in optional if present for path in paths),
        "layers.mlp_norm.scale_d",
        *(path for path in (*dense, *experts) if param_layers(cfg, path) and (cfg.moe or path.startswith(DENSE))),
        "final_norm.scale_d",
        *([] if cfg.tie_embeddings else ["head.w_vd"]),
    ]


def param_specs(cfg: ModelConfig) -> dict[str, ParamSpec]:
    """Path -> ParamSpec for every parameter of `cfg`. `head.w_vd` is absent when the embeddings are tied.

    >>> param_specs(cfg)["layers.attn.q_nhd"]            # 2 layers, 4 heads of 8, width 16
    ParamSpec(shape=(2, 4, 8, 16), axes=('layers', 'heads', 'head_dim', 'embed'))
    """
    sizes = {
        "v": cfg.vocab_size,
        "d": cfg.d_model,
        "n": cfg.n_heads,
        "k": cfg.n_kv_heads,
        "h": cfg.head_dim,
        "f": cfg.d_ff,
    }
    specs = {}
    for path in param_paths(cfg):
        letters = ("l" if path.startswith("layers.") else "") + path.rsplit("_", 1)[1]
        own = {"l": len(param_layers(cfg, path))}
        if cfg.moe is not None and path.startswith(EXPERTS):
            inputs = cfg.moe.d_ff if ".down_" in path else cfg.d_model
            own |= {"e": cfg.moe.n_experts, "f": cfg.moe.d_ff, "g": inputs // MXFP4_BLOCK, "b": MXFP4_BLOCK // 2}
        axes = AXES | {"e": "routes"} if ".router_" in path else AXES
        specs[path] = ParamSpec(tuple((sizes | own)[c] for c in letters), tuple(axes[c] for c in letters))
    return specs
