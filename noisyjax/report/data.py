"""From stored runs to the numbers of a report. Everything that is printed anywhere is computed here, once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from noisyjax.errors import UsageError
from noisyjax.evaluate.results import CellInfo, RunResults, Sample
from noisyjax.records import State
from noisyjax.scoring import BBQScores, CellValues, Interval, Summary, bbq_scores, headline, summarise
from noisyjax.scoring.stats import CellResult

STATES = ("truncated", "no_answer", "unscored", "over_length", "missing")
"""Every state but `scored`, in the order they are shown. `missing`: planned, and not generated yet."""

JUDGED = ("judge", "rules")
"""What the judge said of the answers it was asked about, and what the rules had said of them."""

ENOUGH_BLOCKS = 3
"""Block seeds behind a published number with shared noise: a bootstrap over questions does not see their variance."""


@dataclass(frozen=True)
class CellReport:
    """One dataset in one setting. `result` is the headline; `first` is the plain mean where the headline is pass@k."""

    info: CellInfo
    result: CellResult
    first: Interval | None
    states: Mapping[str, int]
    values: Mapping[str, float | None]
    """Mean of each further number of the scorer: f1, official_overlap, judge ..."""
    prompt_tokens: float | None
    completion_tokens: float | None
    """Means per sample."""
    bbq: BBQScores | None


@dataclass(frozen=True)
class LengthBin:
    """Samples of one setting whose completions have from `low` to `high` tokens."""

    low: int
    high: int
    n: int
    accuracy: float


@dataclass(frozen=True)
class RunReport:
    """One run. Cells that cannot be run are in `absent_cells` with the reason, never among `cells`."""

    label: str
    results: RunResults
    settings: tuple[str, ...]
    cells: Mapping[tuple[str, str], CellReport]
    absent_cells: Mapping[tuple[str, str], str]
    summary: Summary
    lengths: Mapping[str, tuple[LengthBin, ...]]
    tokens: int
    cost: float | None
    notes: tuple[str, ...]

    def short(self, dataset: str) -> str:
        return str(self.results.about(dataset)["short"])

    @property
    def block_seed(self) -> int:
        return int(self.results.manifest.about["block_seed"])


def once(urls: Sequence[str]) -> None:
    """UsageError when a run is named twice."""
    twice = [url for url, n in Counter(str(url).rstrip("/") for url in urls).items() if n > 1]
    if twice:
        raise UsageError(f"the run {twice[0]} is named twice")


def distinct(names: Sequence[str], urls: Sequence[str]) -> list[str]:
    """The names, with the folder behind those that occur twice."""
    often = Counter(names)
    return [name if often[name] == 1 else f"{name} ({url})" for name, url in zip(names, urls, strict=True)]


def run_report(results: RunResults, label: str, draws: int) -> RunReport:
    cells = {(cell.dataset, cell.setting): cell for cell in results.cells}
    summary = summarise([results.values(cell) for cell in cells.values()], draws=draws)
    plain = {key: cell for key, cell in cells.items() if cell.k > 1}
    first = summarise([results.values(cell, "mean") for cell in plain.values()], draws=draws).cells if plain else {}
    reports = {
        key: _cell_report(results, cell, summary.cells[key], first[key].mean if key in first else None)
        for key, cell in cells.items()
    }
    costs = [s.cost for s in results.samples.values()]
    return RunReport(
        label=label,
        results=results,
        settings=results.settings,
        cells=reports,
        absent_cells=_absent_cells(results),
        summary=summary,
        lengths={setting: _lengths(results, setting) for setting in results.settings},
        tokens=sum(s.completion_tokens for s in results.samples.values()),
        cost=sum(c for c in costs if c is not None) if any(c is not None for c in costs) else None,
        notes=tuple(_notes(results)),
    )


def _cell_report(results: RunResults, cell: CellInfo, result: CellResult, first: Interval | None) -> CellReport:
    samples = results.kept(cell)
    states = results.states(cell)
    return CellReport(
        info=cell,
        result=result,
        first=first,
        states={state: states[state] for state in ("scored", *STATES) if states[state]},
        values=_value_means(samples),
        prompt_tokens=_mean([s.prompt_tokens for s in samples]),
        completion_tokens=_mean([s.completion_tokens for s in samples]),
        bbq=_bbq(samples) if results.about(cell.dataset)["metric"] == "bbq" else None,
    )


def _mean(numbers: Sequence[float]) -> float | None:
    return float(np.mean(numbers)) if numbers else None


def _value_means(samples: Sequence[Sample]) -> dict[str, float | None]:
    """Like the headline: cut and unread answers count as wrong. The judge's numbers are over what it was asked."""
    scores = [s.score for s in samples if s.score is not None]
    names = sorted({name for score in scores for name in score.values})
    means: dict[str, float | None] = {}
    for name in names:
        if name in JUDGED:
            numbers = [score.values.get(name) for score in scores]
        else:
            numbers = [headline(score, name) for score in scores if name in score.values or score.value is None]
        means[name] = _mean([v for v in numbers if v is not None])
    return means


def _bbq(samples: Sequence[Sample]) -> BBQScores:
    def column(name: str) -> np.ndarray:
        values = [s.score.values.get(name) if s.score else None for s in samples]
        return np.array([np.nan if v is None else v for v in values])

    heads = [None if s.score is None else headline(s.score) for s in samples]
    correct = np.array([np.nan if v is None else v for v in heads])
    return bbq_scores(correct, column("ambig"), column("non_unknown"), column("biased"))


