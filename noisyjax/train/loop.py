"""The loop that SFT and GRPO share: steps, checkpoints, metrics, interruptions, bad steps, evaluation in between.

What a step does is the task's business; that a run can be killed anywhere and goes on exactly, is this file's. After
step n everything the next step depends on is (arrays, task cursor, n); it is all in the checkpoint.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from noisyjax import hosts
from noisyjax.config import RESOLVED_NAME, config_hash, identity, to_yaml
from noisyjax.errors import RunError, UsageError
from noisyjax.hosts import HostsConfig
from noisyjax.interrupts import Interrupts, Stopped
from noisyjax.store import Folder, Lock, open_folder
from noisyjax.store.lock import LOCK_NAME
from noisyjax.train.config import LoopConfig
from noisyjax.train.state import FOLDER as CHECKPOINTS
from noisyjax.train.state import Checkpoints
from noisyjax.train.watch.log import EVALUATED, MetricLog, finite
from noisyjax.train.watch.progress import TrainProgress

log = logging.getLogger(__name__)

KIND_NAME = "training.json"
"""Marks a folder as a training run's, and says when that has come to its end."""


@dataclass(frozen=True)
class Step:
    """What a step gave: the new arrays, its figures, and completions to look at.

    `ok` False: the loss or its gradient was no number, and the arrays are what they were. A step that found nothing to
    learn from is ok.
    """

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

    def gather(self, tree: Any, number: int, progress: TrainProgress) -> Any:
        """What step `number`, counted from 1, learns from. Raises DataEnd when there is no data left.

        May be cut anywhere by an exception: the step is then taken anew, from the same arrays and cursor.
        """
        ...

    def learn(self, tree: Any, gathered: Any, number: int, want_samples: bool, progress: TrainProgress) -> Step:
        """The rest of the step. `tree` may be donated."""
        ...


Evaluate = Callable[[Any, int], Mapping[str, float | None]]
"""(arrays, step) -> figures, written beside the metrics under `eval/`. May be cut anywhere and called again."""


@dataclass(frozen=True)
class Done:
    """What a run came to: its last step, its arrays, and how many steps were skipped in this session."""

    step: int
    tree: Any
    """None where the run had come to its end before: its arrays stay on disk."""
    skipped: int = 0
    evaluations: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)


def finished(config: LoopConfig, kind: str) -> Done | None:
    """The end of a run that this same config has brought there before, found without its model; else None.

    None as well where anything differs: `run` knows what is left to do then, or what is wrong.
    """
    step = hosts.gather(lambda: _finished(config, kind))[0]
    return None if step is None else Done(step, None)


def _finished(config: LoopConfig, kind: str) -> int | None:
    folder = open_folder(config.out)
    mark = _marked(folder) or {}
    if (mark.get("kind"), mark.get("asked")) != (kind, _asked(config)) or config.state.restore != "latest":
        return None
    step = mark.get("finished")
    return step if isinstance(step, int) and str(step) in folder.child(CHECKPOINTS).children() else None


def _asked(config: LoopConfig) -> str:
    """Hash of all that a config says, but for its hosts, which a new start may find at other addresses."""
    return hashlib.sha256(to_yaml(config.model_copy(update={"hosts": HostsConfig()})).encode()).hexdigest()


def run(config: LoopConfig, task: Task, evaluate: Evaluate | None = None) -> Done:
    """Train to the end, going on from the folder's checkpoint if there is one.

    Raises UsageError for a folder that is another run's, RunError when the run cannot go on, Stopped on Ctrl-C and
    SIGTERM after a last checkpoint; the same call then goes on where it stopped.
    """
    if config.evaluate.every and evaluate is None:
        raise UsageError("evaluate.every is set, but this run has nothing to evaluate with")
    with ExitStack() as stack:
        lock = hosts.first_only(lambda: _open(config, task.kind))
        hosts.agree(lambda: _check_seen(config))
        if lock is not None:
            stack.callback(lock.release)
        who = {"kind": task.kind, **identity(config), **task.identity()}
        checkpoints = Checkpoints(config.out, config.state, who)
        stack.callback(checkpoints.close)
        tree = task.start()
        restored = checkpoints.restore(tree)
        hosts.first_only(lambda: _write_down(config, task.kind))
        done = None
        if restored is not None:
            tree, done = restored.tree, restored.step
            task.resume(restored.about["cursor"])
        metric_log = None
        if hosts.first():
            metric_log = stack.enter_context(MetricLog(config.out, config.log, done, identity(config)))
        progress = stack.enter_context(TrainProgress(config.name, config.steps, done or 0))
        if done is not None:
            progress.say(f"going on after step {done}" + (" (nothing left to do)" if done >= config.steps else ""))
        end = _Run(config, task, evaluate, lock, checkpoints, metric_log, progress).go(tree, done or 0)
        hosts.first_only(lambda: _mark(config, task.kind, finished=end.step, asked=_asked(config)))
        return end


