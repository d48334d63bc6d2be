"""What a benchmark reports: one line, a ratio and the bound it has to keep."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """`ratio` is what is claimed; `least` or `most` bounds it. `detail` holds the figures behind it."""

    name: str
    claim: str
    ratio: float
    least: float | None = None
    most: float | None = None
    detail: dict[str, object] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return (self.least is None or self.ratio >= self.least) and (self.most is None or self.ratio <= self.most)

    @property
    def bound(self) -> str:
        return f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}"


def alternate(runs: Sequence[Callable[[], float]], rounds: int = 3) -> list[float]:
    """Each run's median over `rounds`, taken in turn (A B A B ...), so that a drifting machine drifts for all."""
    seen: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for values, run in zip(seen, runs, strict=True):
            values.append(run())
    return [statistics.median(v) for v in seen]


def seconds(work: Callable[[], object]) -> float:
    """Wall clock of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
