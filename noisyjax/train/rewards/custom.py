"""A reward function of the user's own: found by name, called per sample, and allowed to fail on some of them."""

import importlib
import math
import numbers
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from noisyjax.errors import RunError, UsageError, nearest
from noisyjax.train.rewards.samples import Sample

RewardFn = Callable[[Sample], float | None]
"""Any finite number, higher is better; None where the function does not want to decide."""


@dataclass(frozen=True)
class Custom:
    """value_n float64 [N], nan where undefined. Of the samples `asked`, `failures` counts those that raised, by the
    kind of exception; `first` is the first one's message; `abstained` counts the Nones, which are no failures."""

    value_n: np.ndarray
    asked: int
    failures: Mapping[str, int]
    first: str
    abstained: int

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    def __str__(self) -> str:
        """One line for the log, empty when nothing failed."""
        if not self.failures:
            return ""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items()))
        return f"reward_fn failed on {self.failed} of {self.asked} samples ({kinds}); the first: {self.first}"


def load_reward_fn(name: str) -> RewardFn:
    """The function that `package.module:function` names. UsageError that says which part of it is not there."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise UsageError(f"reward_fn {name!r}: expected package.module:function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"reward_fn {name!r}: {module_name} needs a module that is missing: {error}") from error
        raise UsageError(
            f"reward_fn {name!r}: there is no module {error.name!r}; put its folder on PYTHONPATH"
        ) from error
    except Exception as error:  # the user's module may do anything while it is read
        raise UsageError(f"reward_fn {name!r}: {module_name} cannot be imported: {error!r}") from error
    function = getattr(module, function_name, None)
    if function is None:
        callables = [key for key, value in vars(module).items() if callable(value)]
        raise UsageError(
            f"reward_fn {name!r}: {module_name} has no {function_name!r}; {nearest(function_name, callables)}"
        )
    if not callable(function):
        raise UsageError(f"reward_fn {name!r}: {function_name} is a {type(function).__name__}, not a function")
    return function


def call_reward_fn(function: RewardFn, samples: Sequence[Sample], max_failed: float) -> Custom:
    """`function` of every sample. One that raises, or returns no finite number, is unscored and counted.

    RunError with counts and the first message when more than the share `max_failed` of them failed. Samples for which
    nothing was generated are not asked about.
    """
    value_n = np.full(len(samples), np.nan)
    failures: Counter[str] = Counter()
    first, abstained = "", 0
    asked = [i for i, sample in enumerate(samples) if not sample.void]
    for i in asked:
        try:
            value = _number(function(samples[i]))
        except Exception as error:  # noqa: BLE001 - anything may go wrong in there; it is counted and shown
            failures[type(error).__name__] += 1
            first = first or f"{type(error).__name__}: {error} (sample of {samples[i].case.id})"
            continue
        if value is None:
            abstained += 1
        else:
            value_n[i] = value
    result = Custom(value_n, len(asked), dict(failures), first, abstained)
    if result.failed > max_failed * len(asked):
        raise RunError(f"{result}. That is more than max_failed = {max_failed:g} allows")
    return result


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0:
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise TypeError(f"returned {value!r:.80}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"returned {number}")
    return number
