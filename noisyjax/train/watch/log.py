"""What a training run leaves behind to look at: metrics and sampled completions as JSON lines, TensorBoard, wandb.

A number that does not exist (no judge was asked, every group was constant) is null, never zero. When a run goes on from
a checkpoint, the lines of the steps after it are taken out first, so that every step stands there once.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from noisyjax.config import Schema
from noisyjax.errors import UsageError
from noisyjax.store import open_folder

_FREE: dict[str, Any] = {"affects_results": False}

METRICS, SAMPLES = "metrics", "samples"
"""Names of the two logs in a run's folder (metrics.jsonl, samples.jsonl)."""

EVALUATED = "eval/"
"""Names of figures from an evaluation in between begin with this."""


class LogConfig(Schema):
    """Where metrics go besides the terminal and metrics.jsonl."""

    samples_every: int = Field(default=10, ge=0, json_schema_extra=_FREE)
    """Steps between two tables of sampled completions with references and verdicts; 0: none."""
    samples: int = Field(default=4, ge=1, json_schema_extra=_FREE)
    """Completions in such a table, from the step's first prompts."""
    tensorboard: bool = Field(default=True, json_schema_extra=_FREE)
    """Event files in the folder `tensorboard` of the run."""
    wandb: str | None = Field(default=None, json_schema_extra=_FREE)
    """Weights & Biases project; needs the package wandb."""


class MetricLog:
    """Writes one line of numbers per step, and samples now and then. Use as a context manager."""

    def __init__(self, out: str | Path, config: LogConfig, done: int | None, about: Mapping[str, Any]) -> None:
        """`done`: the step the run goes on from, lines of later steps are dropped; None: it begins anew, all are.

        `about`: the config, for wandb.
        """
        folder = open_folder(out)
        self._logs = {name: folder.log(name) for name in (METRICS, SAMPLES)}
        kept = {name: _keep_until(log, -1 if done is None else done) for name, log in self._logs.items()}
        self.evaluated = {line["step"] for line in kept[METRICS] if any(name.startswith(EVALUATED) for name in line)}
        """Steps whose line holds an evaluation, of those the run goes on from."""
        self._board = _tensorboard(out, 0 if done is None else done + 1) if config.tensorboard else None
        self._wandb = _wandb(config.wandb, str(out), about) if config.wandb else None

    def write(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """One line, durable when this returns. NaN and infinity are written as null: JSON has neither."""
        clean = {name: finite(value) for name, value in metrics.items()}
        self._put(METRICS, {"step": step, **clean})
        self._show(step, clean)

    def amend(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """More figures for the line of the last step, or its first ones."""
        clean = {name: finite(value) for name, value in metrics.items()}
        *before, last = [json.loads(line) for line in self._logs[METRICS].lines()] or [{"step": None}]
        if last["step"] != step:
            self.write(step, metrics)
            return
        self._logs[METRICS].replace([_line(record) for record in (*before, last | clean)])
        self._show(step, clean)

    def _show(self, step: int, clean: Mapping[str, float | None]) -> None:
        known = {name: value for name, value in clean.items() if value is not None}
        if self._board is not None:
            for name, value in known.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(known, step=step)

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Sampled completions of a step."""
        for row in rows:
            self._put(SAMPLES, {"step": step, **row})

    def _put(self, name: str, record: Mapping[str, Any]) -> None:
        self._logs[name].put(_line(record))
        self._logs[name].flush()

    def __enter__(self) -> "MetricLog":
        return self

    def __exit__(self, *_: object) -> None:
        for log in self._logs.values():
            log.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def finite(value: float | None) -> float | None:
    """A plain float, or None for what is no number."""
    return None if value is None or not math.isfinite(value) else float(value)


def read_metrics(out: str | Path) -> list[dict[str, Any]]:
    """Every step's line, in order."""
    return [json.loads(line) for line in open_folder(out).log(METRICS).lines()]


def read_samples(out: str | Path) -> list[dict[str, Any]]:
    """The sampled completions, in order."""
    return [json.loads(line) for line in open_folder(out).log(SAMPLES).lines()]


def _line(record: Mapping[str, Any]) -> bytes:
    # Half a character (a lone surrogate in somebody's data) must not end a run.
    return json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def _keep_until(log: Any, done: int) -> list[dict[str, Any]]:
    """Take the lines of later steps out; those that are left."""
    records = [json.loads(line) for line in log.lines()]
    kept = [record for record in records if record["step"] <= done]
    if len(kept) < len(records):
        log.replace([_line(record) for record in kept])
    return kept


def _tensorboard(out: str | Path, first: int) -> Any:
    """A writer that goes on with step `first`; what the board has of it and later steps is taken back."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise UsageError("log.tensorboard needs tensorboardX: pip install 'noisyjax[train]'") from None
    return SummaryWriter(f"{out}/tensorboard", purge_step=first)


def _wandb(project: str, out: str, about: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError:
        raise UsageError("log.wandb needs the package wandb: pip install wandb") from None
    return wandb.init(project=project, id=out.strip("/").replace("/", "-"), resume="allow", config=dict(about))
