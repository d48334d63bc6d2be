"""Mathematical equality by math-verify, in worker processes that can be killed.

Why processes: math-verify's own time-outs use SIGALRM, which raises outside the main thread and is swallowed inside;
without them `9^{9^{9^9}}` never returns. Here a task has a hard deadline, after which its worker is killed and
replaced, and the sample is unscored with a reason: a scorer's failure is never a 0. Callable from any thread.

Known to remain, since the library cannot tell them apart: `10\\%` equals 10 and 0.1; `x=5` equals 5; `\\{204\\}` equals
204; numbers that agree to six decimals are equal. And the other way: words are no numbers; an interval given for an
inequality is equal, an inequality given for an interval is not.
"""

import atexit
import json
import queue
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).with_name("math_worker.py")
MAX_LENGTH = 4000
"""Longest expression sent to a worker, in characters."""

_EXPONENT_LIMIT = 1_000_000
_NESTED_POWER = re.compile(r"(\d+)\s*\)?\s*\^\s*[{(]?\s*(\d+)\s*\^\s*[{(]*\s*(\d+)")
_POWER = re.compile(r"\^\s*[{(]*\s*(\d{7,})")
_BIG_FACTORIAL = re.compile(r"(?<!\d)\d{6,}\s*[})]*\s*!|\^[^!]{0,40}[)}]\s*!|!\s*\)?\s*!")


@dataclass(frozen=True)
class MathVerdict:
    """`value` is None when equality could not be decided; `reason` then says why."""

    value: bool | None
    reason: str = ""


def too_costly(expression: str) -> str | None:
    """Why an expression is not even tried, None when it may be: too long, power towers, huge powers or factorials."""
    if len(expression) > MAX_LENGTH:
        return f"expression of {len(expression)} characters (limit {MAX_LENGTH})"
    text = expression.replace(",", "").replace("**", "^")
    for _, base, exponent in _NESTED_POWER.findall(text):
        if len(base) * int(exponent[:8]) > 6 or len(exponent) > 3:
            return "a tower of powers"
    if any(int(exponent[:12]) > _EXPONENT_LIMIT for exponent in _POWER.findall(text)):
        return "a huge exponent"
    return "a huge factorial" if _BIG_FACTORIAL.search(text) else None


class _Worker:
    """One process and its pipe. Used by one thread at a time; the pool sees to that."""

    def __init__(self, start_timeout: float) -> None:
        # -P keeps this folder off the child's path: its `math.py` must not stand in for the standard one.
        command = [sys.executable, "-P", str(_WORKER)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
        )
        self.done = 0
        self.ready = self._receive(start_timeout) is not None

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The next reply, or None when the worker died or was late; it is then dead for certain."""
        assert self.process.stdout is not None
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if line.endswith("\n"):
            return json.loads(line)
        self.close()
        return None

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """One task; None when there was no reply in time."""
        assert self.process.stdin is not None
        self.done += 1
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError:
            self.close()
            return None
        return self._receive(seconds)

    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # closing flushes what the dead process never read
                    continue


class MathPool:
    """`workers` processes, started when first needed, each for `recycle` tasks; `deadline` seconds a task.

    >>> with MathPool() as pool:
    ...     pool.verify(gold=r"\\frac{1}{2}", answer="0.5").value
    True
    """

    def __init__(
        self, workers: int = 1, *, deadline: float = 10.0, recycle: int = 500, start_timeout: float = 120.0
    ) -> None:
        self.deadline, self.recycle, self.start_timeout = deadline, recycle, start_timeout
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)

    def verify(self, *, gold: str, answer: str) -> MathVerdict:
        """Whether `answer` equals `gold`, both expressions without `$`. Blocks until a worker is free.

        Keywords only: the comparison is not symmetric. Equal texts need no worker.
        """
        gold, answer = gold.strip().strip("$").strip(), answer.strip().strip("$").strip()
        if gold and "".join(gold.split()) == "".join(answer.split()):
            return MathVerdict(True)
        for name, text in (("gold", gold), ("answer", answer)):
            if why := too_costly(text):
                return MathVerdict(None, f"{name} not tried: {why}")
        request = {"gold": gold, "answer": answer, "deadline": self.deadline}
        # A worker that died before its time was killed from outside (or by the task): one more try on a fresh one.
        verdict, early = self._ask(request)
        return self._ask(request)[0] if early else verdict

    def _ask(self, request: dict[str, Any]) -> tuple[MathVerdict, bool]:
        """One task on one worker: its verdict, and whether the worker died before the deadline."""
        worker = self._idle.get()
        begun = time.monotonic()
        try:
            if worker is None or not worker.alive():
                worker = _Worker(self.start_timeout)
            if not worker.ready:
                return MathVerdict(None, "the math-verify worker did not start: is math-verify installed?"), False
            begun = time.monotonic()
            reply = worker.ask(request, self.deadline)
        finally:
            keep = worker is not None and worker.ready and worker.alive() and worker.done < self.recycle
            if worker is not None and not keep:
                worker.close()
            self._idle.put(worker if keep else None)
        if reply is not None:
            return MathVerdict(reply["value"], reply.get("reason", "")), False
        late = time.monotonic() - begun >= self.deadline
        why = f"no verdict within {self.deadline:g} s" if late else "the math-verify worker died"
        return MathVerdict(None, why), not late

    def close(self) -> None:
        """Stop the workers that are idle."""
        for _ in range(self._idle.qsize()):
            worker = self._idle.get()
            if worker is not None:
                worker.close()
            self._idle.put(None)

    def __enter__(self) -> "MathPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared: MathPool | None = None
_lock = threading.Lock()


def shared_pool() -> MathPool:
    """The pool of this process, made on first use and stopped at exit."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = MathPool()
            atexit.register(_shared.close)
        return _shared
