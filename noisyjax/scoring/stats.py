"""Means, relative changes and their intervals: a paired bootstrap over questions.

Legend: Q questions, C clusters (a cluster is a question, unless the data set ties several together), R draws,
D data sets.

One draw resamples the clusters of every data set, and all settings of a data set use the same draw: that is what
makes a change from ND to a noisy setting a paired comparison. The draws of a data set depend on the seed and its name
and questions only, never on which other data sets or settings are present, or in what order.

A question that is unscored (nan) in one setting lowers n there and stays in the others. A question that must not count
at all (over length, contaminated) is dropped by the caller, in all settings.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from noisyjax.errors import UsageError


@dataclass(frozen=True)
class CellValues:
    """One data set in one setting. values_q: float [Q], the mean over a question's samples in [0, 1], nan if missing.

    clusters: one label a question (BBQ: category and question_index), or None when questions stand alone.
    """

    dataset: str
    setting: str
    question_ids: Sequence[str]
    values_q: np.ndarray
    clusters: Sequence[str] | None = None

    def __post_init__(self) -> None:
        q = len(self.question_ids)
        if np.shape(self.values_q) != (q,) or (self.clusters is not None and len(self.clusters) != q):
            raise UsageError(f"{self.dataset}/{self.setting}: values and clusters must have one entry a question ({q})")
        if len(set(self.question_ids)) != q:
            raise UsageError(f"{self.dataset}/{self.setting}: a question occurs twice")


@dataclass(frozen=True)
class Interval:
    """A number with its percentile interval. None: undefined. `undefined_share` of the draws had no value; the
    interval is that of the others."""

    point: float | None
    low: float | None = None
    high: float | None = None
    undefined_share: float = 0.0


@dataclass(frozen=True)
class CellResult:
    """`mean` in [0, 1]; `change` is the relative change from the baseline in percent (negative: a drop), of the same
    data set; `n` questions were scored of `total`."""

    mean: Interval
    change: Interval
    n: int
    total: int


@dataclass(frozen=True)
class SettingResult:
    """Means over data sets in one setting, in [0, 1], and their relative changes from the baseline in percent.

    The means are over `datasets` (those with a scored question here). The changes compare like with like: both sides
    are over `compared`, the data sets that the baseline has as well.
    """

    harmonic: Interval
    arithmetic: Interval
    harmonic_change: Interval
    arithmetic_change: Interval
    datasets: tuple[str, ...]
    compared: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """Everything a table needs."""

    cells: Mapping[tuple[str, str], CellResult]
    settings: Mapping[str, SettingResult]
    draws: int
    level: float
    seed: int
    baseline: str


# ----------------------------------------------------------------------------------------------------------------
# Means
# ----------------------------------------------------------------------------------------------------------------


def harmonic_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Harmonic mean along `axis`: 0 where any value is 0 (the limit), nan where any is nan or there are none.

    values: float, non-negative.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.shape[axis] == 0:
        return np.full(np.delete(values.shape, axis), np.nan)
    with np.errstate(divide="ignore", over="ignore"):
        return values.shape[axis] / np.sum(1.0 / values, axis=axis)


def relative_change(values: np.ndarray, base: np.ndarray) -> np.ndarray:
    """100 * (values - base) / base in percent; nan where base is 0 or either is nan."""
    values, base = np.asarray(values, dtype=np.float64), np.asarray(base, dtype=np.float64)
    out = np.full(np.broadcast_shapes(values.shape, base.shape), np.nan)
    return np.divide(100.0 * (values - base), base, out=out, where=base > 0)


# ----------------------------------------------------------------------------------------------------------------
# Draws
# ----------------------------------------------------------------------------------------------------------------


def draw_counts(seed: int, dataset: str, clusters: int, draws: int) -> np.ndarray:
    """How often each cluster is drawn: float64 [R, C], every row sums to C. A function of its arguments only."""
    if clusters == 0:
        return np.zeros((draws, 0))
    digest = hashlib.sha256(f"bootstrap\0{seed}\0{dataset}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:16], "little"))
    index_rc = rng.integers(0, clusters, size=(draws, clusters))
    flat = (index_rc + np.arange(draws)[:, None] * clusters).ravel()
    return np.bincount(flat, minlength=draws * clusters).reshape(draws, clusters).astype(np.float64)


@dataclass
class _Dataset:
    """The draws of one data set: per setting the mean as observed and in every draw [R]."""

    points: dict[str, float] = field(default_factory=dict)
    draws: dict[str, np.ndarray] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)


def _resample(dataset: str, cells: Sequence[CellValues], seed: int, draws: int) -> _Dataset:
    cluster_of: dict[str, str] = {}
    for cell in cells:
        labels = cell.question_ids if cell.clusters is None else cell.clusters
        for question, label in zip(cell.question_ids, labels, strict=True):
            if cluster_of.setdefault(question, str(label)) != str(label):
                raise UsageError(f"{dataset}: question {question} is in two clusters")
    place = {label: i for i, label in enumerate(sorted(set(cluster_of.values())))}
    result = _Dataset()
    counts_rc = draw_counts(seed, dataset, len(place), draws)
    for cell in cells:
        values_q = np.asarray(cell.values_q, dtype=np.float64)
        scored_q = np.isfinite(values_q)
        cluster_q = np.array([place[cluster_of[q]] for q in cell.question_ids], dtype=np.int64)[scored_q]
        sum_c = np.bincount(cluster_q, weights=values_q[scored_q], minlength=len(place))
        n_c = np.bincount(cluster_q, minlength=len(place)).astype(np.float64)
        result.points[cell.setting] = float(values_q[scored_q].mean()) if scored_q.any() else np.nan
        result.draws[cell.setting] = _ratio(counts_rc @ sum_c, counts_rc @ n_c)
        result.counts[cell.setting] = (int(scored_q.sum()), len(values_q))
    return result


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.full(denominator.shape, np.nan), where=denominator > 0)


def interval(point: float, draws_r: np.ndarray, level: float) -> Interval:
    """A percentile interval over the draws that are defined."""
    defined = draws_r[np.isfinite(draws_r)]
    share = 1.0 - len(defined) / len(draws_r) if len(draws_r) else 0.0
    if not np.isfinite(point):
        return Interval(None, undefined_share=share)
    if not len(defined):
        return Interval(float(point), undefined_share=share)
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(point), float(low), float(high), share)


# ----------------------------------------------------------------------------------------------------------------
# The table
# ----------------------------------------------------------------------------------------------------------------


def summarise(
    cells: Iterable[CellValues], *, seed: int = 0, draws: int = 1000, level: float = 0.95, baseline: str = "ND"
) -> Summary:
    """Means, relative changes and intervals of every cell and of every setting over the data sets.

    Raises UsageError for a cell given twice, a level outside (0, 1) or no draws.
    """
    if draws < 1 or not 0 < level < 1:
        raise UsageError(f"the bootstrap needs at least one draw and a level in (0, 1), not {draws} and {level}")
    by_dataset: dict[str, dict[str, CellValues]] = {}
    for cell in cells:
        if by_dataset.setdefault(cell.dataset, {}).setdefault(cell.setting, cell) is not cell:
            raise UsageError(f"{cell.dataset}/{cell.setting} is given twice")
    names = sorted(by_dataset)
    sampled = {name: _resample(name, list(by_dataset[name].values()), seed, draws) for name in names}
    results = {
        (name, setting): _cell_result(data, setting, baseline, level)
        for name, data in sampled.items()
        for setting in data.points
    }
    settings = list(dict.fromkeys(setting for data in sampled.values() for setting in data.points))
    overall = {setting: _setting_result(sampled, setting, baseline, level, draws) for setting in settings}
    return Summary(results, overall, draws, level, seed, baseline)


def _cell_result(data: _Dataset, setting: str, baseline: str, level: float) -> CellResult:
    mean = interval(data.points[setting], data.draws[setting], level)
    change = Interval(None)
    if setting != baseline and baseline in data.points:
        change = _change(data.points[setting], data.draws[setting], data.points[baseline], data.draws[baseline], level)
    n, total = data.counts[setting]
    return CellResult(mean, change, n, total)


def _change(point: float, draws_r: np.ndarray, base: float, base_r: np.ndarray, level: float) -> Interval:
    return interval(
        float(relative_change(np.asarray(point), np.asarray(base))), relative_change(draws_r, base_r), level
    )


_Mean = Callable[[np.ndarray], np.ndarray]


def _setting_result(
    sampled: Mapping[str, _Dataset], setting: str, baseline: str, level: float, draws: int
) -> SettingResult:
    def has(data: _Dataset, name: str) -> bool:
        return np.isfinite(data.points.get(name, np.nan))

    present = tuple(name for name, data in sampled.items() if has(data, setting))
    compared = tuple(name for name in present if has(sampled[name], baseline))

    def stack(names: tuple[str, ...], which: str) -> tuple[np.ndarray, np.ndarray]:
        points_d = np.array([sampled[name].points[which] for name in names])
        draws_dr = np.array([sampled[name].draws[which] for name in names])
        return points_d, draws_dr if names else np.empty((0, draws))

    points_d, draws_dr = stack(present, setting)
    here_d, here_dr = stack(compared, setting)
    base_d, base_dr = stack(compared, baseline)

    def mean(of: _Mean) -> Interval:
        return interval(float(of(points_d)), of(draws_dr), level)

    def change(of: _Mean) -> Interval:
        if setting == baseline or not compared:
            return Interval(None)
        return _change(float(of(here_d)), of(here_dr), float(of(base_d)), of(base_dr), level)

    return SettingResult(
        mean(harmonic_mean), mean(_arithmetic), change(harmonic_mean), change(_arithmetic), present, compared
    )


def _arithmetic(values: np.ndarray) -> np.ndarray:
    return values.mean(axis=0) if len(values) else np.full(values.shape[1:], np.nan)
