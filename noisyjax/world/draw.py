"""Draws that are functions of their names: the same question comes out whatever else is made, and in what order."""

from collections.abc import Sequence
from dataclasses import dataclass

from noisyjax.bench.seeds import digest


@dataclass(frozen=True)
class Draw:
    """A stream named by `key`; `Draw(1, "train").at("names")` names a stream below it."""

    key: tuple[str | int, ...]

    def at(self, *more: str | int) -> "Draw":
        return Draw((*self.key, *more))

    def below(self, n: int, *what: str | int) -> int:
        """A whole number from 0 to n - 1."""
        return digest(*self.key, *what) % n

    def between(self, low: int, high: int, *what: str | int) -> int:
        """A whole number from low to high, both included."""
        return low + self.below(high - low + 1, *what)

    def pick[T](self, options: Sequence[T], *what: str | int) -> T:
        return options[self.below(len(options), *what)]

    def some[T](self, n: int, options: Sequence[T], *what: str | int) -> list[T]:
        """`n` different entries of `options` in a drawn order. A larger n only appends."""
        left = list(options)
        return [left.pop(self.below(len(left), *what, i)) for i in range(n)]
