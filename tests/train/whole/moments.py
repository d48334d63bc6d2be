"""A reward function whose module, when it is read, arranges for its process to get a signal at one chosen moment.

MOMENT="SIGKILL rollout 4": the signal's name, where, and in which step of the session.
"""

import os
import signal
from collections import Counter

from noisyjax.engine.local import LocalEngine
from noisyjax.train.learner import Learner
from noisyjax.train.state import Checkpoints

NAME, WHERE, STEP = [*os.environ.get("MOMENT", "- - 0").split()]
seen: Counter[str] = Counter()


def varied(sample):
    if steps() == int(STEP):
        strike("judge")
    return sum(sample.completion.encode()) % 97 / 97


def steps() -> int:
    """The step that is being taken: each begins by loading the sampler."""
    return seen["load"]


def strike(where: str) -> None:
    if where == WHERE and steps() == int(STEP):
        os.kill(os.getpid(), signal.Signals[NAME])


def after(owner, name, where, times=1):
    """Strike when a method has returned for the `times`-th time in its step."""
    method = getattr(owner, name)

    def wrapped(*args, **kwargs):
        result = method(*args, **kwargs)
        seen[where] += 1
        if where == "load" or seen[where, steps()] == times - 1:
            strike(where)
        seen[where, steps()] += 1
        return result

    setattr(owner, name, wrapped)


def generate(self, requests):
    for number, completion in enumerate(_generate(self, requests)):
        if number == 1:
            strike("rollout")
        yield completion


_generate = LocalEngine.generate
LocalEngine.generate = generate
after(LocalEngine, "load_params", "load")
after(Learner, "update", "update", times=1)  # the first of the step's two
after(Checkpoints, "save", "checkpoint")
