"""What a sweep is: a model, a benchmark, how to draw, and what to keep."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from noisyjax.bench.schema import BenchConfig
from noisyjax.config import ModelPreset, Schema, load
from noisyjax.config.tree import merge
from noisyjax.engine.config import LocalConfig
from noisyjax.engine.remote import RemoteConfig
from noisyjax.hosts import HostsConfig
from noisyjax.judge import JudgeConfig

_FREE: dict[str, Any] = {"affects_results": False}


EngineConfig = Annotated[LocalConfig | RemoteConfig, Field(discriminator="kind")]


class SamplingConfig(Schema):
    """What is null follows the dataset: greedy for one sample a question, 0.6 / top-p 0.95 for several."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 is off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """0 is off."""
    max_tokens: int = Field(default=1024, ge=1)
    """New tokens per sample, thoughts included."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion; the model's own end tokens always do."""


class KeepConfig(Schema):
    """Which arrays of a completion are stored beside its text."""

    ids: bool = True
    logprobs: bool = True
    """Log-probabilities and entropies, where the engine gives them."""
    mass: Literal["none", "mean", "tokens"] = "mean"
    """Attention mass per label, where the engine captures it: not at all, its mean over the answer, or every token."""


class JudgeStage(JudgeConfig):
    """A model that is asked about open answers which the rules call wrong."""

    engine: Literal["same"] | LocalConfig | RemoteConfig = "same"
    """`same`: the model under test judges itself (not for published numbers). Otherwise an engine of its own."""


class EvalConfig(Schema):
    """One run: every dataset in every setting on one model."""

    name: str = "eval"
    """How reports call this run."""
    out: str = Field(default="runs/eval", json_schema_extra=_FREE)
    """Folder of the run: local, or gs://bucket/path. A run that is there already is gone on with."""
    engine: EngineConfig
    preset: str | None = Field(default=None, json_schema_extra=_FREE)
    """A known model, such as Qwen3-4B: `sampling` is what its makers recommend, and a local model's `template_kwargs`
    what they set, wherever these keys say nothing themselves."""
    bench: BenchConfig = Field(default_factory=BenchConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    n: int | None = Field(default=None, ge=1)
    """Samples per question; null follows the dataset."""
    k: int | None = Field(default=None, ge=1)
    """Of pass@k; null follows the dataset, and is at most n when n is given."""
    seed: int = 0
    """Of the random streams that tokens are drawn with."""
    keep: KeepConfig = Field(default_factory=KeepConfig)
    judge: JudgeStage | None = None
    template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What a local model's chat template is told, e.g. `{enable_thinking: false}` or `{reasoning_effort: high}`."""
    count_with: Path | None = None
    """For endpoints: a folder whose tokenizer counts the tokens of noise and prompts; null is a rough estimate."""
    prompt_opens_thought: bool | None = None
    """Whether completions begin inside a thought. null: as the chat template says; no for endpoints."""
    shard: str | None = Field(default=None, json_schema_extra=_FREE)
    """`i/n`: do only the i-th of n shares of the questions (by hash), for machines that do not know of each other."""
    hosts: HostsConfig = Field(default_factory=HostsConfig, json_schema_extra=_FREE)
    """Several hosts that know of each other: each has a copy of the model on its own devices, and its share of the
    questions."""

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, data: Any) -> Any:
        """Before all else, so that what a run was asked to do, its identity, holds the numbers and not a name."""
        if not isinstance(data, Mapping) or not isinstance(data.get("preset"), str):
            return data
        preset = load(ModelPreset, data["preset"])
        local = isinstance(engine := data.get("engine"), Mapping) and engine.get("kind") == "local"
        known = {"sampling": preset.sampling.model_dump()}
        known |= {"template_kwargs": dict(preset.template_kwargs)} if local else {}
        return merge(known, data)

    @field_validator("shard")
    @classmethod
    def _shard_form(cls, value: str | None) -> str | None:
        if value is not None:
            match = re.fullmatch(r"([0-9]+)/([0-9]+)", value)
            if not match or not 1 <= int(match[1]) <= int(match[2]):
                raise ValueError(f"shard is i/n with i from 1 to n, such as 1/4; got {value!r}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n is not None and self.k is not None and self.n < self.k:
            raise ValueError(f"pass@k needs n of at least k: n is {self.n}, k is {self.k}")
        if self.count_with is not None and self.engine.kind == "local":
            raise ValueError("count_with is for endpoints; a local model counts with its own tokenizer")
        if self.template_kwargs and self.engine.kind == "remote":
            raise ValueError("template_kwargs are for local models; an endpoint takes engine.extra_body")
        return self
