"""Curves of training as inline SVG: a panel per figure with all runs in it. What is undefined is a gap, never a zero.

Legend: K steps of a run, J points drawn.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from noisyjax.report.attending import Attention, Looked
from noisyjax.report.data import RunReport
from noisyjax.report.figures import COLOURS, INK, new_figure, to_svg
from noisyjax.report.kinds import kinds
from noisyjax.report.training.panels import Panel
from noisyjax.report.training.run import TrainingRun
from noisyjax.visible import visible

SIZE = (2.85, 1.9)
"""Inches of a panel."""

MOST = 400
"""Points of a curve; the steps of a longer run are drawn as means over blocks."""

SMOOTH = 20
"""The heavy line is a mean over the last twentieth of the curve."""

DASHES = ((), (5, 2), (1.5, 1.5))
"""Told apart beyond the number of colours."""


def look(number: int) -> tuple[str, tuple[float, ...]]:
    """Colour and dashes of the run with this number, in every figure."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def curve(panel: Panel, runs: Sequence[TrainingRun]) -> str:
    """One figure over the steps."""
    figure, axes = new_figure(*SIZE)
    for number, run in enumerate(runs):
        if run.has(panel.metric):
            steps_j, values_j = blocks(run.steps_k, panel.scale * run.column(panel.metric))
            smooth_j = running_mean(values_j, math.ceil(len(values_j) / SMOOTH))
            _line(axes, steps_j, values_j, number, alpha=0.3, linewidth=0.8)
            _line(axes, steps_j, smooth_j, number, linewidth=1.6)
    _frame(axes, panel.unit, panel.title)
    return to_svg(figure, f"curve-{panel.metric}", f"{panel.title} over the steps of training")


def accuracy_curve(setting: str, runs: Sequence[TrainingRun]) -> str:
    """Accuracy on the evaluation questions in one setting, with intervals where the evaluations are stored."""
    figure, axes = new_figure(*SIZE)
    for number, run in enumerate(runs):
        points = run.accuracy(setting)
        if not points:
            continue
        colour, dashes = look(number)
        steps = [step for step, _ in points]
        means = [100 * (mean.point or 0.0) for _, mean in points]
        axes.plot(steps, means, "o-", color=colour, ms=3, lw=1.4, dashes=dashes)
        bounded = [(step, mean) for step, mean in points if mean.low is not None and mean.high is not None]
        low = [100 * (mean.low or 0.0) for _, mean in bounded]
        high = [100 * (mean.high or 0.0) for _, mean in bounded]
        axes.vlines([step for step, _ in bounded], low, high, color=colour, lw=0.9, alpha=0.6)
    _frame(axes, "", f"{setting}, accuracy in %")
    axes.set_ylim(0, 103)
    return to_svg(figure, f"accuracy-{setting}", f"Accuracy in the setting {setting} over the steps of training")


def attention_figure(label: str, looked: Sequence[Looked]) -> str:
    """Attention on one label before and after, by setting; empty where there is none."""
    pairs = [
        {s: [100 * end[s].shares[label] if _has(end, s, label) else math.nan for end in ends] for s in run.settings}
        for run, ends in looked
    ]
    return _dumbbells(pairs, f"Attention on the {label}, %", f"attention-{label}")


def _has(end: Mapping[str, Attention], setting: str, label: str) -> bool:
    return setting in end and label in end[setting].shares


def kind_figure(setting: str, runs: Sequence[TrainingRun]) -> str:
    """Accuracy in one setting before and after, by type of question; empty where questions have none."""
    pairs: list[Pairs] = []
    for run in runs:
        ends = [_by_kind(report, setting) for report in run.ends]
        names = dict.fromkeys(name for end in ends for name in end)
        pairs.append({name: [end.get(name, math.nan) for end in ends] for name in names})
    return _dumbbells(pairs, f"{setting}, accuracy in %", f"types-{setting}", top=103)


