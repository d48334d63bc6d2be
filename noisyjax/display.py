"""What a person sees while something long goes on: a live line on a terminal, a plain line now and then elsewhere."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from noisyjax.visible import duration, visible

PLAIN_SECONDS = 15.0
"""Between two plain lines."""


class Display(ABC):
    """Counts from `done` (what an earlier session did) to `total`. A subclass says what is counted, and the figures.

    Used as a context manager. Everything is shown on stderr, and made visible first.
    """

    def __init__(self, name: str, total: int, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.total, self.done = visible(name), total, done
        self._first, self._clock = done, clock
        self._start = self._said = clock()
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal and not self.quiet:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            name_column = TextColumn("{task.description}", markup=False)
            self._bar = Progress(name_column, *columns, TextColumn("{task.fields[text]}"), console=console)
            self._task = self._bar.add_task(self.name, total=total, completed=done, text="")

    @property
    def quiet(self) -> bool:
        """Nothing is shown: another process speaks for the run."""
        return False

    @abstractmethod
    def opening(self) -> str:
        """What lies ahead, for the first plain line."""

    @abstractmethod
    def counted(self) -> str:
        """`step 3/10`, `3/10 samples`."""

    @abstractmethod
    def figures(self) -> str:
        """Of what was done so far."""

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        else:
            self.say(f"{self.name}: {self.opening()}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None and self.done > self._first:
            self.say(self.line())

    def show(self, live: str, plain: str | None = None) -> None:
        """`live` behind the bar; on no terminal the line, with `plain` added, when the last one is old enough.

        `plain` None: this is no news for a plain line.
        """
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, text=visible(live))
        elif plain is not None and self._clock() - self._said >= PLAIN_SECONDS:
            self._said = self._clock()
            self.say(self.line() + plain)

    def say(self, text: str) -> None:
        """A line of its own, above the live one."""
        if self._bar is not None:
            self._bar.console.print(visible(text), markup=False, highlight=False)
        elif not self.quiet:
            print(visible(text), file=sys.stderr, flush=True)

    def line(self) -> str:
        """Where it stands, and how long it will take."""
        left = self.seconds_left()
        eta = "" if left is None or self.done >= self.total else f", about {duration(left)} left"
        return f"{self.name}: {self.counted()}, {self.figures()}{eta}"

    def seconds(self) -> float:
        """Since this session began."""
        return self._clock() - self._start

    def seconds_left(self) -> float | None:
        """By the pace of this session; None before anything was done in it."""
        fresh = self.done - self._first
        return (self.total - self.done) * self.seconds() / fresh if fresh > 0 else None
