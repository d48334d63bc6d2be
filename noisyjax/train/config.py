"""The two training configs, GRPO and SFT: the rooms' own schemas gathered, and what must hold between them.

A mistake in a config is told in a moment: no module that holds a schema imports jax, optax or transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from noisyjax.config import Schema
from noisyjax.engine.config import MeshConfig
from noisyjax.hosts import HostsConfig
from noisyjax.instruct import DataConfig
from noisyjax.judge import EngineJudgeConfig, RuleJudgeConfig
from noisyjax.train.objective.config import AdvantageConfig, LossConfig
from noisyjax.train.rewards.config import GuardConfig, RewardConfig
from noisyjax.train.rollout import RolloutConfig
from noisyjax.train.step.config import LoraConfig, OptimizerConfig, UpdateConfig
from noisyjax.train.watch.log import LogConfig

_FREE: dict[str, Any] = {"affects_results": False}


class EvaluateConfig(Schema):
    """Evaluation in between, on the present weights."""

    every: int = Field(default=0, ge=0, json_schema_extra=_FREE)
    """Steps between two evaluations; one more before the first step and one after the last. 0: none."""
    config: str = Field(default="sweeps/quickstart", json_schema_extra=_FREE)
    """Config of `noisyjax eval`; its model and folder are this run's."""
    overrides: tuple[str, ...] = Field(default=(), json_schema_extra=_FREE)
    """`key=value` words for it."""


class StateConfig(Schema):
    """When checkpoints are written and which are kept. The last step and SIGTERM always write one."""

    every_steps: int = Field(default=50, ge=1, json_schema_extra=_FREE)
    """A checkpoint at every multiple of this number of steps."""
    every_minutes: float | None = Field(default=15.0, gt=0, json_schema_extra=_FREE)
    """Another when the last one is older than this; null: by steps alone."""
    keep: int = Field(default=2, ge=1, json_schema_extra=_FREE)
    """The latest ones kept."""
    keep_every: int | None = Field(default=None, ge=1, json_schema_extra=_FREE)
    """Those at multiples of this step are never deleted."""
    keep_best: int = Field(default=0, ge=0, json_schema_extra=_FREE)
    """The best ones kept beside the latest, by `metric`."""
    metric: str = Field(default="reward", json_schema_extra=_FREE)
    """A name from the run's metrics."""
    better: Literal["higher", "lower"] = Field(default="higher", json_schema_extra=_FREE)
    restore: int | Literal["latest"] = Field(default="latest", json_schema_extra=_FREE)
    """Go on from this step. A number below the latest gives up the steps after it."""


class LoopConfig(Schema):
    """What every kind of training run has."""

    name: str = Field(default="train", json_schema_extra=_FREE)
    """Shown in progress and reports."""
    out: str = Field(json_schema_extra=_FREE)
    """Folder of the run: checkpoints, metrics, samples, the resolved config."""
    seed: int = 0
    """Seeds the data order, the sampling and whatever else is drawn."""
    steps: int = Field(ge=1, json_schema_extra=_FREE)
    """Length of the run. May be raised to go on with a finished one, where the learning rate's schedule allows it."""
    bad_steps: int = Field(default=3, ge=1, json_schema_extra=_FREE)
    """Steps in a row with a loss or gradient that is no number before the run stops; each is skipped and counted."""
    hosts: HostsConfig = Field(default=HostsConfig(), json_schema_extra=_FREE)
    """Several hosts that train one model: `mesh` is then cut over the devices of all."""
    evaluate: EvaluateConfig = EvaluateConfig()
    state: StateConfig = StateConfig()
    log: LogConfig = LogConfig()


class TrainMeshConfig(MeshConfig):
    """The devices that train and sample."""

    data: int = Field(default=1, ge=1, json_schema_extra=_FREE)
    """Cuts the batch and nothing else."""
    sequence: bool = Field(default=False, json_schema_extra=_FREE)
    """Between layers, cut the rows' tokens over `tensor` too: for rows whose activations do not fit otherwise."""


class PlacedJudgeConfig(EngineJudgeConfig):
    """Verdicts by a model that may share the policy's devices."""

    placement: Literal["shared", "split"] = Field(default="shared", json_schema_extra=_FREE)
    """shared: on the policy's devices, in turns with it; `engine.offload` and `rollout.offload` make room for whoever
    is at work. split: on devices of its own, the last ones, as many as `engine.mesh` has; the policy's `mesh` leaves
    them free."""

    @model_validator(mode="after")
    def _can_be_placed(self) -> Self:
        if self.placement == "split" and self.engine.kind != "local":
            raise ValueError("placement: split is for a judge of engine.kind: local; an endpoint has its own devices")
        return self


