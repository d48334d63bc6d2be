"""The loop that SFT and GRPO share: steps, checkpoints, metrics, interruptions, bad steps, evaluation in between.

What a step does is the task's business; that a run can be killed anywhere and goes on exactly, is this file's. After
step n everything the next step depends on is (arrays, task cursor, n); it is all in the checkpoint.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field

from noisyjax.config import RESOLVED_NAME, Schema, config_hash, identity, to_yaml
from noisyjax.errors import RunError, UsageError
from noisyjax.interrupts import Interrupts, Stopped
from noisyjax.store import Lock, open_folder
from noisyjax.train.log import LogConfig, MetricLog, finite
from noisyjax.train.progress import TrainProgress
from noisyjax.train.state import Checkpoints, StateConfig

log = logging.getLogger(__name__)

KIND_NAME = "training.json"
"""Marks a folder as a training run's."""

_FREE: dict[str, Any] = {"affects_results": False}


class EvaluateConfig(Schema):
    """Evaluation in between, on the present weights."""

    every: int = Field(default=0, ge=0, json_schema_extra=_FREE)
    """Steps between two evaluations; one more before the first step and one after the last. 0: none."""
    config: str = Field(default="sweeps/quickstart", json_schema_extra=_FREE)
    """Config of `noisyjax eval`; its model and folder are this run's."""
    overrides: tuple[str, ...] = Field(default=(), json_schema_extra=_FREE)
    """`key=value` words for it."""


class LoopConfig(Schema):
    """What every kind of training run has."""

    name: str = Field(default="train", json_schema_extra=_FREE)
    """Shown in progress and reports."""
    out: str = Field(json_schema_extra=_FREE)
    """Folder of the run: checkpoints, metrics, samples, the resolved config."""
    seed: int = 0
    """Seeds the data order, the sampling and whatever else is drawn."""
    steps: int = Field(ge=1, json_schema_extra=_FREE)
    """Length of the run. May be raised to go on with a finished one, where the learning rate's schedule allows it."""
    bad_steps: int = Field(default=3, ge=1, json_schema_extra=_FREE)
    """Steps in a row with a loss or gradient that is no number before the run stops; each is skipped and counted."""
    evaluate: EvaluateConfig = EvaluateConfig()
    state: StateConfig = StateConfig()
    log: LogConfig = LogConfig()


@dataclass(frozen=True)
class Step:
    """What a step gave: the new arrays, its figures, and completions to look at. `ok` False: nothing was learned."""

    tree: Any
    metrics: Mapping[str, float | None]
    ok: bool = True
    samples: Sequence[Mapping[str, Any]] = ()


class DataEnd(Exception):
    """The data's last epoch is over."""


class Task(Protocol):
    """A kind of training."""

    kind: str

    def identity(self) -> Mapping[str, Any]:
        """What the config does not say and a continued run must share, such as the model's content."""
        ...

    def start(self) -> Any:
        """The arrays at step 0; also the layout into which a checkpoint is read."""
        ...

    def cursor(self) -> Mapping[str, Any]:
        """JSON from which `resume` goes on."""
        ...

    def resume(self, cursor: Mapping[str, Any]) -> None: ...

    def step(self, tree: Any, number: int, want_samples: bool, progress: TrainProgress) -> Step:
        """Step `number`, counted from 1. `tree` may be donated. Raises DataEnd, `tree` untouched, without data."""
        ...


Evaluate = Callable[[Any, int], Mapping[str, float | None]]
"""(arrays, step) -> figures, written beside the metrics under `eval/`."""


@dataclass(frozen=True)
class Done:
    """What a run came to: its last step, its arrays, and how many steps were skipped in this session."""

    step: int
    tree: Any
    skipped: int = 0
    evaluations: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)


def run(config: LoopConfig, task: Task, evaluate: Evaluate | None = None) -> Done:
    """Train to the end, going on from the folder's checkpoint if there is one.

    Raises UsageError for a folder that is another run's, RunError when the run cannot go on, Stopped on Ctrl-C and
    SIGTERM after a last checkpoint; the same call then goes on where it stopped.
    """
    with ExitStack() as stack:
        stack.callback(_open(config, task.kind).release)
        who = {"kind": task.kind, **identity(config), **task.identity()}
        checkpoints = Checkpoints(config.out, config.state, who)
        stack.callback(checkpoints.close)
        tree = task.start()
        restored = checkpoints.restore(tree)
        done = 0
        if restored is not None:
            tree, done = restored.tree, restored.step
            task.resume(restored.about["cursor"])
        metric_log = stack.enter_context(MetricLog(config.out, config.log, done, identity(config)))
        progress = stack.enter_context(TrainProgress(config.name, config.steps, done))
        if restored is not None:
            progress.say(f"going on after step {done}" + (" (nothing left to do)" if done >= config.steps else ""))
        return _Run(config, task, evaluate, checkpoints, metric_log, progress).go(tree, done)