def _by_kind(report: RunReport, setting: str) -> dict[str, float]:
    """Type -> percent, the data set's name before it where several data sets have types."""
    found = kinds(report)
    return {
        name if len(found) == 1 else f"{report.short(one.dataset)} {name}": 100 * cell.mean.point
        for one in found
        for name, summary in one.summaries.items()
        if (cell := summary.cells.get((one.dataset, setting))) and cell.mean.point is not None
    }


Pairs = Mapping[str, Sequence[float]]
"""What a run has at each place of an axis before and after; nan where it has nothing."""


def _dumbbells(pairs: Sequence[Pairs], title: str, name: str, top: float | None = None) -> str:
    """Before hollow and after filled, the runs beside each other at every place. Empty where nothing is known."""
    places = list(dict.fromkeys(place for run in pairs for place, ends in run.items() if not np.isnan(ends).all()))
    if not places:
        return ""
    figure, axes = new_figure(max(SIZE[0], 0.8 + 0.13 * len(pairs) * len(places)), SIZE[1])
    for number, run in enumerate(pairs):
        for place, ends in run.items():
            if place in places:
                x = places.index(place) + 0.7 * ((number + 0.5) / len(pairs) - 0.5)
                _dumbbell(axes, x, ends, look(number)[0])
    axes.set_xticks(range(len(places)), [_short(place) for place in places])
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_ylim(0, top or 1.1 * np.nanmax([value for run in pairs for ends in run.values() for value in ends]) or 1)
    _heading(axes, title)
    return to_svg(figure, name, f"{title}, before and after")


def _dumbbell(axes: Any, x: float, ends: Sequence[float], colour: str) -> None:
    """The last is filled, the one before it hollow."""
    axes.plot([x] * len(ends), ends, "-", color=colour, lw=1.2)
    for value, fill in zip(reversed(ends), (colour, "none"), strict=False):
        axes.plot([x], [value], "o", color=colour, markerfacecolor=fill, ms=4.5)


def _line(axes: Any, steps_j: np.ndarray, values_j: np.ndarray, number: int, **style: Any) -> None:
    """A line that breaks at gaps; a point between two gaps, which would have no line, gets a dot."""
    colour, dashes = look(number)
    axes.plot(steps_j, values_j, color=colour, dashes=dashes, **style)
    gap_j = np.isnan(np.concatenate([[np.nan], values_j, [np.nan]]))
    alone_j = ~gap_j[1:-1] & gap_j[:-2] & gap_j[2:]
    axes.plot(steps_j[alone_j], values_j[alone_j], "o", color=colour, ms=2.5, alpha=style.get("alpha"))


def _frame(axes: Any, unit: str, title: str) -> None:
    _heading(axes, title)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.margins(x=0.02)
    axes.ticklabel_format(useOffset=False, axis="both")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _heading(axes: Any, title: str) -> None:
    axes.set_title(_short(title), fontsize=9, loc="left", color=INK)


def _short(text: str, most: int = 48) -> str:
    """Names of rewards and types come from configs and data: no control characters, and no more than fits."""
    return visible(text if len(text) <= most else f"{text[: most - 1]}…")


def blocks(steps_k: np.ndarray, values_k: np.ndarray, most: int = MOST) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` points: middles and means of equal blocks of steps. A block without a value stays a gap."""
    size = math.ceil(len(steps_k) / most) if len(steps_k) else 1
    if size == 1:
        return steps_k.astype(np.float64), values_k
    cuts = range(0, len(steps_k), size)
    return (
        np.array([steps_k[i : i + size].mean() for i in cuts]),
        np.array([_mean(values_k[i : i + size]) for i in cuts]),
    )


def running_mean(values_j: np.ndarray, window: int) -> np.ndarray:
    """The mean of what is defined among each `window` last values; nan where the value itself is."""
    means = [_mean(values_j[max(0, j + 1 - window) : j + 1]) for j in range(len(values_j))]
    return np.where(np.isnan(values_j), np.nan, means)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
