"""Training: SFT and GRPO with the outcome and rationale-aware rewards, their state, and the way back to files.

Names are imported when they are first used, so that a config is read and refused in a moment.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Done": "noisyjax.train.loop",
    "Evaluate": "noisyjax.train.loop",
    "GrpoConfig": "noisyjax.train.config",
    "Learner": "noisyjax.train.learner",
    "SftConfig": "noisyjax.train.config",
    "TrainConfig": "noisyjax.train.config",
    "train_grpo": "noisyjax.train.runs",
    "train_sft": "noisyjax.train.runs",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
