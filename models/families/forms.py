"""How parameters lie in the tensors of a file, where that is not simply one tensor per layer.

Experts come in three forms: a tensor per expert; one for all of them with gate and up joined, the halves one after the
other or alternating, inputs last or first; and the packed four-bit form of gpt-oss (`mxfp4`).

Legend: as in `params`; indices are tuples of slices with bounds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..errors import Shape
from ..params import ParamSpec, packed_paths
from . import mxfp4

Index = tuple[slice, ...]
Fetch = Callable[[str, Index], np.ndarray]
"""fetch(tensor name, index) -> that part of it."""


@dataclass(frozen=True)
class Form:
    """Where one layer of a parameter lies.

    name: of the tensor; `{i}` stands for the layer, `{e}` for the expert where each has a tensor of its own.
    half: 0 (gate) or 1 (up) where the two share a tensor; None where not.
    alternating: whether the halves' rows alternate; otherwise all of the first come first.
    transposed: whether the last two axes are swapped.
    packed: whether the tensor is stored as MXFP4 `{name}_blocks` and `{name}_scales`, of a parameter held as numbers.
    """

    name: str
    half: int | None = None
    alternating: bool = False
    transposed: bool = False
    packed: bool = False

    @property
    def plain(self) -> bool:
        """One tensor per layer, in the parameter's own order."""
        return "{e}" not in self.name and self.half is None and not self.transposed and not self.packed

    def names(self, spec: ParamSpec, layer: int) -> list[str]:
        """The tensors of one layer."""
        if "{e}" in self.name:
            return [self.name.format(i=layer, e=e) for e in range(spec.layer_shape[0])]
        name = self.name.format(i=layer)
        return [name + mxfp4.BLOCKS, name + mxfp4.SCALES] if self.packed else [name]

    def shapes(self, spec: ParamSpec, layer: int) -> dict[str, Shape]:
        """The tensors of one layer with their shapes."""
        shape = spec.file_shape if self.plain else self._whole(spec)
        shapes = mxfp4.packed_shapes(shape) if self.packed else (shape,)
        names = self.names(spec, layer)
        return dict(zip(names, shapes * (len(names) // len(shapes)), strict=True))

    def _whole(self, spec: ParamSpec) -> Shape:
        shape = list(spec.layer_shape)
        if self.half is not None:
            shape[1] *= 2
        if self.transposed:
            shape[-2:] = shape[:-3:-1]
        return tuple(shape[1:] if "{e}" in self.name else shape)

    def read(self, fetch: Fetch, spec: ParamSpec, layer: int, index: Index) -> np.ndarray:
        """`index` of one layer of the parameter; little else of its tensors is read."""
        if self.plain:
            return fetch(self.name.format(i=layer), spec.file_index(index)).reshape([_length(part) for part in index])
        return np.stack([self._expert(fetch, spec, layer, e, index[1:]) for e in range(index[0].start, index[0].stop)])

    def _expert(self, fetch: Fetch, spec: ParamSpec, layer: int, expert: int, index: Index) -> np.ndarray:
        parts = list(index)
        if self.half is not None:
            size, (start, stop) = spec.layer_shape[1], (parts[0].start, parts[0].stop)
            shift = self.half * size
            parts[0] = slice(2 * start, 2 * stop) if self.alternating else slice(start + shift, stop + shift)
        if self.transposed:
            parts.reverse()
        name = self.name.format(i=layer, e=expert)
        if "{e}" in self.name:
            part = fetch(name, tuple(parts))
        else:
            where = (slice(expert, expert + 1), *parts)
            part = (mxfp4.read(fetch, name, where) if self.packed else fetch(name, where))[0]
        part = part.T if self.transposed else part
        return part[self.half :: 2] if self.alternating else part

    def write(self, tensor: np.ndarray, value: np.ndarray) -> None:
        """Put `value` [E, F, ...] where it belongs in a whole tensor of all experts, which others may share."""
        view = tensor.swapaxes(-1, -2) if self.transposed else tensor
        if self.half is not None:
            size = value.shape[1]
            view = view[:, self.half :: 2] if self.alternating else view[:, self.half * size :][:, :size]
        view[...] = value


def _length(part: slice) -> int:
    return part.stop - part.start


def per_expert(prefix: str) -> dict[str, Form]:
    """Gate, up and down of every expert in tensors of their own."""
    name = prefix + "experts.{e}."
    return {
        "layers.moe.gate_efd": Form(name + "gate_proj.weight"),
        "layers.moe.up_efd": Form(name + "up_proj.weight"),
        "layers.moe.down_edf": Form(name + "down_proj.weight"),
    }


def joined(prefix: str, **how: bool) -> dict[str, Form]:
    """Gate and up in one tensor for all experts, down in another; `how`: fields of Form."""
    gate_up, down = (f"{prefix}experts.{name}_proj" for name in ("gate_up", "down"))
    alone = {key: value for key, value in how.items() if key != "alternating"}
    return {
        "layers.moe.gate_efd": Form(gate_up, half=0, **how),
        "layers.moe.up_efd": Form(gate_up, half=1, **how),
        "layers.moe.down_edf": Form(down, **alone),
    }


def kept_packed(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Of weights that are packed in the file and in memory: blocks and scales each have a form of their own."""
    return {
        part: replace(form, name=form.name + ending, packed=False)
        for path, form in forms.items()
        for part, ending in zip(packed_paths(path), (mxfp4.BLOCKS, mxfp4.SCALES), strict=True)
    }
