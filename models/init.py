"""Random parameters for models made from scratch."""

import hashlib
from typing import Any

import jax
import ml_dtypes  # noqa: F401 (teaches numpy the name bfloat16)
import numpy as np
from jax.sharding import Mesh

from .config import ModelConfig
from .params import param_specs
from .sharding import PRESETS, ShardingRules, build, shardings

STDDEV = 0.02  # the initializer_range of every family here


def init_params(
    cfg: ModelConfig,
    seed: int = 0,
    dtype: str | None = None,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
) -> dict[str, jax.Array]:
    """Path -> array: norm scales are one, everything else is normal with standard deviation 0.02.

    dtype: None means `cfg.dtype`. The numbers depend on `seed`, the path and the layer alone, so adding a layer or a
    bias, or laying the model out on another mesh, changes no other number.
    """
    layout = shardings(cfg, mesh, rules or PRESETS["replicated"]) if mesh is not None else {}
    params = {}
    for path, spec in param_specs(cfg).items():

        def fill(buffer: np.ndarray, index: tuple[slice, ...], path: str = path, spec: Any = spec) -> None:
            if not spec.stacked:
                buffer[...] = _draw(seed, path, 0, spec.layer_shape)[index]
                return
            for i, layer in enumerate(range(spec.shape[0])[index[0]]):
                buffer[i] = _draw(seed, path, layer, spec.layer_shape)[index[1:]]

        params[path] = build(spec.shape, np.dtype(dtype or cfg.dtype), layout.get(path), fill)
    return params


def _draw(seed: int, path: str, layer: int, shape: tuple[int, ...]) -> np.ndarray:
    """One layer of one parameter, f32. RandomState, because numpy promises never to change its streams."""
    if ".scale_" in path:
        return np.ones(shape, np.float32)
    digest = hashlib.blake2b(f"{seed}/{path}/{layer}".encode(), digest_size=32).digest()
    stream = np.random.RandomState(np.frombuffer(digest, np.uint32))
    return (stream.standard_normal(shape) * STDDEV).astype(np.float32)
