"""How parameters lie on a device mesh: logical axes (`params.AXES`) mapped to mesh axes, checked before anything runs.

Mesh axes are called `data`, `fsdp`, `tensor` and `expert`; a mesh has any of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .config import ModelConfig
from .errors import ShardingError
from .params import ParamSpec, param_specs

NEVER_CUT = ("head_dim", "rank")
MESH_AXES = ("data", "fsdp", "tensor", "expert")


@dataclass(frozen=True)
class ShardingRules:
    """For each logical axis the mesh axis it is cut along, or None where it is whole on every device.

    `kv_heads` is the forgiving one: where the key-value heads cannot be cut evenly (2 heads over 4 devices) they are
    replicated, which costs little memory and is what grouped-query attention needs. `NEVER_CUT` never are.
    """

    vocab: str | None = None
    embed: str | None = None
    heads: str | None = None
    kv_heads: str | None = None
    ffn: str | None = None
    experts: str | None = None
    layers: str | None = None
    batch: tuple[str, ...] = ("data", "fsdp")
    """For activations: the mesh axes a batch is cut along, those of them that the mesh has."""

    def mesh_axis(self, logical: str) -> str | None:
        """The mesh axis of a logical parameter axis."""
        return getattr(self, logical) if logical not in NEVER_CUT else None


PRESETS: Mapping[str, ShardingRules] = {
    "replicated": ShardingRules(),
    "fsdp": ShardingRules(embed="fsdp"),
    "tensor": ShardingRules(vocab="tensor", heads="tensor", kv_heads="tensor", ffn="tensor"),
    "fsdp_tensor": ShardingRules(embed="fsdp", vocab="tensor", heads="tensor", kv_heads="tensor", ffn="tensor"),
}
"""`fsdp` cuts the model dimension, `tensor` heads, feed-forward and vocabulary; `fsdp_tensor` both."""


def partition_spec(spec: ParamSpec, rules: ShardingRules, mesh: Mesh) -> PartitionSpec:
    """The PartitionSpec of one parameter, unchecked but for the key-value heads, which are replicated if they must."""
    axes = [rules.mesh_axis(axis) for axis in spec.axes]
    for i, (axis, size) in enumerate(zip(spec.axes, spec.shape, strict=True)):
        mesh_axis = axes[i]
        if axis == "kv_heads" and mesh_axis is not None and size % mesh.shape.get(mesh_axis, 1):
            axes[i] = None
    return PartitionSpec(*axes)


def shardings(cfg: ModelConfig, mesh: Mesh, rules: ShardingRules) -> dict[str, NamedSharding]:
    """Path -> NamedSharding for every parameter of `cfg`.

    Raises ShardingError listing every parameter dimension that a rule cannot cut evenly, every mesh axis used for two
    dimensions of one parameter, and every rule that names a mesh axis this mesh lacks.
    """
    problems = [
        f"rule {field.name}={axis!r}: this mesh has no such axis, only {', '.join(mesh.axis_names)}"
        for field in fields(rules)
        if field.name != "batch" and (axis := getattr(rules, field.name)) is not None and axis not in mesh.shape
    ]
    result = {}
    for path, spec in param_specs(cfg).items():
        pspec = partition_spec(spec, rules, mesh)
        if not problems or all(axis is None or axis in mesh.shape for axis in pspec):
            problems += [f"{path}: {problem}" for problem in _problems(spec, pspec, mesh)]
        if not problems:
            result[path] = NamedSharding(mesh, pspec)
    if problems:
        raise ShardingError("these sharding rules do not fit:\n  " + "\n  ".join(problems))
    return result


def _problems(spec: ParamSpec, pspec: PartitionSpec, mesh: Mesh) -> list[str]:
    """What is wrong with one parameter's layout on a mesh that has the axes it names."""
    problems = []
    used: dict[str, str] = {}
    for axis, size, mesh_axis in zip(spec.axes, spec.shape, pspec, strict=True):
        if mesh_axis is None:
            continue
        if mesh_axis in used:
            problems.append(f"mesh axis '{mesh_axis}' is used for both {used[mesh_axis]} and {axis}")
        used[mesh_axis] = axis
        if size % mesh.shape[mesh_axis]:
            problems.append(
                f"{axis} of size {size} cannot be cut into {mesh.shape[mesh_axis]} along mesh axis '{mesh_axis}'"
            )
    return problems


def batch_spec(mesh: Mesh, rules: ShardingRules) -> PartitionSpec:
    """The PartitionSpec of an activation whose first dimension is the batch."""
    axes = tuple(axis for axis in rules.batch if axis in mesh.shape)
    return PartitionSpec(axes or None)


def build(
    shape: tuple[int, ...],
    dtype: Any,
    sharding: jax.sharding.Sharding | None,
    fill: Callable[[np.ndarray, tuple[slice, ...]], None],
) -> jax.Array:
    """A jax.Array made piece by piece: `fill(buffer, index)` writes what `index` of the whole covers into `buffer`.

    Host memory: one shard at a time (the whole array where `sharding` is None, which means the default device); a
    shard that several devices hold is filled once. Works on every host of a mesh, each filling its own shards.
    """
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    devices_of: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True))
        devices_of.setdefault(bounds, []).append(device)
    pieces = []
    for bounds, devices in devices_of.items():
        buffer = np.empty([stop - start for start, stop in bounds], dtype)
        fill(buffer, tuple(slice(start, stop) for start, stop in bounds))
        pieces += [jax.device_put(buffer, device) for device in devices]
        # Before the next buffer is made, this one must have left the host.
        jax.block_until_ready(pieces[-len(devices) :])
        del buffer
    return jax.make_array_from_single_device_arrays(shape, sharding, pieces)
