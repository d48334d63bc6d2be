"""How a model lies on a device mesh: logical axes (`params.AXES`) mapped to mesh axes, checked before anything runs.

A mesh has any of the axes `MESH_AXES`. Legend: B batch, T query length, D model, N heads of either kind, H head dim.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .config import MXFP4_BLOCK, ModelConfig
from .errors import ShardingError
from .params import ParamSpec, param_specs

NEVER_CUT = ("head_dim", "rank", "groups", "bytes", "routes")
MESH_AXES = ("replica", "data", "fsdp", "expert", "tensor")
"""From the slowest network to the fastest: `replica` between slices, `tensor` between neighbours."""


@dataclass(frozen=True)
class ShardingRules:
    """For each logical axis the mesh axis it is cut along, or None where it is whole on every device.

    `kv_heads` is the forgiving one: where the key-value heads cannot be cut evenly (2 heads over 4 devices) they are
    replicated, which costs little memory and is what grouped-query attention needs. `NEVER_CUT` have no rule.
    """

    vocab: str | None = None
    embed: str | None = None
    heads: str | None = None
    kv_heads: str | None = None
    ffn: str | None = None
    experts: str | None = None
    layers: str | None = None
    batch: tuple[str, ...] = ("replica", "data", "fsdp", "expert")
    """For activations: the mesh axes a batch is cut along, those of them that the mesh has."""

    def mesh_axis(self, logical: str) -> str | None:
        """The mesh axis of a logical parameter axis."""
        return getattr(self, logical) if logical not in NEVER_CUT else None


_TENSOR = ShardingRules(vocab="tensor", heads="tensor", kv_heads="tensor", ffn="tensor")

PRESETS: Mapping[str, ShardingRules] = {
    "replicated": ShardingRules(),
    "fsdp": ShardingRules(embed="fsdp"),
    "tensor": _TENSOR,
    "fsdp_tensor": replace(_TENSOR, embed="fsdp"),
    "tensor_expert": replace(_TENSOR, experts="expert"),
    "fsdp_tensor_expert": replace(_TENSOR, embed="fsdp", experts="expert"),
}
"""`fsdp` cuts the model dimension, `tensor` heads, feed-forward and vocabulary, `expert` whole experts. Every axis but
`tensor` cuts the batch as well; `replica` and `data` cut nothing else."""

TRAINING, SERVING = PRESETS["fsdp_tensor_expert"], PRESETS["tensor_expert"]
"""For meshes with all of `MESH_AXES`. Weights that are cut along fsdp would be gathered at every token that is decoded:
where a model is sampled from, that axis only cuts the batch."""


@dataclass(frozen=True)
class Layout:
    """A mesh and the rules by which a model lies on it; what a Decoder knows of its devices.

    sequence: between layers activations are cut along T too, over the axis that cuts the heads inside them (Korthikanti
    et al. 2022, arXiv 2205.05198, section 4.2.2), so that what a long row keeps for its backward pass is shared out.
    """

    mesh: Mesh
    rules: ShardingRules
    sequence: bool = False

    def size(self, axis: str | None) -> int:
        """Devices along a mesh axis; 1 for None and for an axis that the mesh lacks."""
        return 1 if axis is None else self.mesh.shape.get(axis, 1)

    def cut(self, logical: str, size: int) -> str | None:
        """The mesh axis that cuts a logical axis of so many, None where none does or it cannot be cut evenly."""
        axis = self.rules.mesh_axis(logical)
        devices = self.size(axis)
        return axis if devices > 1 and size % devices == 0 else None

    def batch_axes(self, rows: int) -> tuple[str, ...]:
        """The mesh axes that a batch of so many rows is cut along: all, but for those that would not divide it."""
        axes: tuple[str, ...] = ()
        for axis in self.rules.batch:
            if self.size(axis) > 1 and rows % (self.size(axis) * self.shards(axes)) == 0:
                axes += (axis,)
        return axes

    def shards(self, axes: tuple[str, ...] | None = None) -> int:
        """Parts that these axes make together; None for all axes of the batch."""
        return math.prod(map(self.size, self.rules.batch if axes is None else axes))

    def sharding(self, *spec: str | tuple[str, ...] | None) -> NamedSharding:
        """For an array whose dimensions are cut along these mesh axes; () and None leave a dimension whole."""
        return NamedSharding(self.mesh, PartitionSpec(*(axis or None for axis in spec)))

    def place(self, x_btd: jax.Array) -> jax.Array:
        """Activations between layers."""
        b, t = x_btd.shape[:2]
        time = self.cut("heads", t) if self.sequence else None
        return jax.lax.with_sharding_constraint(x_btd, self.sharding(self.batch_axes(b), time, None))

    def place_heads(self, x_btnh: jax.Array, logical: str) -> jax.Array:
        """Queries ("heads") or keys and values ("kv_heads"), whole along T."""
        b, _, n, _ = x_btnh.shape
        where = self.sharding(self.batch_axes(b), None, self.cut(logical, n), None)
        return jax.lax.with_sharding_constraint(x_btnh, where)


def platform(layout: Layout | None) -> str:
    """`cpu`, `tpu`: of the devices that a model lies on. Compiling ahead of time, these are not this machine's."""
    return jax.default_backend() if layout is None else layout.mesh.devices.flat[0].platform


