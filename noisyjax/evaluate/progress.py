"""What a person sees while a run goes on: a live line on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import TaskID as BarId

from noisyjax.records import Completion, Score, State
from noisyjax.visible import duration, visible

PLAIN_SECONDS = 15.0
"""Between two plain lines."""


class RunProgress:
    """Counts samples, tokens and states. `total` and `done` are samples; `done` is what an earlier run stored."""

    def __init__(self, name: str, total: int, done: int, clock: Callable[[], float] = time.monotonic):
        self._name, self._total, self._done = visible(name), total, done
        self._clock, self._start, self._said = clock, clock(), clock()
        self._fresh, self._tokens = 0, 0
        self._states: Counter[str] = Counter()
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._bar_id: BarId | None = None

    def __enter__(self) -> "RunProgress":
        if self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            text = TextColumn("{task.fields[figures]}")
            name = TextColumn("{task.description}", markup=False)
            self._bar = Progress(name, *columns, text, console=self._console)
            self._bar_id = self._bar.add_task(self._name, total=self._total, completed=self._done, figures="")
            self._bar.start()
        else:
            self.say(f"{self._name}: {self._total - self._done} of {self._total} samples to do")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None:
            self.say(self.line())

    def say(self, text: str) -> None:
        """A line of its own, above the live one."""
        if self._bar is not None:
            self._bar.console.print(visible(text), markup=False, highlight=False)
        else:
            print(visible(text), file=sys.stderr, flush=True)

    def add(self, completion: Completion, score: Score, cell: str) -> None:
        """One more sample is stored."""
        self._done += 1
        self._fresh += 1
        self._tokens += completion.completion_tokens
        self._states[score.state.value] += 1
        if self._bar is not None and self._bar_id is not None:
            self._bar.update(self._bar_id, completed=self._done, figures=f"{self.figures()}  {cell}")
        elif self._clock() - self._said >= PLAIN_SECONDS:
            self._said = self._clock()
            self.say(f"{self.line()}, at {cell}")

    def line(self) -> str:
        left = self.seconds_left()
        eta = "" if left is None or self._done >= self._total else f", about {duration(left)} left"
        return f"{self._name}: {self._done}/{self._total} samples, {self.figures()}{eta}"

    def figures(self) -> str:
        """Tokens per second of this session and every state but `scored`."""
        seconds = max(self._clock() - self._start, 1e-9)
        others = [f"{n} {state}" for state, n in sorted(self._states.items()) if state != State.SCORED]
        return ", ".join([f"{self._tokens / seconds:.0f} tokens/s", *others])

    def seconds_left(self) -> float | None:
        """By the pace of this session; None before its first sample."""
        if not self._fresh:
            return None
        return (self._total - self._done) * (self._clock() - self._start) / self._fresh
