"""Ctrl-C and SIGTERM end a run between two samples, never inside a write.

A cloud VM that is about to be pre-empted sends SIGTERM, so the two are treated alike: what is done is stored, what was
in flight is given up, and the message says how to go on.
"""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_END = object()
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The run was told to stop. `exit_code` is 128 + the signal's number."""

    def __init__(self, number: int, message: str = ""):
        super().__init__(message or signal.Signals(number).name)
        self.exit_code = 128 + number


class Interrupts:
    """While entered, a signal raises Stopped where `watch` waits for the next item; elsewhere it is kept until then.

    A second signal raises at once. In a thread other than the main one signals are left alone.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._pending: int | None = None
        self._old: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._waiting or self._pending is not None:
            raise Stopped(number)
        self._pending = number

    def check(self) -> None:
        """Raise Stopped if a signal is pending."""
        if self._pending is not None:
            raise Stopped(self._pending)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Signals raise at once inside: for work that may be cut anywhere."""
        self._waiting = True
        try:
            self.check()
            yield
        finally:
            self._waiting = False

    def watch[T](self, items: Iterable[T]) -> Iterator[T]:
        """The items, each waited for interruptibly; what the caller does with one is not interrupted."""
        iterator = iter(items)
        while True:
            with self.allowed():
                item = next(iterator, _END)
            if item is _END:
                return
            yield item  # type: ignore[misc]
