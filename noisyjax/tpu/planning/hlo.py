"""What a compiled program sends between devices: the collectives in its HLO text, loops counted as often as they turn.

XLA's own cost analysis counts the body of a loop once. Here the program is walked from its entry, and what lies in a
loop over 36 layers counts 36 times.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_BYTES = {"pred": 1, "bf16": 2}
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_KIND = re.compile(r" (" + "|".join(KINDS) + r")(?:-start)?\(")
_CALLED = re.compile(r"(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_LOOP = re.compile(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')
_CONSTANT = re.compile(r"%?([\w.\-]+) = [su]\d+\[\]\S* constant\((\d+)\)")
_COMPARED = re.compile(r"compare\((.*?)\), direction=LT")
_SHAPE = re.compile(r"\b(pred|bf16|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")


@dataclass(frozen=True)
class Collective:
    """One collective of a program.

    size: bytes of what is gathered, reduced or exchanged, on one device. group: devices that take part. trips: turns
    of the loops around it, the outermost first.
    """

    kind: str
    size: int
    group: int
    trips: tuple[int, ...] = ()

    @property
    def sent(self) -> float:
        """Bytes that a device sends in a run of the program, by the ring that each kind needs at least."""
        share = (self.group - 1) / self.group
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)
        return factor * self.size * prod(self.trips)


def collectives(text: str, turns: int = 1) -> list[Collective]:
    """Every collective of a compiled program. turns: of a loop whose end is found while it runs, as when decoding."""
    computations, entry = _computations(text)
    return list(_walk(computations, entry, (), turns, set()))


def _computations(text: str) -> tuple[Mapping[str, list[str]], str]:
    """Name -> lines of each computation, and the entry's name."""
    found: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            lines = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        else:
            lines.append(line)
    return found, entry


def _walk(
    computations: Mapping[str, Sequence[str]], name: str, trips: tuple[int, ...], turns: int, seen: set[str]
) -> Iterator[Collective]:
    """seen: channels. The start, the overlap and the end of an asynchronous collective each hold a copy of it."""
    for line in computations.get(name, ()):
        if kind := _KIND.search(line):
            channel = re.search(r"channel_id=(\d+)", line)
            if channel and channel[1] in seen:
                continue
            seen.add(channel[1] if channel else line)
            yield _collective(line, kind[1], name, trips)
        elif loop := _LOOP.search(line):
            yield from _walk(computations, loop[2], (*trips, _trips(line, computations[loop[1]], turns)), turns, seen)
        else:
            branches = _BRANCHES.search(line)
            called = _CALLED.findall(line) + (re.findall(r"%?([\w.\-]+)", branches[1]) if branches else [])
            for other in called:
                yield from _walk(computations, other, trips, turns, seen)


def _trips(line: str, condition: Sequence[str], turns: int) -> int:
    """Turns of a loop: as the compiler notes them, or the constant that its counter, from 0 on, stays below."""
    if known := _TRIPS.search(line):
        return int(known[1])
    root = next((x for x in condition if x.lstrip().startswith("ROOT")), "")
    limit = {name: int(value) for x in condition for name, value in _CONSTANT.findall(x)}
    compared = _COMPARED.search(root)
    return (
        next((limit[name] for name in re.findall(r"[\w.\-]+", compared[1]) if name in limit), turns)
        if compared
        else turns
    )


def _collective(line: str, kind: str, computation: str, trips: tuple[int, ...]) -> Collective:
    result = line.split(" = ", 1)[1].split(f" {kind}", 1)[0]
    sizes = [_size(dtype, dims) for dtype, dims in _SHAPE.findall(result)]
    group = _group(line)
    size = sum(sizes) if kind in ("all-reduce", "all-to-all", "reduce-scatter") else max(sizes)
    if kind == "reduce-scatter":
        size *= group
    if computation.startswith("all-reduce-scatter"):  # the TPU's own form of it
        kind = "reduce-scatter"
    return Collective(kind, size, group, trips)


def _size(dtype: str, dims: str) -> int:
    bits = re.search(r"\d+", dtype)
    width = _BYTES.get(dtype) or max(1, int(bits[0]) // 8 if bits else 1)
    return width * prod(int(n) for n in dims.split(",") if n)


def _group(line: str) -> int:
    """Devices of a group, from any of the three ways in which XLA writes them; 2 for a permutation's pairs."""
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line):
        axes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        return prod(axes[name] for name in re.findall(r"'([^']+)'", mesh[2]))
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=", line):
        return int(iota[1].split(",")[-1])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(listed[1].split(","))
    return 2