def compiler_options(layout: Layout | None) -> dict[str, int]:
    """For `jax.jit` of what computes on a model's devices: XLA uses half of a CPU's vectors unless it is told."""
    return {"xla_cpu_prefer_vector_width": 512} if platform(layout) == "cpu" else {}


def partition_spec(spec: ParamSpec, rules: ShardingRules, axes: Mapping[str, int]) -> PartitionSpec:
    """The PartitionSpec of one parameter on a mesh of these axes (name -> devices). Unchecked, but for what is
    replicated where it cannot be cut: key-value heads, and the width of packed experts, whose groups stay whole."""

    def cut(axis: str, size: int) -> str | None:
        grain, forgiving = 1, axis == "kv_heads"
        if spec.packed and axis in ("ffn", "groups"):
            forgiving, grain = True, MXFP4_BLOCK if axis == "ffn" else 1
            axis = "ffn" if "ffn" not in spec.axes else axis  # groups of a weight whose input is the width
        mesh_axis = rules.mesh_axis(axis)
        return None if forgiving and size % (grain * axes.get(mesh_axis or "", 1)) else mesh_axis

    return PartitionSpec(*(cut(axis, size) for axis, size in zip(spec.axes, spec.shape, strict=True)))


def partition_specs(cfg: ModelConfig, axes: Mapping[str, int], rules: ShardingRules) -> dict[str, PartitionSpec]:
    """Path -> PartitionSpec for every parameter of `cfg` on a mesh of these axes (name -> devices); needs no device.

    Raises ShardingError listing every parameter dimension that a rule cannot cut evenly, every mesh axis used for two
    dimensions of one parameter, and every rule that names a mesh axis this mesh lacks.
    """
    problems = [
        f"rule {field.name}={axis!r}: this mesh has no such axis, only {', '.join(axes)}"
        for field in fields(rules)
        if field.name != "batch" and (axis := getattr(rules, field.name)) is not None and axis not in axes
    ]
    result = {}
    for path, spec in param_specs(cfg).items():
        result[path] = partition_spec(spec, rules, axes)
        if all(axis is None or axis in axes for axis in result[path]):
            problems += [f"{path}: {problem}" for problem in _problems(spec, result[path], axes)]
    if problems:
        raise ShardingError("these sharding rules do not fit:\n  " + "\n  ".join(problems))
    return result


def shardings(cfg: ModelConfig, mesh: Mesh, rules: ShardingRules) -> dict[str, NamedSharding]:
    """Path -> NamedSharding for every parameter of `cfg`. Raises ShardingError as `partition_specs` does."""
    return {path: NamedSharding(mesh, spec) for path, spec in partition_specs(cfg, mesh.shape, rules).items()}


def _problems(spec: ParamSpec, pspec: PartitionSpec, axes: Mapping[str, int]) -> list[str]:
    """What is wrong with one parameter's layout on a mesh that has the axes it names."""
    problems = []
    used: dict[str, str] = {}
    for axis, size, mesh_axis in zip(spec.axes, spec.shape, pspec, strict=True):
        if mesh_axis is None:
            continue
        if mesh_axis in used:
            problems.append(f"mesh axis '{mesh_axis}' is used for both {used[mesh_axis]} and {axis}")
        used[mesh_axis] = axis
        if size % axes[mesh_axis]:
            problems.append(f"{axis} of size {size} cannot be cut into {axes[mesh_axis]} along mesh axis '{mesh_axis}'")
    return problems


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
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
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
