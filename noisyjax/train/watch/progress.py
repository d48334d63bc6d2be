"""What a person sees while a model trains: a live line on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from noisyjax.visible import duration

PLAIN_SECONDS = 15.0
"""Between two plain lines."""

SHOWN = (
    ("loss", "loss {:.4f}"),
    ("reward/total", "reward {:.3f}"),
    ("reward/outcome", "outcome {:.2f}"),
    ("reward/rationale", "rationale {:.2f}"),
    ("kl", "kl {:.4f}"),
    ("entropy", "entropy {:.2f}"),
    ("length/mean", "{:.0f} tokens"),
    ("sample/truncated", "{:.0%} cut"),
    ("speed/rollout", "rollout {:.0f} tok/s"),
    ("speed/judge", "judge {:.0f} verdicts/s"),
    ("speed/update", "update {:.0f} tok/s"),
)
"""Metrics on the live line, in this order, where a run has them."""


class TrainProgress:
    """Steps done, the last step's figures, time left, and what is going on at the moment."""

    def __init__(self, name: str, total: int, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._total, self._done, self._first = name, total, done, done
        self._clock, self._start, self._said = clock, clock(), clock()
        self._figures, self._stage = "", ""
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            text = TextColumn("{task.fields[stage]} {task.fields[figures]}")
            self._bar = Progress(TextColumn(name), *columns, text, console=console)
            self._task = self._bar.add_task(name, total=total, completed=done, figures="", stage="")

    def __enter__(self) -> "TrainProgress":
        if self._bar is not None:
            self._bar.start()
        else:
            self.say(f"{self._name}: step {self._done} of {self._total}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None and self._done > self._first:
            self.say(self.line())

    @contextmanager
    def stage(self, words: str) -> Iterator[None]:
        """Names what is going on inside (rollout, judge, update, evaluation)."""
        self._stage = words
        self._refresh()
        try:
            yield
        finally:
            self._stage = ""

    def step(self, number: int, metrics: Mapping[str, float | None]) -> None:
        """A step is done."""
        self._done = number
        known = ((form, metrics.get(name)) for name, form in SHOWN)
        self._figures = ", ".join(form.format(value) for form, value in known if value is not None)
        self._refresh()
        if self._bar is None and self._clock() - self._said >= PLAIN_SECONDS:
            self._said = self._clock()
            self.say(self.line())

    def say(self, text: str) -> None:
        """A line of its own, above the live one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def line(self) -> str:
        left = self.seconds_left()
        eta = "" if left is None or self._done >= self._total else f", about {duration(left)} left"
        return f"{self._name}: step {self._done}/{self._total}, {self._figures}{eta}"

    def seconds_left(self) -> float | None:
        """By the pace of this session; None before its first step."""
        fresh = self._done - self._first
        return None if fresh <= 0 else (self._total - self._done) * (self._clock() - self._start) / fresh

    def _refresh(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, figures=self._figures, stage=self._stage)