def _lengths(results: RunResults, setting: str, bins: int = 5) -> tuple[LengthBin, ...]:
    """Equally filled bins of completion length over all datasets; fewer where lengths are tied."""
    rows = sorted(
        (sample.completion_tokens, value)
        for cell in results.cells
        if cell.setting == setting
        for sample in results.kept(cell)
        if sample.score is not None and (value := headline(sample.score)) is not None
    )
    if not rows:
        return ()
    edges = sorted({rows[min(len(rows) * i // bins, len(rows) - 1)][0] for i in range(1, bins)})
    groups: dict[int, list[tuple[int, float]]] = {}
    for tokens, value in rows:
        groups.setdefault(int(np.searchsorted(edges, tokens, side="right")), []).append((tokens, value))
    return tuple(
        LengthBin(group[0][0], group[-1][0], len(group), float(np.mean([value for _, value in group])))
        for _, group in sorted(groups.items())
    )


def _absent_cells(results: RunResults) -> dict[tuple[str, str], str]:
    absent = {(name, setting): reason for name, reason in results.absent.items() for setting in results.settings}
    for name in results.datasets:
        absent |= {(name, setting): reason for setting, reason in results.about(name)["missing"].items()}
    return absent


def _notes(results: RunResults) -> list[str]:
    """What a reader must know beside the numbers."""
    notes = []
    for name in results.datasets:
        about = results.about(name)
        dropped = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in about["dropped"].items())
        if dropped:
            notes.append(f"{about['short']}: questions dropped in every setting: {dropped}")
        if about["bad_rows"]:
            notes.append(f"{about['short']}: {about['bad_rows']} broken rows of the data were skipped")
    over = {name: len(ids) for name, ids in results.over_length.items()}
    notes += [
        f"{name}: {n} questions do not fit the window and are dropped in every setting" for name, n in over.items()
    ]
    config = results.manifest.config["bench"]
    shared = [k for k, pool in (("RD", config["rd"]), ("RC", config["rc"])) if pool["assignment"] == "shared_block"]
    used = [kind for kind in shared if any(kind in setting.split("+") for setting in results.settings)]
    if used:
        notes.append(
            f"{' and '.join(used)}: one shared block of noise (block seed {results.manifest.about['block_seed']}). "
            f"The intervals do not hold the variance between blocks: run {ENOUGH_BLOCKS} or more block seeds to publish"
        )
    if results.manifest.about.get("judge"):
        notes.append(f"judge: {results.manifest.about['judge']}")
    missing = sum(results.states(cell)["missing"] for cell in results.cells)
    if missing:
        notes.append(f"the run is not finished: {missing} samples are missing")
    return notes


@dataclass(frozen=True)
class Comparison:
    """Other runs against the first, question by question: relative changes in percent, per setting."""

    base: str
    others: tuple[str, ...]
    settings: tuple[str, ...]
    cells: Mapping[tuple[str, str, str], Interval]
    """(setting, dataset, run) -> change of that dataset."""
    overall: Mapping[tuple[str, str], Interval]
    """(setting, run) -> change of the arithmetic mean over the datasets that both have."""


def compare(reports: Sequence[RunReport], draws: int = 2000) -> Comparison | None:
    """A paired comparison with the first run; None for a single run. Only questions that both have can pair."""
    if len(reports) < 2:
        return None
    base, *others = reports
    cells: dict[tuple[str, str, str], Interval] = {}
    overall: dict[tuple[str, str], Interval] = {}
    for setting in base.settings:
        columns = [
            _as_setting(report, dataset, setting)
            for report in reports
            for dataset in report.results.datasets
            if (dataset, setting) in report.cells
        ]
        summary = summarise(columns, draws=draws, baseline=base.label)
        for report in others:
            if report.label in summary.settings:
                overall[setting, report.label] = summary.settings[report.label].arithmetic_change
            for dataset in report.results.datasets:
                if (dataset, report.label) in summary.cells:
                    cells[setting, dataset, report.label] = summary.cells[dataset, report.label].change
    return Comparison(base.label, tuple(r.label for r in others), base.settings, cells, overall)


def _as_setting(report: RunReport, dataset: str, setting: str) -> CellValues:
    """The cell's values under the run's name, for statistics that pair settings."""
    return replace(report.results.values(report.cells[dataset, setting].info), setting=report.label)


@dataclass(frozen=True)
class BlockSeeds:
    """Runs that differ in nothing but the block seed: mean and range of their cell means, in [0, 1]."""

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: Mapping[tuple[str, str], tuple[float, float, float]]
    """(dataset, setting) -> mean, lowest, highest."""


def block_seeds(reports: Sequence[RunReport]) -> list[BlockSeeds]:
    """Every group of two or more such runs."""
    groups: dict[str, list[RunReport]] = {}
    for report in reports:
        groups.setdefault(_without_block_seed(report), []).append(report)
    return [_block_group(group) for group in groups.values() if len({r.block_seed for r in group}) > 1]


def _without_block_seed(report: RunReport) -> str:
    manifest = report.results.manifest
    config = dict(manifest.config)
    config.pop("name", None)
    config["bench"] = {k: v for k, v in config["bench"].items() if k != "block_seed"}
    return repr((config, dict(manifest.model)))


def _block_group(group: Sequence[RunReport]) -> BlockSeeds:
    cells = {}
    for key in group[0].cells:
        means = [r.cells[key].result.mean.point for r in group if key in r.cells]
        known = [m for m in means if m is not None]
        if known:
            cells[key] = (float(np.mean(known)), min(known), max(known))
    return BlockSeeds(tuple(r.label for r in group), tuple(r.block_seed for r in group), cells)


def failed(sample: Sample) -> bool:
    """Whether the gallery may show it: anything but a full score."""
    score = sample.score
    return score is not None and not (score.state is State.SCORED and score.value == 1)
