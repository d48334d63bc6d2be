"""Runs benchmarks on models: one cell is a model, a dataset and a setting. Resumable.

Names are imported when they are first used: a report on stored runs loads no model code.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "CellInfo": "noisyjax.evaluate.results",
    "EvalConfig": "noisyjax.evaluate.schema",
    "JudgeStage": "noisyjax.evaluate.schema",
    "KeepConfig": "noisyjax.evaluate.schema",
    "OpenEngine": "noisyjax.engine.opened",
    "Outcome": "noisyjax.evaluate.run",
    "RunResults": "noisyjax.evaluate.results",
    "Sample": "noisyjax.evaluate.results",
    "SamplingConfig": "noisyjax.evaluate.schema",
    "Stopped": "noisyjax.interrupts",
    "SweepConfig": "noisyjax.evaluate.sweep",
    "evaluate": "noisyjax.evaluate.run",
    "evaluate_all": "noisyjax.evaluate.sweep",
    "evaluator": "noisyjax.evaluate.during",
    "load_results": "noisyjax.evaluate.results",
    "load_runs": "noisyjax.evaluate.sweep",
    "open_engine": "noisyjax.engine.opened",
    "rescore": "noisyjax.evaluate.rescoring",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
