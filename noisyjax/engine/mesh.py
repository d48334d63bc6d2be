"""Mesh configs on real devices: do they fit devices and model? Asked before weights are read or programs compiled."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from noisyjax.engine.config import MeshConfig
from noisyjax.errors import UsageError
from noisyjax.models import ModelConfig
from noisyjax.models.sharding import MESH_AXES, Layout, ShardingRules, partition_specs


def open_layout(
    config: MeshConfig,
    cfg: ModelConfig,
    rules: ShardingRules,
    *,
    devices: Sequence[Any] | None = None,
    sequence: bool = False,
) -> Layout | None:
    """How the model of `cfg` lies on `devices` by `config`; None for the default device alone.

    devices: those to choose from, the first ones are taken; None for all of this machine.
    Raises UsageError where the devices do not suffice, and ShardingError with every dimension that cannot be cut.
    """
    partition_specs(cfg, config.axes, rules)
    if cfg.moe is None and config.expert > 1:
        raise UsageError(f"mesh.expert={config.expert}: this {cfg.family} model has no experts; use data or fsdp")
    grid = device_grid(config, jax.devices() if devices is None else devices)
    if grid.size == 1 and devices is None:
        return None
    return Layout(Mesh(grid, MESH_AXES), rules, sequence)


def device_grid(config: MeshConfig, devices: Sequence[Any]) -> np.ndarray:
    """The first of `devices`, in the shape of the mesh: neighbours along the last axes, slices along the first.

    Raises UsageError when there are too few, or when the replicas cannot be shared out between the slices.
    """
    shape = tuple(config.axes.values())
    wanted = " x ".join(f"{axis}={n}" for axis, n in config.axes.items() if n > 1) or "of one device"
    if config.devices > len(devices):
        raise UsageError(f"mesh {wanted} needs {config.devices} devices; here are {len(devices)}")
    chosen = list(devices)[: config.devices]
    slices = len({getattr(device, "slice_index", 0) for device in chosen})
    if slices == 1:
        return mesh_utils.create_device_mesh(shape, chosen, allow_split_physical_axes=True)
    if config.replicas % slices or config.devices < len(devices):
        raise UsageError(
            f"mesh {wanted} lies on {slices} slices of {len(devices)} devices in all: use every device, and a number "
            f"of replicas that is a multiple of {slices}"
        )
    within = (config.replicas // slices, *shape[1:])
    between = (slices, *[1] * len(within[1:]))
    return mesh_utils.create_hybrid_device_mesh(within, between, chosen, allow_split_physical_axes=True)