def _open(config: LoopConfig, kind: str) -> Lock:
    """The folder's lock, once it is known to be this kind of run's (or empty)."""
    folder = open_folder(config.out)
    marked = _marked(folder)
    if marked is None and not {*folder.names()} <= {LOCK_NAME}:  # a lock alone: killed in its very first moment
        raise UsageError(f"{config.out} is not empty and no training run: choose another `out`")
    if marked is not None and marked["kind"] != kind:
        raise UsageError(f"{config.out} is a run of `train {marked['kind']}`: choose another `out`")
    lock = Lock(folder, log.warning)
    if marked is None:
        _mark(config, kind)
    return lock


def _write_down(config: LoopConfig, kind: str) -> None:
    """What runs from now on. Not before the checkpoint has been found to be this config's: one that is refused must
    leave the words by which the run is exported and reported."""
    _mark(config, kind)
    open_folder(config.out).write(RESOLVED_NAME, to_yaml(config).encode())


def _marked(folder: Folder) -> dict[str, Any] | None:
    """What KIND_NAME says, `kind` for certain; None where there is none. UsageError where it cannot be read."""
    raw = folder.read(KIND_NAME)
    if raw is None:
        return None
    with suppress(ValueError):
        mark = json.loads(raw)
        if isinstance(mark, dict) and isinstance(mark.get("kind"), str):
            return mark
    raise UsageError(f'{folder.url}: {KIND_NAME} cannot be read; it should say {{"kind": "grpo"}} or "sft"')


def _mark(config: LoopConfig, kind: str, **more: int | str) -> None:
    text = json.dumps({"kind": kind, "config": config_hash(config), **more})
    open_folder(config.out).write(KIND_NAME, text.encode() + b"\n")


def _check_seen(config: LoopConfig) -> None:
    """UsageError where a host has not the folder that the first one has just marked."""
    if open_folder(config.out).read(KIND_NAME) is None:
        raise UsageError(
            f"out={config.out} is a folder of host 0's alone: with several hosts it lies in a bucket, or in a file "
            "system that all of them share"
        )


