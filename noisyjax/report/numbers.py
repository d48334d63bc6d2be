"""The report as JSON, for those who plot it themselves."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from noisyjax.report.attending import before_and_after
from noisyjax.report.data import CellReport, RunReport, block_seeds, compare
from noisyjax.report.kinds import kinds
from noisyjax.report.reading import read
from noisyjax.report.training.run import TrainingRun
from noisyjax.store import write_text
from noisyjax.train.watch.log import finite


def write_json(urls: Sequence[str], out: Path, *, draws: int = 2000) -> Path:
    """Write the numbers of the runs and return the path. Means and intervals are in [0, 1], changes in percent."""
    found = read(urls, draws)
    numbers = to_json(found.reports, draws, found.training)
    return write_text(out, json.dumps(numbers, indent=2, allow_nan=False) + "\n")


def to_json(reports: Sequence[RunReport], draws: int = 2000, training: Sequence[TrainingRun] = ()) -> dict[str, Any]:
    """Plain data; null is undefined. The comparison is of the runs and of the last evaluation of each training run."""
    reports = [*reports, *(run.last for run in training if run.last is not None)]
    comparison = compare(reports, draws)
    return {
        "runs": [_run(report) for report in reports],
        "training": [_training(run) for run in training],
        "block_seeds": [
            {
                "runs": group.labels,
                "seeds": group.seeds,
                "cells": [
                    {"dataset": d, "setting": s, "mean": mean, "low": low, "high": high}
                    for (d, s), (mean, low, high) in group.cells.items()
                ],
            }
            for group in block_seeds(reports)
        ],
        "comparison": None
        if comparison is None
        else {
            "base": comparison.base,
            "cells": [
                {"setting": s, "dataset": d, "run": r, "change": asdict(change)}
                for (s, d, r), change in comparison.cells.items()
            ],
            "overall": [
                {"setting": s, "run": r, "change": asdict(change)} for (s, r), change in comparison.overall.items()
            ],
        },
    }


def _run(report: RunReport) -> dict[str, Any]:
    manifest = report.results.manifest
    return {
        "label": report.label,
        "model": dict(manifest.model),
        "config": dict(manifest.config),
        "config_hash": manifest.config_hash,
        "tasks": dict(manifest.tasks),
        "noisyjax": manifest.noisyjax,
        "bootstrap": {"draws": report.summary.draws, "level": report.summary.level, "seed": report.summary.seed},
        "baseline": report.summary.baseline,
        "cells": [_cell(cell) for cell in report.cells.values()],
        "absent": [{"dataset": d, "setting": s, "reason": reason} for (d, s), reason in report.absent_cells.items()],
        "types": _types(report),
        "overall": {setting: asdict(result) for setting, result in report.summary.settings.items()},
        "lengths": {setting: [asdict(b) for b in bins] for setting, bins in report.lengths.items()},
        "tokens": report.tokens,
        "cost_usd": report.cost,
        "notes": list(report.notes),
    }


def _training(run: TrainingRun) -> dict[str, Any]:
    """Columns of metrics beside `steps`; of each evaluation the means, all else of the last one stands in `runs`."""
    return {
        "label": run.label,
        "kind": run.kind,
        "config": dict(run.config),
        "steps": run.steps_k.tolist(),
        "metrics": {name: [finite(value) for value in values_k] for name, values_k in run.values.items()},
        "accuracy": {
            setting: [{"step": step, **asdict(mean)} for step, mean in run.accuracy(setting)]
            for setting in run.settings
        },
        "before_after": [
            {
                "label": report.label,
                "overall": {setting: asdict(result) for setting, result in report.summary.settings.items()},
                "cells": [_cell(cell) for cell in report.cells.values()],
                "attention": {setting: asdict(found) for setting, found in attention.items()},
                "types": _types(report),
            }
            for _, attentions in before_and_after([run])
            for report, attention in zip(run.ends, attentions, strict=True)
        ],
        "notes": list(run.notes),
    }


def _types(report: RunReport) -> list[dict[str, Any]]:
    return [
        {"dataset": dataset, "type": name, "setting": setting, **asdict(result)}
        for found in kinds(report)
        for name, summary in found.summaries.items()
        for (dataset, setting), result in summary.cells.items()
    ]


def _cell(cell: CellReport) -> dict[str, Any]:
    return {
        "dataset": cell.info.dataset,
        "setting": cell.info.setting,
        "samples_per_question": cell.info.n,
        "metric": f"pass@{cell.info.k}" if cell.info.k > 1 else "mean",
        **asdict(cell.result),
        "pass_at_1": None if cell.first is None else asdict(cell.first),
        "states": dict(cell.states),
        "values": dict(cell.values),
        "prompt_tokens": cell.prompt_tokens,
        "completion_tokens": cell.completion_tokens,
        "bbq": None if cell.bbq is None else asdict(cell.bbq),
    }
