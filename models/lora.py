"""Low-rank adapters (Hu et al. 2021, LoRA, arXiv 2106.09685): a projection w gets b·a added, with a narrow and b tall.

Adapters are parameters like all others, under paths beside those of the projections that they change:
`layers.attn.q_nhd` [L, N, H, D] has `layers.attn.q_nhd.lora_a_rd` [L, R, D] and `layers.attn.q_nhd.lora_b_nhr`
[L, N, H, R]. Legend as in `params`; R rank, I inputs and O outputs of a projection.
"""

import math
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from .config import ModelConfig
from .errors import UnsupportedConfig
from .init import normal
from .params import AXES, ParamSpec, param_specs
from .sharding import PRESETS, ShardingRules, build, partition_spec

TARGETS = {
    "q": "layers.attn.q_nhd",
    "k": "layers.attn.k_khd",
    "v": "layers.attn.v_khd",
    "o": "layers.attn.o_dnh",
    "gate": "layers.mlp.gate_fd",
    "up": "layers.mlp.up_fd",
    "down": "layers.mlp.down_df",
}
"""Projections that may have an adapter, by short name."""


def split_axes(path: str) -> tuple[str, str]:
    """The letters of a projection's outputs and inputs; one of them is the model dimension.

    >>> split_axes("attn.q_nhd"), split_axes("attn.o_dnh")
    (('nh', 'd'), ('d', 'nh'))
    """
    letters = path.rsplit("_", 1)[1]
    return (letters[:1], letters[1:]) if letters[0] == "d" else (letters[:-1], letters[-1:])


def adapter_paths(path: str) -> tuple[str, str]:
    """Where the adapter (a, b) of the projection at `path` lies."""
    outputs, inputs = split_axes(path)
    return f"{path}.lora_a_r{inputs}", f"{path}.lora_b_{outputs}r"


def adapter_specs(cfg: ModelConfig, rank: int, targets: Iterable[str]) -> dict[str, ParamSpec]:
    """Path -> ParamSpec of the adapters of `targets`, names from `TARGETS`.

    Raises UnsupportedConfig for a projection that the model has not: experts get no adapters.
    """
    targets, whole = tuple(targets), param_specs(cfg)
    if absent := [target for target in targets if TARGETS[target] not in whole]:
        there = [target for target, path in TARGETS.items() if path in whole]
        raise UnsupportedConfig(
            f"this {cfg.family} model has no projection {', '.join(absent)} for an adapter; it has {', '.join(there)}"
        )
    specs = {}
    for target in targets:
        path = TARGETS[target]
        sizes = dict(zip(whole[path].axes, whole[path].shape, strict=True)) | {"rank": rank}
        for adapter in adapter_paths(path):
            axes = ("layers", *(AXES[letter] for letter in adapter.rsplit("_", 1)[1]))
            specs[adapter] = ParamSpec(tuple(sizes[axis] for axis in axes), axes)
    return specs


def init_adapters(
    cfg: ModelConfig,
    rank: int,
    targets: Iterable[str],
    seed: int = 0,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
) -> dict[str, jax.Array]:
    """Adapters that change nothing yet: b is zero, a normal with variance 1 / (3 I), float32.

    That is the variance of the uniform distribution that other implementations draw a from. The numbers depend on
    `seed`, path and layer alone. On a mesh, adapters are cut as the projections are; the rank never is.
    """
    adapters = {}
    for path, spec in adapter_specs(cfg, rank, targets).items():
        layout = None
        if mesh is not None:
            layout = NamedSharding(mesh, partition_spec(spec, rules or PRESETS["replicated"], mesh.shape))
        inputs = math.prod(spec.layer_shape[1:])
        stddev = (3 * inputs) ** -0.5 if ".lora_a_" in path else 0.0

        def fill(
            buffer: np.ndarray,
            index: tuple[slice, ...],
            path: str = path,
            spec: ParamSpec = spec,
            stddev: float = stddev,
        ) -> None:
            for i, layer in enumerate(range(spec.shape[0])[index[0]]):
                buffer[i] = stddev * normal(seed, path, layer, spec.layer_shape)[index[1:]] if stddev else 0.0

        adapters[path] = build(spec.shape, np.dtype(np.float32), layout, fill)
    return adapters


def attach(params: Mapping[str, jax.Array], adapters: Mapping[str, jax.Array], scale: float) -> dict[str, jax.Array]:
    """Parameters for a Decoder that adds scale * b·a to its projections. scale: alpha / rank in the paper."""
    scaled = {path: scale * x if ".lora_b_" in path else x for path, x in adapters.items()}
    return {**params, **scaled}


def merge(params: Mapping[str, jax.Array], adapters: Mapping[str, jax.Array], scale: float) -> dict[str, jax.Array]:
    """The plain parameters that compute the same: w + scale * b·a, added in float32, in w's type and layout."""
    merged = dict(params)
    for path in TARGETS.values():
        a, b = (adapters.get(name) for name in adapter_paths(path))
        if a is not None and b is not None:
            merged[path] = _merged(params[path], a, b, scale)
    return merged


@jax.jit
def _merged(w: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    layers, rank = a.shape[:2]
    delta = jnp.einsum("lor,lri->loi", b.reshape(layers, -1, rank), a.reshape(layers, rank, -1))
    return (w.astype(jnp.float32) + scale * delta.reshape(w.shape)).astype(w.dtype)
