"""What a person sees while a run goes on: samples, their pace and their states."""

import time
from collections import Counter
from collections.abc import Callable

from noisyjax import hosts
from noisyjax.display import Display
from noisyjax.records import Completion, Score, State


class RunProgress(Display):
    """Counts samples, tokens and states. `total` and `done` are samples; `done` is what an earlier run stored."""

    def __init__(self, name: str, total: int, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name, total, done, clock)
        self._tokens = 0
        self._states: Counter[str] = Counter()

    @property
    def quiet(self) -> bool:
        return not hosts.first()

    def opening(self) -> str:
        return f"{self.total - self.done} of {self.total} samples to do"

    def counted(self) -> str:
        return f"{self.done}/{self.total} samples"

    def figures(self) -> str:
        """Tokens per second of this session and every state but `scored`."""
        others = [f"{n} {state}" for state, n in sorted(self._states.items()) if state != State.SCORED]
        return ", ".join([f"{self._tokens / max(self.seconds(), 1e-9):.0f} tokens/s", *others])

    def add(self, completion: Completion, score: Score, cell: str) -> None:
        """One more sample is stored."""
        self.done += 1
        self._tokens += completion.completion_tokens
        self._states[score.state.value] += 1
        self.show(f"{self.figures()}  {cell}", f", at {cell}")