def _open(config: LoopConfig, kind: str) -> Lock:
    """The folder's lock, once it is known to be this kind of run's (or empty)."""
    folder = open_folder(config.out)
    local = Path(config.out)
    marked = folder.read(KIND_NAME)
    if marked is None and "://" not in config.out and local.is_dir() and any(local.iterdir()):
        raise UsageError(f"{config.out} is not empty and no training run: choose another `out`")
    if marked is not None and json.loads(marked)["kind"] != kind:
        raise UsageError(f"{config.out} is a run of `train {json.loads(marked)['kind']}`: choose another `out`")
    lock = Lock(folder, log.warning)
    folder.write(KIND_NAME, json.dumps({"kind": kind, "config": config_hash(config)}).encode() + b"\n")
    folder.write(RESOLVED_NAME, to_yaml(config).encode())
    return lock


class _Run:
    def __init__(
        self,
        config: LoopConfig,
        task: Task,
        evaluate: Evaluate | None,
        checkpoints: Checkpoints,
        metric_log: MetricLog,
        progress: TrainProgress,
    ) -> None:
        self.config, self.task, self.evaluate = config, task, evaluate
        self.checkpoints, self.log, self.progress = checkpoints, metric_log, progress
        self.skipped, self.bad = 0, 0
        self.evaluations: dict[int, Mapping[str, float | None]] = {}

    def go(self, tree: Any, done: int) -> Done:
        with Interrupts() as interrupts:
            if done == 0 and self.config.evaluate.every:
                self.log.write(0, self._evaluated(tree, 0))
            for number in range(done + 1, self.config.steps + 1):
                try:
                    tree = self._step(tree, number)
                except DataEnd:
                    self.progress.say(f"the data ended after step {done}; data.epochs=null would go on")
                    if done and done not in self.checkpoints.steps and not self.bad:
                        self._save(tree, done, {})
                    break
                done = number
                self._stop_if_told(interrupts, tree, number)
        self.checkpoints.wait()
        return Done(done, tree, self.skipped, self.evaluations)

    def _step(self, tree: Any, number: int) -> Any:
        every, last = self.config.log.samples_every, number == self.config.steps
        begin = time.perf_counter()
        step = self.task.step(tree, number, bool(every) and (number % every == 0 or number == 1), self.progress)
        metrics = dict(step.metrics) | {"skipped": float(not step.ok), "seconds": time.perf_counter() - begin}
        self._count_bad(step, number)
        if self.config.evaluate.every and (last or number % self.config.evaluate.every == 0):
            metrics |= self._evaluated(step.tree, number)
        self.log.write(number, metrics)
        self.log.samples(number, step.samples)
        self.progress.step(number, metrics)
        # A step whose numbers are broken is never a checkpoint's: the last good one stays the latest.
        if step.ok and (last or self.checkpoints.due(number)):
            self._save(step.tree, number, metrics)
        return step.tree

    def _save(self, tree: Any, number: int, metrics: Mapping[str, float | None]) -> None:
        known = {name: figure for name, value in metrics.items() if (figure := finite(value)) is not None}
        self.checkpoints.save(number, tree, {"cursor": dict(self.task.cursor())}, known)

    def _count_bad(self, step: Step, number: int) -> None:
        self.bad = 0 if step.ok else self.bad + 1
        self.skipped += not step.ok
        if not step.ok:
            self.progress.say(f"step {number}: the loss or its gradient is no number; the step is skipped")
        if self.bad >= self.config.bad_steps:
            self.checkpoints.wait()
            steps = self.checkpoints.steps
            good = f"the last good checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint yet"
            raise RunError(
                f"{self.bad} steps in a row had a loss or gradient that is no number (the last was step {number}); "
                f"{good}, in {self.checkpoints.folder}. Try a lower learning rate"
            )

    def _evaluated(self, tree: Any, number: int) -> dict[str, float | None]:
        if self.evaluate is None:
            raise UsageError("evaluate.every is set, but this run has nothing to evaluate with")
        with self.progress.stage("evaluation"):
            figures = self.evaluate(tree, number)
        self.evaluations[number] = figures
        return {f"eval/{name}": value for name, value in figures.items()}

    def _stop_if_told(self, interrupts: Interrupts, tree: Any, number: int) -> None:
        try:
            interrupts.check()
        except Stopped as stop:
            if number not in self.checkpoints.steps and not self.bad:
                self._save(tree, number, {})
            self.checkpoints.wait()
            words = (
                f"stopped after step {number} of {self.config.steps}; it is stored in {self.config.out}. "
                "Run the same command again and it goes on from there."
            )
            raise Stopped(stop.exit_code - 128, words) from None
