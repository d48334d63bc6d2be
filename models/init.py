"""Random parameters for models made from scratch."""

import hashlib

import jax
import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from jax.sharding import Mesh

from .config import ModelConfig
from .errors import UnsupportedConfig
from .params import ParamSpec, param_layers, param_specs
from .sharding import PRESETS, ShardingRules, build, shardings


def init_params(
    cfg: ModelConfig,
    seed: int = 0,
    dtype: str | None = None,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    *,
    stddev: float = 0.02,
    norm_stddev: float = 0.0,
) -> dict[str, jax.Array]:
    """Path -> array, normal: norm scales around one with `norm_stddev`, everything else around zero with `stddev`.

    The defaults are the upstream initialisation; tests spread the norm scales, so that a forgotten one shows.
    dtype: None means `cfg.dtype`. The numbers depend on `seed`, the path and the layer alone, so adding a layer or a
    bias, or laying the model out on another mesh, changes no other number.
    """
    if cfg.quantised:
        raise UnsupportedConfig(f"weights are drawn as numbers, not as {cfg.quantised}: use a config without it")
    layout = shardings(cfg, mesh, rules or PRESETS["replicated"]) if mesh is not None else {}

    def draw(path: str, layer: int, spec: ParamSpec) -> np.ndarray:
        mean, spread = (1.0, norm_stddev) if ".scale_" in path else (0.0, stddev)
        return mean + spread * normal(seed, path, layer, spec.layer_shape)

    params = {}
    for path, spec in param_specs(cfg).items():

        def fill(buffer: np.ndarray, index: tuple[slice, ...], path: str = path, spec: ParamSpec = spec) -> None:
            if not spec.stacked:
                buffer[...] = draw(path, 0, spec)[index]
                return
            for i, layer in enumerate(param_layers(cfg, path)[index[0]]):
                buffer[i] = draw(path, layer, spec)[index[1:]]

        params[path] = build(spec.shape, np.dtype(dtype or cfg.dtype), layout.get(path), fill)
    return params


def normal(seed: int, path: str, layer: int, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal f64 of a parameter's layer. RandomState, because numpy promises never to change its streams."""
    digest = hashlib.blake2b(f"{seed}/{path}/{layer}".encode(), digest_size=32).digest()
    return np.random.RandomState(np.frombuffer(digest, np.uint32)).standard_normal(shape)
