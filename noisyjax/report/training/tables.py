"""The tables of training runs, the same on a terminal, in Markdown and on the page."""

import math
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np

from noisyjax.records import LABELS
from noisyjax.report import words
from noisyjax.report.attending import Attention, Looked, before_and_after
from noisyjax.report.data import Comparison, RunReport, compare
from noisyjax.report.kinds import kind_tables
from noisyjax.report.training.panels import Ends, Panel, ends, groups_of, left_out_of
from noisyjax.report.training.run import TrainingRun
from noisyjax.scoring import Interval


def facts(run: TrainingRun) -> list[str]:
    """Kind, start, steps and time of a run."""
    line = [f"train {run.kind}"]
    if run.config.get("model"):
        line.append(f"start {PurePosixPath(str(run.config['model'])).name}")  # where it lay is in the config beside it
    done = int(run.steps_k[-1]) if len(run.steps_k) else 0
    line.append(f"{done} of {run.config.get('steps', '?')} steps")
    if run.has("seconds"):
        line.append(f"{np.nansum(run.column('seconds')):,.0f} s in steps")
    return line


def learning(runs: Sequence[TrainingRun]) -> words.Extra:
    """End and change of every figure that is drawn as a curve; a column per run."""
    rows = []
    for group in groups_of(runs):
        for panel in group.panels:
            unit = f", {panel.unit}" if panel.unit else ""
            rows.append([f"{panel.title}{unit}", *(_course(panel, run) for run in runs)])
    title = "Training: mean over the last tenth of the steps (change from the first tenth)"
    return title, ["", *(run.label for run in runs)], rows


def _course(panel: Panel, run: TrainingRun) -> str:
    if panel.metric not in run.values:
        return words.ABSENT
    found = ends(run.column(panel.metric))
    if math.isnan(found.mean):
        return "undefined in every step"
    change = panel.scale * (found.last - found.first)
    line = _figure(panel, found.last)
    line += "" if math.isnan(change) else f" ({words.figure(change, sign=True)})"
    return f"{line}\n{_undefined(found)}".rstrip()


def _figure(panel: Panel, value: float) -> str:
    return words.figure(panel.scale * value)


def _undefined(found: Ends) -> str:
    return f"{found.undefined} of {found.n} undefined" if found.undefined else ""


def left_out(runs: Sequence[TrainingRun]) -> words.Extra:
    """What was skipped, cut, undefined or not counted, and the records that the data lost."""
    rows = [[panel.title, *(_share(panel, run) for run in runs)] for panel in left_out_of(runs)]
    reasons = dict.fromkeys(name for run in runs for name in run.values if name.startswith("data/left/"))
    for name in reasons:
        reason = name.removeprefix("data/left/").replace("_", " ")
        rows.append([f"records left out: {reason}", *(_count(run, name) for run in runs)])
    return "Left out: shares over all steps, and counts of records", ["", *(run.label for run in runs)], rows


def _share(panel: Panel, run: TrainingRun) -> str:
    if panel.metric not in run.values:
        return words.ABSENT
    found = ends(run.column(panel.metric))
    if math.isnan(found.mean):
        return words.UNDEFINED
    if panel.metric == "skipped":
        return f"{round(found.mean * (found.n - found.undefined))} of {found.n}"
    return f"{_figure(panel, found.mean)} %"


def _count(run: TrainingRun, name: str) -> str:
    """The log adds up: the last number is the run's."""
    last = run.column(name)[-1] if name in run.values else math.nan
    return words.UNDEFINED if math.isnan(last) else f"{last:,.0f}"


# -- evaluations: before and after ---------------------------------------------------------------------------------


def evaluated(runs: Sequence[TrainingRun], draws: int) -> list[words.Extra]:
    """Everything about the evaluations: by setting and attention before and after, by type of question in the end."""
    lasts = [run.last for run in runs if run.last is not None]
    return [*accuracy(runs, draws), *kind_tables(lasts), *attending(before_and_after(runs))]


def accuracy(runs: Sequence[TrainingRun], draws: int) -> list[words.Extra]:
    """Accuracy by setting at the first and the last evaluation of each run; [] where no run has one."""
    runs = [run for run in runs if run.ends]
    if not runs:
        return []
    settings = _settings(runs)
    rows = [row for run in runs for row in _rows(run, settings, draws)]
    level = round(100 * runs[0].ends[0].summary.level)
    title = f"Accuracy before and after, %, with {level} % intervals; Δ: relative change, paired by question"
    return [(title, ["", "", *settings], rows)]


def _settings(runs: Sequence[TrainingRun]) -> list[str]:
    return list(dict.fromkeys(s for run in runs for report in run.ends for s in report.settings))


def _rows(run: TrainingRun, settings: Sequence[str], draws: int) -> list[list[str]]:
    paired = compare(run.ends, draws)
    rows = []
    for report in run.ends:
        datasets = report.results.datasets
        for dataset in datasets:
            cells = [_cell(report, dataset, setting, paired) for setting in settings]
            rows.append([report.label, report.short(dataset), *cells])
        if len(datasets) > 1:
            rows.append([report.label, "arithmetic mean", *(_mean(report, s, paired) for s in settings)])
    return rows


def _cell(report: RunReport, dataset: str, setting: str, paired: Comparison | None) -> str:
    cell = report.cells.get((dataset, setting))
    if cell is None:
        return words.ABSENT
    change = paired.cells.get((setting, dataset, report.label)) if paired else None
    return "\n".join(filter(None, [words.interval(cell.result.mean), _change(change), words.counted(cell)]))


def _mean(report: RunReport, setting: str, paired: Comparison | None) -> str:
    result = report.summary.settings.get(setting)
    if result is None:
        return words.ABSENT
    change = paired.overall.get((setting, report.label)) if paired else None
    return "\n".join(filter(None, [words.interval(result.arithmetic), _change(change)]))


def _change(change: Interval | None) -> str:
    """Nothing for the first of the two, which has nothing to be compared with."""
    return "" if change is None else f"Δ {words.change(change)} {words.bounds(change, 1.0, sign=True)}".strip()


# -- attention ---------------------------------------------------------------------------------------------------


def attending(looked: Sequence[Looked]) -> list[words.Extra]:
    """Where the answers looked, before and after; [] where no attention was stored."""
    rows_of = [
        (report.label, setting, attention)
        for run, both in looked
        for report, settings in zip(run.ends, both, strict=True)
        for setting, attention in settings.items()
    ]
    seen = {label for _, _, attention in rows_of for label in attention.shares}
    labels = [label.value for label in LABELS if label.value in seen]
    rows = [
        [name, setting, *(_looked(attention, label) for label in labels), str(attention.n)]
        for name, setting, attention in rows_of
    ]
    title = "Attention while answering: mean share per label, % (mean over tokens, layers, heads and samples)"
    return [(title, ["", "setting", *labels, "samples"], rows)] if rows else []


def _looked(attention: Attention, label: str) -> str:
    share = attention.shares.get(label)
    return words.UNDEFINED if share is None else f"{100 * share:.1f}"
