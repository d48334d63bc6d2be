"""Samples of the policy: G completions for each prompt, by the same engine that evaluates.

What is drawn depends on (seed, step, record id, sample index) and the weights, on nothing else.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

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
    slots: int = Field(default=8, ge=1, json_schema_extra=_FREE)
    """Rows that decode at a time."""
    chunk: int = Field(default=32, ge=1, json_schema_extra=_FREE)
    """Decode steps between returns to the host."""
    min_prefix: int = Field(default=256, ge=0, json_schema_extra=_FREE)
    """Shortest beginning that different prompts share, in tokens; the samples of one prompt always share it."""
    dtype: str = Field(default="auto", pattern="^(auto|float32|bfloat16)$")
    """Type of the sampler's weights; auto: the update's compute type."""


@dataclass(frozen=True)
class Rollout:
    """A record's completions, by sample number. None of them has Finish.ERROR."""

    asked: Asked
    completions: tuple[Completion, ...]


def roll_out(
    engine: Engine, asked: Sequence[Asked], config: RolloutConfig, *, seed: int, step: int
) -> tuple[list[Rollout], Mapping[str, float]]:
    """G completions for each record, in the order of `asked`, and the sampler's figures (tokens, seconds).

    Raises RunError when the engine gave up on a sample: a policy on the own mesh has no reason to.
    """
    how = Sampling(temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_tokens)
    requests = [
        Request(str(i), a.prompt, how, config.samples, seed=seed, step=step, key=a.record.id)
        for i, a in enumerate(asked)
    ]
    begin = time.perf_counter()
    made: list[dict[int, Completion]] = [{} for _ in asked]
    for completion in engine.generate(requests):
        if completion.finish is Finish.ERROR:
            raise RunError(
                f"the sampler failed on record {asked[int(completion.request_id)].record.id}: {completion.error}"
            )
        made[int(completion.request_id)][completion.sample] = completion
    seconds = time.perf_counter() - begin
    tokens = sum(c.completion_tokens for group in made for c in group.values())
    rollouts = [
        Rollout(a, tuple(group[n] for n in range(config.samples))) for a, group in zip(asked, made, strict=True)
    ]
    return rollouts, {"tokens": float(tokens), "seconds": seconds}


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
        "truncated": float(np.mean([c.finish is Finish.LENGTH for c in done])),
        "eos": float(np.mean([c.finish is Finish.STOP for c in done])),
        "over_length": float(np.mean([c.finish is Finish.OVER_LENGTH for c in done])),
    }
