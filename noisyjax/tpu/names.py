"""Accelerator names, as Google spells them, and what stands behind each: chips, hosts, topology, peak rates.

The number in a name counts TensorCores for v4, v5p and tpu7x (two to a chip: v5p-32 has 16 chips) and chips for v5e and
v6e. A jax device is a chip, except on tpu7x, where each of a chip's two cores is one.

Numbers: Google Cloud's pages "TPU v4", "v5e", "v5p", "v6e" and "TPU7x". They are peaks; no program reaches them.
"""

import re
from dataclasses import dataclass
from math import prod

from noisyjax.errors import UsageError

GIB = 2**30

_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_UNDER_A_CUBE = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_CUBES = ((4, 4, 4), (4, 4, 8), (4, 8, 8), (8, 8, 8), (8, 8, 16), (8, 16, 16), (16, 16, 16))
_SOLID = (*_UNDER_A_CUBE, *_CUBES)


@dataclass(frozen=True)
class Generation:
    """One kind of TPU. Rates are per jax device."""

    name: str
    """As jax names topologies: v4, v5e, v5p, v6e, tpu7x."""
    google: str
    """Prefix of Google's accelerator types."""
    topologies: tuple[tuple[int, ...], ...]
    counted: int
    """What the number in a name counts per chip: TensorCores or chips."""
    devices_per_chip: int
    hbm_bytes: float
    """Memory of a device."""
    flops: float
    """Peak bfloat16 operations per second of a device."""
    hbm_bytes_s: float
    """Memory bandwidth of a device, bytes per second."""
    ici_bytes_s: float
    """Bytes per second that a device can send to its neighbours, all its links together, one way."""
    runtime: str
    """Software version of a TPU VM with jax on it."""
    gke: str
    """Node label `cloud.google.com/gke-tpu-accelerator`."""


def _generation(
    name: str,
    google: str,
    topologies: tuple[tuple[int, ...], ...],
    counted: int,
    devices: int,
    chip: tuple[float, float, float, float],
    runtime: str,
    gke: str,
) -> Generation:
    """`chip`: HBM in GiB, TFLOP/s in bfloat16, HBM in GB/s, ICI in GB/s one way; all of them per chip."""
    hbm, flops, bandwidth, ici = (number / devices for number in chip)
    rates = (hbm * GIB, flops * 1e12, bandwidth * 1e9, ici * 1e9)
    return Generation(name, google, topologies, counted, devices, *rates, runtime, gke)


GENERATIONS = {
    g.name: g
    for g in (
        _generation("v4", "v4", _SOLID, 2, 1, (32, 275, 1228, 300), "tpu-ubuntu2204-base", "tpu-v4-podslice"),
        _generation(
            "v5e", "v5litepod", _FLAT, 1, 1, (16, 197, 819, 200), "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice"
        ),
        _generation("v5p", "v5p", _SOLID, 2, 1, (95, 459, 2765, 600), "v2-alpha-tpuv5", "tpu-v5p-slice"),
        _generation("v6e", "v6e", _FLAT, 1, 1, (32, 918, 1638, 400), "v2-alpha-tpuv6e", "tpu-v6e-slice"),
        _generation("tpu7x", "tpu7x", _SOLID, 2, 2, (192, 2307, 7380, 600), "v2-alpha-tpu7-ubuntu2404", "tpu7x"),
    )
}

# Other spellings of a prefix that are met in the wild.
_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "tpu7x", "7x": "tpu7x"}


@dataclass(frozen=True)
class Slice:
    """Chips that are connected with each other: what one accelerator name buys."""

    generation: Generation
    topology: tuple[int, ...]
    """Chips along each axis."""

    @property
    def chips(self) -> int:
        return prod(self.topology)

    @property
    def devices(self) -> int:
        """As `jax.devices()` counts them."""
        return self.chips * self.generation.devices_per_chip

    @property
    def chips_per_host(self) -> int:
        """Flat slices of up to eight chips are one machine; every machine of a larger or a cubic slice has four."""
        return self.chips if len(self.topology) == 2 and self.chips <= 8 else 4

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_host

    @property
    def host(self) -> "Slice":
        """The chips of one host, as if they were alone."""
        return self if self.hosts == 1 else Slice(self.generation, (2, 2, *[1] * (len(self.topology) - 2)))

    @property
    def shape(self) -> str:
        """`4x4`, `2x2x4`."""
        return "x".join(map(str, self.topology))

    @property
    def jax_topology(self) -> str:
        """What `jax.experimental.topologies.get_topology_desc` takes: `v5e:4x4`."""
        return f"{self.generation.name}:{self.shape}"

    @property
    def name(self) -> str:
        """Google's accelerator type: `v5litepod-16`."""
        return f"{self.generation.google}-{self.chips * self.generation.counted}"


def known() -> list[str]:
    """Every name, generation by generation, small to large."""
    return [Slice(g, topology).name for g in GENERATIONS.values() for topology in g.topologies]


def parse_accelerator(text: str) -> Slice:
    """The slice that `v5e-16`, `v5litepod-16`, `tpu-v6e-8`, `v5p-32`, `tpu7x-8` or jax's `v5e:4x4` means.

    UsageError that lists the known sizes for what does not exist.
    """
    word = text.strip().lower()
    named = re.fullmatch(r"(?:tpu-)?([a-z0-9]+?)(?:-([0-9]+)|[:-]([0-9]+(?:x[0-9]+){1,2}))", word)
    generation = GENERATIONS.get(_ALIASES.get(named[1], named[1])) if named else None
    if named is None or generation is None:
        raise UsageError(f"'{text}' is not a TPU; known: {', '.join(known())}")
    for topology in generation.topologies:
        found = Slice(generation, topology)
        if named[3] == found.shape or (named[2] and int(named[2]) == found.chips * generation.counted):
            return found
    sizes = ", ".join(f"{s.name} ({s.shape})" for s in (Slice(generation, t) for t in generation.topologies))
    raise UsageError(f"'{text}' does not exist; known: {sizes}")
