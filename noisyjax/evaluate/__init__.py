"""Runs benchmarks on models: one cell is a model, a dataset and a setting. Resumable.

Names are imported when they are first used: a report on stored runs loads no model code.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "CellInfo": "results",
    "EvalConfig": "schema",
    "JudgeStage": "schema",
    "KeepConfig": "schema",
    "OpenEngine": "engines",
    "Outcome": "run",
    "RunResults": "results",
    "Sample": "results",
    "SamplingConfig": "schema",
    "Stopped": "interrupts",
    "evaluate": "run",
    "load_results": "results",
    "open_engine": "engines",
    "rescore": "rescoring",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
