"""Weights on their way: from a trainer's layout to a sampler's, and from the devices to host memory and back."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from noisyjax.models import Layout, ModelConfig, ShardingRules, param_specs, shardings
from noisyjax.models.decoder import Decoder
from noisyjax.models.sharding import platform

HOST = "pinned_host"
"""The memory that devices reach directly."""


def relayout(
    params: Mapping[str, jax.Array], cfg: ModelConfig, dtype: Any, stacked: bool, layout: Layout | None
) -> Decoder:
    """A decoder with these parameters (path -> array, any type and layout) in `dtype`, laid out by `layout`.

    One compiled program per (cfg, dtype, stacked, layout) and kind of input. Nothing of the result shares memory with
    `params`, which may be donated afterwards. It takes the memory of the result, no more. Where `params` lie on a mesh
    over several hosts, each takes a copy of all of them to its own `layout` (`mesh.host_layout`).
    """
    copied = not all(x.is_fully_addressable for x in params.values())
    if copied:
        assert layout is not None
        params = _copy_here(params, cfg, jnp.dtype(dtype).name, layout)
    graph, program = _relayout(cfg, jnp.dtype(dtype).name, stacked, layout, copied and platform(layout) != "cpu")
    return nnx.merge(graph, program(dict(params)))


@functools.lru_cache(maxsize=8)
def _relayout(
    cfg: ModelConfig, dtype: str, stacked: bool, layout: Layout | None, donate: bool
) -> tuple[nnx.GraphDef, Callable]:
    where = {} if layout is None else shardings(cfg, layout.mesh, layout.rules)

    def convert(params: Mapping[str, jax.Array]) -> Decoder:
        cast = {path: jnp.array(x, dtype) for path, x in params.items()}  # a copy, even of what is in `dtype`
        laid = {path: jax.lax.with_sharding_constraint(x, where[path]) if where else x for path, x in cast.items()}
        return Decoder(cfg, laid, stacked=stacked, layout=layout)

    program = jax.jit(lambda params: nnx.split(convert(params))[1], donate_argnums=(0,) if donate else ())
    return _graph(cfg, dtype, convert), program


def _copy_here(params: Mapping[str, jax.Array], cfg: ModelConfig, dtype: str, layout: Layout) -> dict[str, jax.Array]:
    """Parameters of a mesh over several hosts as this host's own, whole among its devices."""
    of_all: Any = next(iter(params.values())).sharding
    mesh = of_all.mesh
    whole = _spread(cfg, dtype, mesh, layout.rules)(dict(params))
    where = shardings(cfg, layout.mesh, layout.rules)
    return {
        path: jax.make_array_from_single_device_arrays(x.shape, where[path], [s.data for s in x.addressable_shards])
        for path, x in whole.items()
    }


@functools.lru_cache(maxsize=8)
def _spread(cfg: ModelConfig, dtype: str, mesh: Mesh, rules: ShardingRules) -> Callable:
    """Gathers parameters so that every group of devices that `rules` cut them over has all of them."""
    return jax.jit(
        lambda params: {path: x.astype(dtype) for path, x in params.items()}, out_shardings=shardings(cfg, mesh, rules)
    )


def _graph(cfg: ModelConfig, dtype: str, make: Callable[[Any], Decoder]) -> nnx.GraphDef:
    shapes = {path: jax.ShapeDtypeStruct(spec.shape, dtype) for path, spec in param_specs(cfg).items()}
    return nnx.split(nnx.eval_shape(make, shapes))[0]


class Parked:
    """Arrays that wait in host memory, cut as they were on their devices.

    `tree` holds them: in the devices' pinned memory on the host where the backend has such, else as numpy arrays, or as
    they are where they lie on several hosts.
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
    return np.asarray(x) if x.is_fully_addressable else x
