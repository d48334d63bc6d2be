"""The lines between the hosts of a run: each host holds one to the first, which passes on what all must know.

A line is a TCP connection. It closes when the process at its other end dies, so the others know at once, and know who
it was; a machine that falls silent is found by TCP's own probes. What was lost cannot be made up for: a host that hears
of it says so and ends, since its main thread may wait in a collective that nobody will finish.
"""

import _thread
import os
import queue
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from noisyjax.errors import RunError, UsageError
from noisyjax.interrupts import PASSED_ON

_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""A machine counts as silent after 30 seconds; jax itself would end the process after 100."""

OVERDUE = 120.0
"""Seconds after which a host ends that did not come to a round which another could not do its part of: its devices may
wait for the other one's."""

GOES_ON = "What is stored is safe: start the same command on every host again and the run goes on from there"


class Failure(NamedTuple):
    """Why a host could not do its part. `stop`: the signal's number if it was told to stop; 0 otherwise."""

    text: str
    code: int
    stop: int = 0

    @property
    def passed_on(self) -> bool:
        """Whether it stopped because another host did."""
        return self.stop == PASSED_ON


class Part(NamedTuple):
    """What one host has to say in a round."""

    body: bytes
    failure: Failure | None


class Hello(NamedTuple):
    """What a host says when it joins. `about`: a digest of what it means to run."""

    which: int
    of: int
    about: str
    name: str


class Line:
    """One connection; `send` may be called from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connection, self._lock = Connection(sock.detach()), threading.Lock()

    def send(self, *message: Any) -> None:
        """A host that is gone is told nothing; whoever reads from it notices."""
        with self._lock:
            try:
                self._connection.send(message)
            except OSError:
                return

    def receive(self, seconds: float) -> tuple[Any, ...] | None:
        """The next message; None when the line closes or the time is over."""
        try:
            return self._connection.recv() if self._connection.poll(seconds) else None
        except (EOFError, OSError):
            return None

    def read(self, take: Callable[..., None], gone: Callable[[], None]) -> None:
        """From now on a thread hands over every message, and calls `gone` when the line closes."""

        def loop() -> None:
            try:
                while True:
                    take(*self._connection.recv())
            except (EOFError, OSError):
                gone()

        threading.Thread(target=loop, daemon=True, name="line").start()


class Lines(ABC):
    """This host's end of everything. `names` are those of the machines, by host."""

    def __init__(self, index: int, count: int, names: dict[int, str]) -> None:
        self.index, self.count, self.names = index, count, names
        self._rounds: queue.SimpleQueue[list[Part]] = queue.SimpleQueue()
        self._over = 0
        self._left: set[int] = set()

    @abstractmethod
    def _say(self, *message: Any) -> None:
        """Give a message of this host to the first."""

    def exchange(self, part: Part) -> list[Part]:
        """The parts of all hosts, in their order; waits for the slowest."""
        self._say("part", part)
        return self._rounds.get()

    def leave(self, why: str | None) -> None:
        """This host ends; `why` it does when the others do not know yet."""
        self._say(*(("bye",) if why is None else ("failed", why)))

    def _told(self, kind: str, what: Any = None) -> None:
        """A message of the first host to this one."""
        match kind:
            case "round":
                self._over += 1
                self._rounds.put(what)
            case "stop":
                _thread.interrupt_main(PASSED_ON)
                timer = threading.Timer(OVERDUE, self._overdue, (self._over, what))
                timer.daemon = True
                timer.start()
            case "bye":
                self._left.add(0)
            case "lost":
                _end(what)

    def _overdue(self, over: int, text: str) -> None:
        if self._over == over:
            _end(text)

    def _gone(self, index: int) -> str:
        name = f" ({self.names[index]})" if index in self.names else ""
        return f"host {index}{name} is gone: it ended, or cannot be reached any more. {GOES_ON}"


