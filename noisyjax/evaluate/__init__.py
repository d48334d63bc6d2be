"""Runs benchmarks on models: one cell is a model, a dataset and a setting. Resumable."""

from noisyjax.evaluate.engines import OpenEngine, open_engine
from noisyjax.evaluate.interrupts import Stopped
from noisyjax.evaluate.rescore import rescore
from noisyjax.evaluate.results import CellInfo, RunResults, Sample, load_results
from noisyjax.evaluate.run import Outcome, evaluate
from noisyjax.evaluate.schema import EvalConfig, JudgeStage, KeepConfig, SamplingConfig

__all__ = [
    "CellInfo",
    "EvalConfig",
    "JudgeStage",
    "KeepConfig",
    "OpenEngine",
    "Outcome",
    "RunResults",
    "Sample",
    "SamplingConfig",
    "Stopped",
    "evaluate",
    "load_results",
    "open_engine",
    "rescore",
]
