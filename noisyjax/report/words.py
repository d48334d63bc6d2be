"""Numbers as words, the same in every form of the report."""

import math
from collections.abc import Mapping

from noisyjax.report.data import CellReport, RunReport
from noisyjax.scoring import Interval
from noisyjax.scoring.stats import SettingResult

STATE_WORDS = {
    "truncated": "cut",
    "no_answer": "no answer",
    "unscored": "unscored",
    "over_length": "over length",
    "missing": "missing",
}
Extra = tuple[str, list[str], list[list[str]]]
"""A table beside the main one: title, head, rows of text. A cell may have several lines."""

ABSENT = "absent"
UNDEFINED = "–"


def percent(interval: Interval) -> str:
    """A mean in [0, 1] as `52.3`."""
    return UNDEFINED if interval.point is None else f"{100 * interval.point:.1f}"


def bounds(interval: Interval, scale: float = 100.0, sign: bool = False) -> str:
    """`[45.1, 59.0]`, empty where there is no interval."""
    if interval.low is None or interval.high is None:
        return ""
    form = "{:+.1f}" if sign else "{:.1f}"
    return f"[{form.format(scale * interval.low)}, {form.format(scale * interval.high)}]".replace("-", "−")


def interval(mean: Interval) -> str:
    """A mean with its interval: `52.3 [45.1, 59.0]`."""
    return f"{percent(mean)} {bounds(mean)}".strip()


def change(interval: Interval) -> str:
    """A relative change in percent as `−12.3 %`; a dash where it is undefined."""
    if interval.point is None:
        return UNDEFINED
    return f"{interval.point:+.1f} %".replace("-", "−")


def undefined(interval: Interval) -> str:
    """`12 % of draws undefined`, empty where all are defined."""
    share = interval.undefined_share
    return f"{100 * share:.0f} % of draws undefined" if share > 0 else ""


def figure(value: float, sign: bool = False) -> str:
    """A figure of training with four digits: `0.1234`, `1,234`, `2.1e−06`; a dash for nan."""
    if math.isnan(value):
        return UNDEFINED
    plain = f"{value:+,.0f}" if sign else f"{value:,.0f}"
    short = f"{value:+.3g}" if sign else f"{value:.4g}"
    return (plain if abs(value) >= 1000 else short).replace("-", "−")


def states(counts: Mapping[str, int]) -> str:
    """`3 cut, 1 no answer`; empty where everything was scored."""
    return ", ".join(f"{counts[name]} {word}" for name, word in STATE_WORDS.items() if counts.get(name))


def cell_lines(cell: CellReport, is_baseline: bool) -> list[str]:
    """One cell of the table: mean with interval, change, count, states."""
    result = cell.result
    name = f"pass@{cell.info.k} " if cell.info.k > 1 else ""
    lines = [name + interval(result.mean)]
    if cell.first is not None:
        lines.append(f"pass@1 {interval(cell.first)}")
    if not is_baseline:
        lines.append(f"Δ {change(result.change)} {bounds(result.change, 1.0, sign=True)}".strip())
        if result.change.point is not None and undefined(result.change):
            lines.append(undefined(result.change))
    lines.append(counted(cell))
    return lines


def counted(cell: CellReport) -> str:
    """`n 400`, `n 398 of 400, 2 unscored`."""
    n, total = cell.result.n, cell.result.total
    return ", ".join(filter(None, [f"n {n}" if n == total else f"n {n} of {total}", states(cell.states)]))


def overall_lines(result: SettingResult, kind: str, is_baseline: bool) -> list[str]:
    """A row over datasets; `kind` is `harmonic` or `arithmetic`."""
    mean: Interval = getattr(result, kind)
    relative: Interval = getattr(result, f"{kind}_change")
    lines = [interval(mean)]
    if not is_baseline:
        lines.append(f"Δ {change(relative)} {bounds(relative, 1.0, sign=True)}".strip())
        lines += [undefined(relative)] if undefined(relative) else []
    return lines


def over_which(report: RunReport) -> str:
    """Names the datasets that the overall rows are made of, and where settings differ in them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for setting, result in report.summary.settings.items():
        names = tuple(report.short(d) for d in report.results.datasets if d in result.datasets)
        groups.setdefault(names, []).append(setting)
    if len(groups) == 1:
        return f"over {', '.join(next(iter(groups)))}"
    said = "; ".join(
        f"{', '.join(settings)}: over {', '.join(names) or 'nothing'}" for names, settings in groups.items()
    )
    return f"{said}. Δ is over what both settings have"


def notes(report: RunReport) -> list[str]:
    """What stands below the table: what the means are made of, what is absent and why, what else one must know."""
    return [f"Harmonic and arithmetic mean {over_which(report)}", *_absent(report), *report.notes]


def _absent(report: RunReport) -> list[str]:
    """One line per reason: `absent: HN of SealQA, AIME25: no hard negatives ...`."""
    cells: dict[tuple[str, str], list[str]] = {}
    for (dataset, setting), reason in report.absent_cells.items():
        whole = dataset in report.results.absent
        name = dataset if whole else report.short(dataset)
        names = cells.setdefault(("" if whole else f"{setting} of ", reason), [])
        names += [] if name in names else [name]
    return [f"{ABSENT}: {setting}{', '.join(names)}: {reason}" for (setting, reason), names in cells.items()]


def facts(report: RunReport) -> list[str]:
    """Model, samples, tokens and cost of a run."""
    about = report.results.manifest.about
    line = [f"model {about['engine']}", f"{len(report.results.samples)} samples", f"{report.tokens:,} tokens generated"]
    if report.cost is not None:
        line.append(f"{report.cost:.2f} $")
    return line
