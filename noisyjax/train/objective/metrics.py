"""Metrics that add up. A micro-batch reports sums and counts, never means; the quotient is taken once, at the end.

A `Metrics` is a flat dict from name to reducer. Reducers are pytrees of arrays and `a + b` is the reducer of both
parts, so a `Metrics` can leave a jitted function or be the carry of a scan. What was never counted reads as None:
absent is not zero.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np


class Reducer(Protocol):
    """A summary of some values that can be added to the summary of other values."""

    def __add__(self, other: Any) -> Self: ...

    @classmethod
    def empty(cls) -> Self:
        """The summary of no values: `a + empty == a`."""
        ...

    def read(self, name: str) -> dict[str, float | None]:
        """The figures under their final names; None where nothing was counted."""
        ...


Metrics = Mapping[str, Reducer]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mean:
    """The mean of the values: their sum (float32) and their count (int32, exact beyond float32's 2^24)."""

    total: Any
    count: Any

    @classmethod
    def of(cls, values: Any, where: Any = True) -> Self:
        """Over the entries of `values` (any shape, numbers or booleans) at which `where` holds."""
        kept, mask = _masked(values, where, 0.0)
        return cls(kept.sum(), mask.sum(dtype=jnp.int32))

    @classmethod
    def empty(cls) -> Self:
        return cls(jnp.float32(0), jnp.int32(0))

    def __add__(self, other: Self) -> Self:
        return type(self)(self.total + other.total, self.count + other.count)

    def read(self, name: str) -> dict[str, float | None]:
        return {name: float(self.total) / int(self.count) if int(self.count) else None}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Total(Mean):
    """The sum itself, for quantities that are already shares of the whole, such as a weighted loss."""

    def read(self, name: str) -> dict[str, float | None]:
        return {name: float(self.total) if int(self.count) else None}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Max:
    """The largest value (float32), and how many there were."""

    value: Any
    count: Any

    @classmethod
    def of(cls, values: Any, where: Any = True) -> Self:
        """Over the entries of `values` at which `where` holds."""
        kept, mask = _masked(values, where, -jnp.inf)
        return cls(kept.max(initial=-jnp.inf), mask.sum(dtype=jnp.int32))

    @classmethod
    def empty(cls) -> Self:
        return cls(jnp.float32(-jnp.inf), jnp.int32(0))

    def __add__(self, other: Self) -> Self:
        return type(self)(jnp.maximum(self.value, other.value), self.count + other.count)

    def read(self, name: str) -> dict[str, float | None]:
        return {name: float(self.value) if int(self.count) else None}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Min(Max):
    """The smallest value (float32), and how many there were."""

    @classmethod
    def of(cls, values: Any, where: Any = True) -> Self:
        kept, mask = _masked(values, where, jnp.inf)
        return cls(kept.min(initial=jnp.inf), mask.sum(dtype=jnp.int32))

    @classmethod
    def empty(cls) -> Self:
        return cls(jnp.float32(jnp.inf), jnp.int32(0))

    def __add__(self, other: Self) -> Self:
        return type(self)(jnp.minimum(self.value, other.value), self.count + other.count)


_PER_DECADE = 64
_FIRST, _LAST = -7, 6  # powers of ten
_EDGES = 10.0 ** (np.arange(_FIRST * _PER_DECADE, _LAST * _PER_DECADE + 1) / _PER_DECADE)
_READ_AT = (0.5, 0.95, 0.99)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Quantiles:
    """Quantiles of non-negative values, from a histogram with 64 bins per decade between 1e-7 and 1e6.

    True quantiles cannot be added up; counts can. A figure is off by less than one bin, 3.7 %. Values under 1e-7 share
    one bin that ends there, values beyond 1e6 read as 1e6, and nan is counted among the latter, not lost.
    """

    count_k: Any
    """int32 [len(_EDGES) + 1]; bin k holds edge[k-1] <= value < edge[k]."""

    @classmethod
    def of(cls, values: Any, where: Any = True) -> Self:
        """Over the entries of `values` (>= 0) at which `where` holds."""
        kept, mask = _masked(values, where, 0.0)
        bin_n = jnp.searchsorted(jnp.asarray(_EDGES, jnp.float32), kept.ravel(), side="right")
        return cls(jnp.zeros(len(_EDGES) + 1, jnp.int32).at[bin_n].add(mask.ravel().astype(jnp.int32)))

    @classmethod
    def empty(cls) -> Self:
        return cls(jnp.zeros(len(_EDGES) + 1, jnp.int32))

    def __add__(self, other: Self) -> Self:
        return type(self)(self.count_k + other.count_k)

    def read(self, name: str) -> dict[str, float | None]:
        return {f"{name}/p{round(100 * q)}": self.quantile(q) for q in _READ_AT}

    def quantile(self, q: float) -> float | None:
        """The value below which a share q in [0, 1] of the values lies, interpolated inside its bin."""
        up_to_k = np.cumsum(np.asarray(self.count_k, np.int64))
        n = int(up_to_k[-1])
        if n == 0:
            return None
        k = int(np.searchsorted(up_to_k, max(q * n, 1)))
        if k == len(_EDGES):
            return float(_EDGES[-1])
        before = int(up_to_k[k - 1]) if k else 0
        part = (max(q * n, 1) - before) / (int(up_to_k[k]) - before)
        low = float(_EDGES[k - 1]) if k else 0.0
        return low + part * (float(_EDGES[k]) - low)


def _masked(values: Any, where: Any, filler: float) -> tuple[jax.Array, jax.Array]:
    """`values` as float32 with `filler` where they do not count, and the mask in the same shape.

    Chosen, not multiplied: a nan in a padding slot must not spread.
    """
    values = jnp.asarray(values, jnp.float32)
    mask = jnp.broadcast_to(jnp.asarray(where, bool), values.shape)
    return jnp.where(mask, values, filler), mask


def merge(parts: Iterable[Metrics]) -> dict[str, Reducer]:
    """The metrics of all parts together; a name may be missing from some of them."""
    whole: dict[str, Reducer] = {}
    for part in parts:
        for name, reducer in part.items():
            whole[name] = whole[name] + reducer if name in whole else reducer
    return whole


def empty_like(metrics: Metrics) -> dict[str, Reducer]:
    """The same names with nothing counted: where a scan over micro-batches begins. Takes abstract shapes as well."""
    return {name: type(reducer).empty() for name, reducer in metrics.items()}


def reduce(metrics: Metrics) -> dict[str, float | None]:
    """The figures, by name, as Python numbers; None (never 0) where nothing was counted. One transfer for all."""
    figures: dict[str, float | None] = {}
    for name, reducer in jax.device_get(dict(metrics)).items():
        figures |= reducer.read(name)
    return figures


def show(value: float | None) -> str:
    """A figure for a table or a progress line; a dash where there is none.

    >>> show(None), show(0.0), show(0.123456)
    ('–', '0', '0.1235')
    """
    return "–" if value is None else f"{value:.4g}"
