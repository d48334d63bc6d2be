"""Seeded draws that depend on names and seeds only: never on file order, batch, process or Python's salted hash."""

import hashlib
import json
from collections.abc import Callable, Iterable


def digest(*parts: str | int) -> int:
    """A uniform 64-bit integer that is a function of `parts`; parts are delimited, so ("a", "b") is not ("ab",)."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:8], "big")


def content_id(*parts: str) -> str:
    """Twelve hex digits that name a piece of content: the id of a row whose upstream file gives it none."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def seeded_order[T](items: Iterable[T], key: Callable[[T], str], *seed: str | int) -> list[T]:
    """`items` in an order that is a function of (seed, key of each item). Removing an item moves no other pair.

    So the first N of a set are the same however the file was sorted, and N+1 only adds one.
    """
    return sorted(items, key=lambda item: (digest(*seed, key(item)), key(item)))


def permutation(n: int, *seed: str | int) -> tuple[int, ...]:
    """A permutation of range(n) that is a function of `seed`."""
    return tuple(seeded_order(range(n), str, *seed))