class _Run:
    """A run in progress. `tree`, `done` and `cursor` belong together at all times, so that it can stop anywhere.

    On several hosts all are at the same point at all times. The first has the lock and the log, the others None.
    """

    def __init__(
        self,
        config: LoopConfig,
        task: Task,
        evaluate: Evaluate | None,
        lock: Lock | None,
        checkpoints: Checkpoints,
        metric_log: MetricLog | None,
        progress: TrainProgress,
    ) -> None:
        self.config, self.task, self.evaluate, self.lock = config, task, evaluate, lock
        self.checkpoints, self.log, self.progress = checkpoints, metric_log, progress
        self.cursor = dict(task.cursor())
        """Behind step `done`; the task's own runs ahead while a step gathers."""
        self.skipped, self.bad = 0, 0
        self.evaluations: dict[int, Mapping[str, float | None]] = {}

    def go(self, tree: Any, done: int) -> Done:
        self.tree, self.done = tree, done
        with Interrupts() as interrupts:
            try:
                self._catch_up(interrupts)
                while self.done < self.config.steps:
                    self._step(interrupts)
            except DataEnd:
                self.progress.say(f"the data ended after step {self.done}; data.epochs=null would go on")
            except Stopped as stop:
                raise Stopped(stop.exit_code - 128, self._halt()) from None
        self._save({})
        self.checkpoints.wait()
        return Done(self.done, self.tree, self.skipped, self.evaluations)

    def _step(self, interrupts: Interrupts) -> None:
        number, every, begin = self.done + 1, self.config.log.samples_every, time.perf_counter()
        gathered = self._together(interrupts, lambda: self._gather(number))
        if gathered is None:
            raise DataEnd
        tree, self.tree = self.tree, None
        want_samples = bool(every) and (number % every == 0 or number == 1)
        step = self.task.learn(tree, gathered, number, want_samples, self.progress)
        self.tree, self.done, self.cursor = step.tree, number, dict(self.task.cursor())
        metrics = {**step.metrics, "skipped": float(not step.ok), "seconds": time.perf_counter() - begin}
        try:
            if self._evaluation_due():
                metrics |= self._evaluated(interrupts)
        finally:
            self._write(number, metrics, step.samples)
        self.progress.step(number, metrics)
        self._count_bad(step)
        # The checkpoints kept are of steps that were good: from a bad one a person may want to go further back.
        if step.ok and (number == self.config.steps or self._checkpoint_due(number)):
            self._save(metrics)

    def _gather(self, number: int) -> Any | None:
        """None where the data ends: that is no failure, which would cut other hosts' work on the same news."""
        try:
            return self.task.gather(self.tree, number, self.progress)
        except DataEnd:
            return None

    def _together[T](self, interrupts: Interrupts, work: Callable[[], T]) -> T:
        """`work`, which signals may cut: on all hosts or on none."""

        def cut() -> T:
            with interrupts.allowed():
                return work()

        return hosts.agree(cut)

    def _write(self, number: int, metrics: Mapping[str, float | None], samples: Sequence[Mapping[str, Any]]) -> None:
        if self.lock is not None and self.log is not None:
            self.lock.renew()
            self.log.write(number, metrics)
            self.log.samples(number, samples)

    def _checkpoint_due(self, number: int) -> bool:
        """By the first host's clock."""
        return hosts.gather(lambda: self.checkpoints.due(number))[0]

    def _save(self, metrics: Mapping[str, float | None]) -> None:
        """A checkpoint of the last step that is done, unless there is one."""
        if self.done and self.done not in self.checkpoints.steps:
            known = {name: figure for name, value in metrics.items() if (figure := finite(value)) is not None}
            self.checkpoints.save(self.done, self.tree, {"cursor": self.cursor}, known)

    def _count_bad(self, step: Step) -> None:
        self.bad = 0 if step.ok else self.bad + 1
        self.skipped += not step.ok
        if not step.ok:
            self.progress.say(f"step {self.done}: the loss or its gradient is no number; the step is skipped")
        if self.bad >= self.config.bad_steps:
            self.checkpoints.wait()
            steps = self.checkpoints.steps
            good = f"the last good checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint yet"
            raise RunError(
                f"{self.bad} steps in a row had a loss or gradient that is no number (the last was step {self.done}); "
                f"{good}, in {self.checkpoints.folder}. Try a lower learning rate"
            )

    def _catch_up(self, interrupts: Interrupts) -> None:
        """The evaluation of the step that the run begins at, where it is due and was not finished."""
        if not self._evaluation_due() or not hosts.gather(self._not_evaluated)[0]:
            return
        figures = self._evaluated(interrupts)
        if self.log is not None:
            self.log.amend(self.done, figures)

    def _not_evaluated(self) -> bool:
        return self.log is not None and self.done not in self.log.evaluated

    def _evaluation_due(self) -> bool:
        every = self.config.evaluate.every
        return bool(every) and (self.done % every == 0 or self.done == self.config.steps)

    def _evaluated(self, interrupts: Interrupts) -> dict[str, float | None]:
        evaluate, tree = self.evaluate, self.tree
        assert evaluate is not None
        with self.progress.stage("evaluation"):
            figures = self._together(interrupts, lambda: evaluate(tree, self.done))
        self.evaluations[self.done] = figures
        return {f"{EVALUATED}{name}": value for name, value in figures.items()}

    def _halt(self) -> str:
        """Store what is done; how to go on."""
        if self.tree is None:
            steps = self.checkpoints.steps
            held = f"the last checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint yet"
            where = f"stopped in the middle of step {self.done + 1} of {self.config.steps}; {held}"
        elif not self.done:
            where = f"stopped before the first of {self.config.steps} steps was done; nothing is lost"
        else:
            self._save({})
            where = f"stopped after step {self.done} of {self.config.steps}; it is stored in {self.config.out}"
        self.checkpoints.wait()
        return f"{where}. Run the same command again and it goes on from there."
