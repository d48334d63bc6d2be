"""Samples of the policy: G completions for each prompt, by the same engine that evaluates.

What is drawn depends on (seed, step, record id, sample index) and the weights, on nothing else.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from noisyjax import hosts
from noisyjax.config import Schema
from noisyjax.errors import RunError
from noisyjax.instruct import Asked
from noisyjax.records import Completion, Engine, Finish, Request, Sampling

_FREE: dict[str, Any] = {"affects_results": False}


class RolloutConfig(Schema):
    """How the policy is sampled."""

    samples: int = Field(default=3, ge=1)
    """Completions per prompt, G: the group that advantages are relative to. 3 in the paper, 8 in TRL."""
    max_tokens: int = Field(default=8192, ge=1)
    """Longest completion."""
    temperature: float = Field(default=1.0, gt=0)
    """Also the temperature at which the update computes log-probabilities."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Below 1 the ratio of new to old policy is biased: the update's log-probabilities know no truncation."""
    ignore_eos: bool = False
    """Always draw `max_tokens`; for measuring speed."""
    slots: int = Field(default=8, ge=1, json_schema_extra=_FREE)
    """Rows that decode at a time."""
    chunk: int = Field(default=32, ge=1, json_schema_extra=_FREE)
    """Decode steps between returns to the host."""
    min_prefix: int = Field(default=0, ge=0, json_schema_extra=_FREE)
    """Shortest beginning that different prompts share, in tokens; 0: none. The samples of one prompt always share its
    prefill. Worth it where records have one block of noise in common; steps that share otherwise compile anew."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the sampler's weights; auto: the update's compute type."""
    offload: bool = Field(default=False, json_schema_extra=_FREE)
    """Free the sampler's caches after every rollout, and let its weights wait in host memory."""


@dataclass(frozen=True)
class Rollout:
    """A record's completions, by sample number. None of them has Finish.ERROR.

    `id` is unique in a batch: the record's, with a number when small data brings a record back within one step.
    """

    id: str
    asked: Asked
    completions: tuple[Completion, ...]


class Sampler:
    """Draws the completions of one step; `tokens` and `seconds` add up over its draws."""

    def __init__(self, engine: Engine, config: RolloutConfig, *, seed: int, step: int) -> None:
        self._engine, self._config, self._seed, self._step = engine, config, seed, step
        self._how = Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=config.max_tokens,
            ignore_eos=config.ignore_eos,
        )
        self._times: Counter[str] = Counter()
        self.tokens, self.seconds = 0, 0.0

    def draw(self, asked: Sequence[Asked]) -> list[Rollout]:
        """G completions for each record of this host's share of `asked`, in its order. A record that comes back is
        sampled afresh.

        Raises RunError when the engine gave up on a sample: a policy on the own mesh has no reason to.
        """
        named = hosts.share([(self._name(a.record.id), a) for a in asked])
        requests = [
            Request(name, a.prompt, self._how, self._config.samples, seed=self._seed, step=self._step, key=name)
            for name, a in named
        ]
        begin = time.perf_counter()
        made: dict[str, dict[int, Completion]] = {name: {} for name, _ in named}
        for completion in self._engine.generate(requests):
            if completion.finish is Finish.ERROR:
                raise RunError(f"the sampler failed on record {completion.request_id}: {completion.error}")
            made[completion.request_id][completion.sample] = completion
            self.tokens += completion.completion_tokens
        self.seconds += time.perf_counter() - begin
        return [Rollout(name, a, tuple(made[name][n] for n in range(self._config.samples))) for name, a in named]

    def _name(self, record: str) -> str:
        self._times[record] += 1
        return draw_name(record, self._times[record])


def draw_name(record: str, time: int) -> str:
    """The name of the `time`-th draw of a record within a step, counted from 1: no two draws of any records share one.

    >>> draw_name("a", 1), draw_name("a", 2), draw_name("a#2", 1)
    ('a', 'a#2', 'a#2#1')
    """
    return record if time == 1 and "#" not in record else f"{record}#{time}"


def length_figures(rollouts: Iterable[Rollout]) -> dict[str, float | None]:
    """Lengths in tokens and how completions ended, over all samples."""
    done = [c for r in rollouts for c in r.completions]
    if not done:
        return {}
    length_n = np.array([c.completion_tokens for c in done])
    return {
        "length/mean": float(length_n.mean()),
        "length/max": float(length_n.max()),
        "length/min": float(length_n.min()),
        "eos": float(np.mean([c.finish is Finish.STOP for c in done])),
    }
