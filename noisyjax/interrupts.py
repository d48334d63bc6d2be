"""Ctrl-C and SIGTERM end a run between two samples, never inside a write.

A cloud VM that is about to be pre-empted sends SIGTERM, so the two are treated alike: what is done is stored, what was
in flight is given up, and the message says how to go on.
"""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar, Optional

_END = object()
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PASSED_ON = signal.SIGUSR1
"""Stands for a stop at another host of the same run."""


class Stopped(KeyboardInterrupt):
    """The run was told to stop. `exit_code` is 128 + the signal's number."""

    def __init__(self, number: int, message: str = ""):
        super().__init__(message or signal.Signals(number).name)
        self.exit_code = 128 + number


class Interrupts:
    """While entered, a signal raises Stopped where `watch` waits for the next item; elsewhere it is kept until then.

    A second signal raises at once. In a thread other than the main one signals are left alone.
    """

    present: ClassVar[Optional["Interrupts"]] = None
    """The innermost one that is entered."""

    def __init__(self) -> None:
        self.waiting, self._passed_on = False, False
        self._pending: int | None = None
        self._old: dict[int, Any] = {}
        self._outer: Interrupts | None = None

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._handle) for number in (*_SIGNALS, PASSED_ON)}
            self._outer, Interrupts.present = Interrupts.present, self
        return self

    def __exit__(self, *_: object) -> None:
        if self._old:
            Interrupts.present = self._outer
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number == PASSED_ON:
            self._passed_on = True  # no second signal: a stop often reaches several hosts at once
            if self.waiting:
                raise Stopped(number)
        elif self.waiting or self._pending is not None:
            raise Stopped(number)
        else:
            self._pending = number

    def check(self) -> None:
        """Raise Stopped if a signal is pending."""
        if self._pending is not None:
            raise Stopped(self._pending)
        if self._passed_on:
            raise Stopped(PASSED_ON)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Signals raise at once inside: for work that may be cut anywhere."""
        self.waiting = True
        try:
            self.check()
            yield
        finally:
            self.waiting = False

    def watch[T](self, items: Iterable[T]) -> Iterator[T]:
        """The items, each waited for interruptibly; what the caller does with one is not interrupted."""
        iterator = iter(items)
        while True:
            with self.allowed():
                item = next(iterator, _END)
            if item is _END:
                return
            yield item  # type: ignore[misc]


@contextmanager
def held() -> Iterator[None]:
    """For a piece of what signals may cut that must not be cut itself: they wait until it is over."""
    now = Interrupts.present
    if now is None or not now.waiting:
        yield
        return
    now.waiting = False
    try:
        yield
    finally:
        now.waiting = True
    now.check()