class TrainConfig(LoopConfig):
    """What SFT and GRPO have in common."""

    model: Path = Field(json_schema_extra=_FREE)
    """Hugging Face folder of the start. A run remembers what is in it, not where it lies."""
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig | None = None
    """Train adapters; null trains all weights."""
    update: UpdateConfig = UpdateConfig()
    mesh: TrainMeshConfig = TrainMeshConfig()

    @property
    def optimizer_steps(self) -> int:
        """Updates of the whole run, which the learning rate's schedule is laid over."""
        return self.steps

    def schedule_identity(self) -> Mapping[str, Any]:
        """For a run's identity: its length matters where the learning rate depends on it."""
        fixed = self.optimizer.schedule == "constant" and not self.optimizer.warmup
        return {} if fixed else {"schedule_steps": self.steps}

    @model_validator(mode="after")
    def _rows_can_be_cut(self) -> Self:
        multiple = 8 * self.mesh.tensor  # rows are an eighth as long at the shortest
        if self.mesh.sequence and self.update.row_tokens % multiple:
            raise ValueError(
                f"mesh.sequence cuts rows of every length into mesh.tensor: {self.mesh.tensor} parts, so "
                f"update.row_tokens: {self.update.row_tokens} must be a multiple of {multiple}"
            )
        return self


class SftConfig(TrainConfig):
    """Supervised training on chats or on NoisyInstruct records."""

    batch: int = Field(default=128, ge=1)
    """Examples per step."""


class GrpoConfig(TrainConfig):
    """Group-relative policy optimisation with verdicts as rewards."""

    prompts: int = Field(default=32, ge=1)
    """Prompts per step; each gets `rollout.samples` completions."""
    rollout: RolloutConfig = RolloutConfig()
    judge: Annotated[RuleJudgeConfig | PlacedJudgeConfig, Field(discriminator="kind")] = RuleJudgeConfig()
    reward: RewardConfig = RewardConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    generation_batches: int = Field(default=1, ge=1)
    """Dynamic sampling: draw up to this many batches of prompts until `prompts` groups have something to teach; the
    others are left out. 1: take the batch as it comes."""
    updates: int = Field(default=1, ge=1)
    """Passes over each batch of completions; above 1 the ratio to the old policy begins to matter."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps that a pass is cut into, by prompts."""
    reference: Path | None = Field(default=None, json_schema_extra=_FREE)
    """The model that KL is measured against; null: the start. Loaded only where loss.beta is above 0."""
    reference_offload: bool = Field(default=False, json_schema_extra=_FREE)
    """Keep it in host memory but for the moments in which it is asked."""

    @property
    def optimizer_steps(self) -> int:
        return self.steps * self.updates * self.minibatches

    @property
    def samples(self) -> int:
        """Completions per step."""
        return self.prompts * self.rollout.samples

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.prompts % self.minibatches:
            raise ValueError(f"minibatches: {self.minibatches} does not divide prompts: {self.prompts}")
        if self.rollout.samples < 2:
            raise ValueError("rollout.samples: 1 leaves nothing to compare with: a group needs at least 2")
        if self.reference is not None and self.lora is not None:
            raise ValueError(
                "reference cannot be given with lora: KL is measured against the model without its adapter"
            )
        if self.reference is not None and not self.loss.needs_reference:
            raise ValueError("reference is given, but loss.beta is 0: nothing is measured against it")
        if self.reward.rationale == "graded" and self.reward.asks_rationale and self.judge.kind == "engine":
            raise ValueError("reward.rationale: graded needs a judge that grades: judge.kind: rules")
        if self.reward.distraction.judged and self.judge.kind == "rules":
            raise ValueError("reward.distraction.judged: true needs a model to ask: judge.kind: engine")
        penal = [name for name, guard in self.reward.guards if isinstance(guard, GuardConfig) and guard.penalty]
        penal += ["overlong_buffer"] if self.advantage.overlong_buffer else []
        if self.advantage.per_component and penal:
            raise ValueError(
                f"advantage.per_component: true normalises each term, so the size of a penalty ({', '.join(penal)}) "
                "would vanish: use one or the other"
            )
        limit = self.rollout.max_tokens
        if self.advantage.overlong_buffer > limit:
            raise ValueError(f"advantage.overlong_buffer is above rollout.max_tokens: {limit}")
        prompt, row = self.data.prompt.max_prompt_tokens, self.update.row_tokens
        if prompt is not None and row < prompt + limit:
            raise ValueError(
                f"update.row_tokens: {row} is too short for a prompt of data.prompt.max_prompt_tokens: {prompt} and a "
                f"response of rollout.max_tokens: {limit}; {prompt + limit} would do"
            )
        return self
