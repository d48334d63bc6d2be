"""From the folder of a training run to the numbers of a report: curves, evaluations on the way, sampled completions.

A figure that does not exist at a step (null in the log, or no word of it) is nan here: a gap, never a zero.

Legend: K steps.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from noisyjax.config import RESOLVED_NAME
from noisyjax.errors import RunError, UsageError
from noisyjax.evaluate.results import load_results
from noisyjax.report.data import RunReport, run_report
from noisyjax.scoring import Interval
from noisyjax.store.folder import Folder
from noisyjax.store.manifest import MANIFEST_NAME
from noisyjax.train.watch.log import METRICS, SAMPLES, finite

MARK = "training.json"
"""The file by which a training run is known; `noisyjax.train.loop` writes it."""

EVALUATIONS, STEP_PREFIX = "eval", "step-"
"""Evaluations on the way are runs of their own in `eval/step-NNNNNN`."""


@dataclass(frozen=True)
class TrainingRun:
    """One training run, finished or not. `steps_k` int [K], the steps taken; values float64 [K], nan is a gap."""

    label: str
    url: str
    kind: str
    config: Mapping[str, Any]
    steps_k: np.ndarray
    values: Mapping[str, np.ndarray]
    samples: tuple[Mapping[str, Any], ...]
    evaluations: Mapping[int, RunReport]
    """By step, in order. Step 0 is the start."""
    measured: Mapping[str, Mapping[int, float]]
    """Setting -> step -> accuracy as the log has it, also where the evaluation's folder is gone."""
    notes: tuple[str, ...]

    def column(self, name: str) -> np.ndarray:
        """float64 [K]; all nan for a figure that the run does not have."""
        return self.values.get(name, np.full(len(self.steps_k), np.nan))

    def has(self, name: str) -> bool:
        return bool(np.isfinite(self.column(name)).any())

    @property
    def settings(self) -> tuple[str, ...]:
        """Every setting that some evaluation has."""
        stored = (setting for report in self.evaluations.values() for setting in report.settings)
        return tuple(dict.fromkeys((*stored, *self.measured)))

    @property
    def ends(self) -> tuple[RunReport, ...]:
        """The first and the last evaluation: before and after. One or none where there are no two."""
        found = list(self.evaluations.values())
        return tuple(found if len(found) < 2 else (found[0], found[-1]))

    @property
    def last(self) -> RunReport | None:
        return self.ends[-1] if self.ends else None

    def accuracy(self, setting: str) -> list[tuple[int, Interval]]:
        """(step, mean over the datasets in [0, 1]) in order; without bounds where only the log has it."""
        found = {step: Interval(value) for step, value in self.measured.get(setting, {}).items()}
        for step, report in self.evaluations.items():
            if setting in report.summary.settings:
                found[step] = report.summary.settings[setting].arithmetic
        return sorted((step, mean) for step, mean in found.items() if mean.point is not None)


def training_run(folder: Folder, mark: bytes, config: Mapping[str, Any], label: str, draws: int) -> TrainingRun:
    """The run in `folder`, whose file `MARK` is `mark`. RunError for a log that cannot be read."""
    rows = _lines(folder, METRICS)
    for number, row in enumerate(rows, start=1):
        if any(not (value is None or isinstance(value, int | float)) for value in row.values()):
            raise _broken(folder, METRICS, number)
    taken = [row for row in rows if row["step"] >= 1]
    names = dict.fromkeys(name for row in taken for name in row if name != "step" and not name.startswith("eval/"))
    evaluations, lacking = _evaluations(folder, label, draws)
    measured: dict[str, dict[int, float]] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith("eval/") and (known := finite(value)) is not None:
                measured.setdefault(name.removeprefix("eval/"), {})[row["step"]] = known
    return TrainingRun(
        label=label,
        url=folder.url,
        kind=_kind(folder, mark),
        config=config,
        steps_k=np.array([row["step"] for row in taken], np.int64),
        values={name: np.array([_number(row.get(name)) for row in taken]) for name in names},
        samples=tuple(_lines(folder, SAMPLES)),
        evaluations=evaluations,
        measured=measured,
        notes=(*_notes(taken, config, evaluations), *lacking),
    )


def _number(value: float | None) -> float:
    known = finite(value)
    return math.nan if known is None else known


def read_config(folder: Folder) -> Mapping[str, Any]:
    """The config as it was run. UsageError where it cannot be read."""
    try:
        config = yaml.safe_load(folder.read(RESOLVED_NAME) or b"{}")
    except (yaml.YAMLError, UnicodeDecodeError):
        config = None
    if not isinstance(config, dict):
        raise UsageError(f"{folder.url}: {RESOLVED_NAME} cannot be read; restore it from a copy")
    return config


def _kind(folder: Folder, mark: bytes) -> str:
    try:
        return str(json.loads(mark)["kind"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(f'{folder.url}: {MARK} cannot be read; it should say {{"kind": "grpo"}} or "sft"') from None


def _lines(folder: Folder, name: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(folder.log(name).lines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise _broken(folder, name, number)
        rows.append(row)
    return rows


def _broken(folder: Folder, name: str, number: int) -> RunError:
    return RunError(f"{folder.url}: line {number} of the log '{name}' is broken; remove it to go on")


def _evaluations(folder: Folder, label: str, draws: int) -> tuple[dict[int, RunReport], list[str]]:
    """By step, in order; and a word on each folder that holds none yet."""
    inside = folder.child(EVALUATIONS)
    found: dict[int, RunReport] = {}
    lacking = []
    for name in inside.children():
        step = name.removeprefix(STEP_PREFIX)
        if not name.startswith(STEP_PREFIX) or not step.isdecimal():
            continue
        run = inside.child(name)
        if run.read(MANIFEST_NAME) is None:
            lacking.append(f"the evaluation of step {int(step)} was not begun: {run.url} has no {MANIFEST_NAME}")
            continue
        found[int(step)] = run_report(load_results(run.url), f"{label}, step {int(step)}", draws)
    return dict(sorted(found.items())), lacking


def _notes(
    taken: Sequence[Mapping[str, Any]], config: Mapping[str, Any], evaluations: Mapping[int, RunReport]
) -> list[str]:
    """What a reader must know beside the numbers."""
    notes = []
    planned, done = config.get("steps"), taken[-1]["step"] if taken else 0
    if isinstance(planned, int) and done < planned:
        notes.append(f"not finished: step {done} of {planned}")
    skipped = [row["step"] for row in taken if row.get("skipped")]
    if skipped:
        few = ", ".join(map(str, skipped[:5])) + (", …" if len(skipped) > 5 else "")
        notes.append(f"{len(skipped)} of {len(taken)} steps skipped, where loss or gradient was no number: {few}")
    if not evaluations:
        notes.append("no evaluation is stored with this run (evaluate.every)")
    for step, report in evaluations.items():
        if missing := sum(cell.states.get("missing", 0) for cell in report.cells.values()):
            notes.append(f"the evaluation of step {step} is not finished: {missing} samples are missing")
    return notes
