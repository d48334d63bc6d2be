"""Weights on their way: from a trainer's layout to a sampler's, and from the devices to host memory and back."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from noisyjax.models import Layout, ModelConfig, param_specs, shardings
from noisyjax.models.decoder import Decoder

HOST = "pinned_host"
"""The memory that devices reach directly."""


def relayout(
    params: Mapping[str, jax.Array], cfg: ModelConfig, dtype: Any, stacked: bool, layout: Layout | None
) -> Decoder:
    """A decoder with these parameters (path -> array, any type and layout) in `dtype`, laid out by `layout`.

    One compiled program per (cfg, dtype, stacked, layout) and kind of input. Nothing of the result shares memory with
    `params`, which may be donated afterwards. It takes the memory of the result, no more.
    """
    graph, program = _relayout(cfg, jnp.dtype(dtype).name, stacked, layout)
    return nnx.merge(graph, program(dict(params)))


@functools.lru_cache(maxsize=8)
def _relayout(cfg: ModelConfig, dtype: str, stacked: bool, layout: Layout | None) -> tuple[nnx.GraphDef, Callable]:
    where = {} if layout is None else shardings(cfg, layout.mesh, layout.rules)

    def convert(params: Mapping[str, jax.Array]) -> Decoder:
        cast = {path: jnp.array(x, dtype) for path, x in params.items()}  # a copy, even of what is in `dtype`
        laid = {path: jax.lax.with_sharding_constraint(x, where[path]) if where else x for path, x in cast.items()}
        return Decoder(cfg, laid, stacked=stacked, layout=layout)

    return _graph(cfg, dtype, convert), jax.jit(lambda params: nnx.split(convert(params))[1])


def _graph(cfg: ModelConfig, dtype: str, make: Callable[[Any], Decoder]) -> nnx.GraphDef:
    shapes = {path: jax.ShapeDtypeStruct(spec.shape, dtype) for path, spec in param_specs(cfg).items()}
    return nnx.split(nnx.eval_shape(make, shapes))[0]


class Parked:
    """Arrays that wait in host memory, cut as they were on their devices.

    `tree` holds them: in the devices' pinned memory on the host where the backend has such, else as numpy arrays (of
    arrays that are wholly on this host's devices).
    """

    def __init__(self, tree: Any) -> None:
        self._where = jax.tree.map(lambda x: x.sharding, tree)
        self.tree = jax.block_until_ready(jax.tree.map(_to_host, tree))

    def fetch(self) -> Any:
        """The arrays on their devices again."""
        return jax.device_put(self.tree, self._where)


def _to_host(x: jax.Array) -> Any:
    device: Any = next(iter(x.sharding.device_set))
    if HOST in {memory.kind for memory in device.addressable_memories()}:
        return jax.device_put(x, x.sharding.with_memory_kind(HOST))
    return np.asarray(x)