class First(Lines):
    """The first host's end. Waits until all others are there.

    Raises RunError that names those who did not come in time, UsageError for one that does not belong, and for an
    address that is not this machine's.
    """

    def __init__(self, address: tuple[str, int], hello: Hello, seconds: float) -> None:
        found = _assembled(address, hello, seconds)
        super().__init__(0, hello.of, {0: hello.name} | {i: other.name for i, (other, _) in found.items()})
        self._lines = {i: line for i, (_, line) in found.items()}
        self._lock = threading.Lock()
        self._waiting: list[deque[Part]] = [deque() for _ in range(self.count)]
        for i, line in self._lines.items():
            line.send("welcome", self.names)
            line.read(partial(self._heard, i), partial(self._closed, i))

    def _say(self, *message: Any) -> None:
        self._heard(0, *message)

    def _heard(self, index: int, kind: str, what: Any = None) -> None:
        match kind:
            case "part":
                self._part(index, what)
            case "bye":
                self._left.add(index)
                if index == 0:
                    self._tell("bye")
            case "failed":
                if index == 0:
                    self._left.add(0)
                self._lose(index, f"host {index} ended: {what}. {GOES_ON}")

    def _part(self, index: int, part: Part) -> None:
        with self._lock:
            self._waiting[index].append(part)
            whole = [held.popleft() for held in self._waiting] if all(self._waiting) else None
        if part.failure:  # whoever is still at work on this round need not finish
            self._tell("stop", f"host {index} failed: {part.failure.text}", but=index)
        if whole:
            self._tell("round", whole)
            self._told("round", whole)

    def _closed(self, index: int) -> None:
        if not self._left & {0, index}:  # once this host has left, the others end because of it
            self._lose(index, self._gone(index))

    def _lose(self, index: int, text: str) -> None:
        self._tell("lost", text, but=index)
        if index:
            time.sleep(0.5)  # the others hear it from here before they lose this host too
            _end(text)

    def _tell(self, kind: str, what: Any = None, but: int = 0) -> None:
        for i, line in self._lines.items():
            if i != but:
                line.send(kind, what)
        if kind == "stop" and but != 0:
            self._told(kind, what)


class Other(Lines):
    """Any other host's end. Raises RunError when the first is not there in time, or what the first refuses it for."""

    def __init__(self, address: tuple[str, int], hello: Hello, seconds: float) -> None:
        self._line = _reach(address, seconds)
        self._line.send(*hello)
        match self._line.receive(seconds + 30):
            case ("welcome", names):
                super().__init__(hello.which, hello.of, names)
            case ("refused", text, usage):
                raise (UsageError if usage else RunError)(text)
            case _:
                raise RunError("host 0 ended before all hosts had joined: it says why. Start all of them again")
        self._line.read(self._told, self._closed)

    def _say(self, *message: Any) -> None:
        self._line.send(*message)

    def _closed(self) -> None:
        if 0 not in self._left:
            _end(self._gone(0))


def listening(address: tuple[str, int], backlog: int = 1) -> socket.socket:
    """A server at an address of this machine. Raises UsageError where there can be none."""
    try:
        return socket.create_server(address, backlog=backlog)
    except OSError as error:
        raise UsageError(
            f"hosts.coordinator: cannot listen at {address[0]}:{address[1]} ({error.strerror or error}); it must be an "
            "address of the first host, with two free ports"
        ) from None


def _assembled(address: tuple[str, int], hello: Hello, seconds: float) -> dict[int, tuple[Hello, Line]]:
    """Hello and line of every host but the first."""
    found: dict[int, tuple[Hello, Line]] = {}

    def refuse(text: str, usage: bool, more: tuple[Line, ...] = ()) -> None:
        for line in (*(line for _, line in found.values()), *more):
            line.send("refused", text, usage)

    with listening(address, hello.of) as server:
        deadline = time.monotonic() + seconds
        while len(found) < hello.of - 1:
            try:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                line = Line(server.accept()[0])
            except TimeoutError:
                text = _not_joined(sorted({*range(1, hello.of)} - found.keys()), hello.of, seconds)
                refuse(text, False)
                raise RunError(text) from None
            if (said := line.receive(10.0)) is None or len(said) != len(Hello._fields):
                continue
            other = Hello(*said)
            if problem := _problem(hello, other, found):
                refuse(problem, True, (line,))
                raise UsageError(problem)
            found[other.which] = other, line
    return found


def _problem(mine: Hello, other: Hello, found: dict[int, tuple[Hello, Line]]) -> str | None:
    if other.of != mine.of:
        return f"hosts.count is {mine.of} on host 0 and {other.of} on host {other.which} ({other.name})"
    if other.which in found:
        return f"two hosts have hosts.index={other.which}: {found[other.which][0].name} and {other.name}"
    if other.about != mine.about:
        return f"host {other.which} ({other.name}) was started with another config than host 0: give all the same"
    return None


def _not_joined(missing: list[int], count: int, seconds: float) -> str:
    who = ", ".join(f"host {i}" for i in missing)
    return (
        f"{len(missing)} of {count} hosts did not join within {seconds:g} s: {who}. Start the same command there, with "
        "hosts.index as named here, or give it more time with hosts.join_s"
    )


def _reach(address: tuple[str, int], seconds: float) -> Line:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            return Line(socket.create_connection(address, timeout=left))
        except OSError:
            time.sleep(0.2)
    raise RunError(
        f"host 0 did not join within {seconds:g} s: nothing answers at {address[0]}:{address[1]}. Start the same "
        "command there with hosts.index=0, or give it more time with hosts.join_s"
    )


def _end(text: str) -> None:
    """From any thread."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(2, f"noisyjax: {text}\n".encode())
    os._exit(RunError.exit_code)
