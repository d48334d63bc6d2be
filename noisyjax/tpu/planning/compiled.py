"""One program through the TPU's own compiler: does it fit, what does it hold, what does it send."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax

from noisyjax.tpu.names import GIB, Generation
from noisyjax.tpu.planning.hlo import Collective, collectives
from noisyjax.tpu.planning.programs import Program, device_bytes
from noisyjax.tpu.planning.work import counted

RESERVED = GIB / 4
"""Of a device's memory, what the runtime keeps to itself: v5e leaves 15.75 of 16 GiB."""


@dataclass(frozen=True)
class Compiled:
    """What is known of a program on one device of the mesh; sizes in bytes.

    memory: by kind: parameters, optimizer, gradient, cache, reference; `beside`: weights and caches of others; and
    `activations`, all that the program makes for its own use. peak: their sum, None where the compiler gave up before
    it knew. problem: why it does not fit.
    """

    name: str
    memory: Mapping[str, float]
    peak: float | None
    fits: bool
    problem: str | None = None
    collectives: tuple[Collective, ...] = ()
    times: int = 1
    flops: float = 0.0
    """Of its dense products, all devices together (`work.counted`)."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"collectives": [asdict(c) | {"sent": c.sent} for c in self.collectives]}


def compile_program(program: Program, generation: Generation) -> Compiled:
    """Lower and compile it for the devices that its arguments lie on. What does not fit is a result, not an error."""
    room = generation.hbm_bytes - RESERVED
    held = {kind: float(device_bytes(tree)) for kind, tree in program.kinds.items()}
    for kind, size in program.beside.items():
        held[kind] = held.get(kind, 0.0) + size
    held = {kind: size for kind, size in held.items() if size}
    traced = program.call.trace(*program.args)  # type: ignore[attr-defined]
    flops = counted(traced.jaxpr, program.turns or 0)
    try:
        made = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return Compiled(
            program.name, held, None, False, _too_large(str(error), sum(held.values()), room), (), program.times, flops
        )
    stats = made.memory_analysis()
    inputs = stats.argument_size_in_bytes
    # Not the size of the temporaries: the compiler's sum of them counts places that are used one after the other.
    held["activations"] = float(max(stats.peak_memory_in_bytes - inputs, 0))
    rest = inputs - sum(device_bytes(tree) for tree in program.kinds.values())
    held["inputs"] = float(max(rest, 0))
    peak = sum(held.values())
    over = peak - room
    problem = f"{peak / GIB:.1f} GiB of {room / GIB:.2f}: {over / GIB:.1f} GiB too much" if over > 0 else None
    sent = tuple(collectives(made.as_text(), program.turns or 1))
    return Compiled(program.name, held, peak, over <= 0, problem, sent, program.times, flops)


def _too_large(message: str, need: float, room: float) -> str:
    """The compiler's own words about memory, in ours. need: bytes that the program is given, if it does not say."""
    wanted = re.search(r"required .*?\(([\d.]+)G\) exceeds available HBM \(([\d.]+)G\)", message)
    exceeded = re.search(r"Used ([\d.]+)G of ([\d.]+)G hbm", message)
    found = wanted or exceeded
    if found is not None:
        need, room = float(found[1]) * GIB, float(found[2]) * GIB
    if need <= room:
        return "its memory exceeds the device's; the compiler does not say by how much"
    return f"at least {need / GIB:.1f} GiB of {room / GIB:.2f}: {(need - room) / GIB:.1f} GiB too much"
