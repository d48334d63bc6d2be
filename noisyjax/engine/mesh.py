"""Mesh configs on real devices: do they fit devices and model? Asked before weights are read or programs compiled."""

import math
from collections import Counter
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

    devices: those to choose from, the first ones are taken; None for all of this host. An open `data` takes what is
    left of them, but for a CPU's.
    Raises UsageError where the devices do not suffice, and ShardingError with every dimension that cannot be cut.
    """
    free = jax.local_devices() if devices is None else devices
    if free[0].platform != "cpu":
        config = config.filling(len(free))
    partition_specs(cfg, config.axes, rules)
    if cfg.moe is None and config.expert > 1:
        raise UsageError(f"mesh.expert={config.expert}: this {cfg.family} model has no experts; use data or fsdp")
    grid = device_grid(config, free)
    if grid.size == 1 and devices is None:
        return None
    return Layout(Mesh(grid, MESH_AXES), rules, sequence)


def device_grid(config: MeshConfig, devices: Sequence[Any]) -> np.ndarray:
    """The first of `devices`, in the shape of the mesh: neighbours along the last axes, slices along the first.

    Devices of one host stay together along the last two axes wherever they can.
    Raises UsageError when there are too few, or when the replicas cannot be shared out between the slices.
    """
    shape = tuple(config.axes.values())
    wanted = " x ".join(f"{axis}={n}" for axis, n in config.axes.items() if n > 1) or "of one device"
    if config.devices > len(devices):
        raise UsageError(f"mesh {wanted} needs {config.devices} devices; here are {len(devices)}")
    chosen = list(devices)[: config.devices]
    slices = len({getattr(device, "slice_index", 0) for device in chosen})
    if slices == 1:
        grid = mesh_utils.create_device_mesh(shape, chosen, allow_split_physical_axes=True)
        between = _hosts_between(shape, chosen) if _torn(grid).any() else None
        if between is None:
            return grid
        within = tuple(size // hosts for size, hosts in zip(shape, between, strict=True))
        return mesh_utils.create_hybrid_device_mesh(
            within, between, chosen, process_is_granule=True, allow_split_physical_axes=True
        )
    if config.replicas % slices or config.devices < len(devices):
        raise UsageError(
            f"mesh {wanted} lies on {slices} slices of {len(devices)} devices in all: use every device, and a number "
            f"of replicas that is a multiple of {slices}"
        )
    within = (config.replicas // slices, *shape[1:])
    between = (slices, *[1] * len(within[1:]))
    return mesh_utils.create_hybrid_device_mesh(within, between, chosen, allow_split_physical_axes=True)


def _groups(grid: np.ndarray) -> np.ndarray:
    """Devices along the last two axes, expert x tensor, together: [groups, expert, tensor]."""
    return grid.reshape(-1, *grid.shape[-2:])


def _torn(grid: np.ndarray) -> np.ndarray:
    """bool [groups]; those whose devices are not all of one host."""
    return np.array([len({device.process_index for device in group.flat}) > 1 for group in _groups(grid)])


def _hosts_between(shape: tuple[int, ...], devices: Sequence[Any]) -> tuple[int, ...] | None:
    """How many hosts lie along each axis when all but the last two are cut by them; None where they cannot be."""
    held = Counter(device.process_index for device in devices)
    left, between = len(held), []
    for size in shape[:-2]:
        between.append(math.gcd(size, left))
        left //= between[-1]
    return (*between, 1, 1) if left == 1 and len({*held.values()}) == 1 else None


def host_layout(layout: Layout, rules: ShardingRules, index: int) -> Layout:
    """Of a mesh over several hosts the part that host `index` samples on, with a copy of the model to itself.

    Its devices are those of `layout` in the same groups of expert x tensor, one after the other along `data`. Raises
    UsageError where such a group lies on two hosts.
    """
    groups = _groups(layout.mesh.devices)
    if _torn(layout.mesh.devices).any():
        own = sum(device.process_index == index for device in groups.flat)
        raise UsageError(
            "a host samples with the whole model on its own devices: mesh.expert x mesh.tensor = "
            f"{groups[0].size} must divide the {own} devices of a host"
        )
    mine = np.stack([group for group in groups if group[0, 0].process_index == index])
    return Layout(Mesh(mine.reshape(1, -1, 1, *mine.shape[1:]), MESH_AXES), rules)
