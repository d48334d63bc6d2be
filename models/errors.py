"""What can be wrong with a model folder, a model config or a way to lay a model out over devices.

These are the person's files and choices, so each message says what to change; `exit_code` is what a command returns.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Shape = tuple[int, ...]


class ModelError(Exception):
    """A model folder, file, config or layout that cannot be used. One readable message; exit code 2."""

    exit_code = 2


class UnknownArchitecture(ModelError):
    """An architecture that no family here implements; the message lists those that exist."""

    def __init__(self, found: str, known: Iterable[str], what: str = "architecture"):
        self.found, self.known = found, sorted(known)
        super().__init__(f"unknown {what} '{found}'; known: {', '.join(self.known)}")


class UnsupportedConfig(ModelError):
    """A known architecture with a setting that would be computed wrongly, or a config that contradicts itself."""


class ShardingError(ModelError):
    """Sharding rules that do not fit the model or the mesh."""


@dataclass(frozen=True)
class Mismatch:
    """How the tensors that were found differ from those that were expected."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshapen: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict)
    """name -> (found shape, expected shape)"""
    conflicting: tuple[str, ...] = ()
    """Tensors that contradict the config although their shapes are right: a head of its own in a tied model."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshapen or self.conflicting)

    @classmethod
    def between(cls, found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> "Mismatch":
        """Compare two tables of name -> shape."""
        return cls(
            missing=tuple(sorted(set(expected) - set(found))),
            unexpected=tuple(sorted(set(found) - set(expected))),
            misshapen={
                name: (tuple(found[name]), tuple(shape))
                for name, shape in sorted(expected.items())
                if name in found and tuple(found[name]) != tuple(shape)
            },
        )


class CheckpointMismatch(ModelError):
    """Every missing, unexpected, misshapen or contradictory tensor, all in one message."""

    def __init__(self, where: str, mismatch: Mismatch):
        self.mismatch = mismatch
        lines = [f"the tensors in {where} do not fit its config:"]
        for title, names in (
            ("missing", mismatch.missing),
            ("unexpected", mismatch.unexpected),
            ("contradicting", mismatch.conflicting),
        ):
            lines += [f"  {title} ({len(names)}):", *(f"    {name}" for name in names)] if names else []
        if mismatch.misshapen:
            lines.append(f"  misshapen ({len(mismatch.misshapen)}):")
            lines += [f"    {n}: found {list(f)}, expected {list(e)}" for n, (f, e) in mismatch.misshapen.items()]
        super().__init__("\n".join(lines))
