"""A model in the forms that training needs: float32 master weights, a sampler, a reference, and the compiled update.

The master weights are cut over the training mesh; the sampler has the same mesh, whole along fsdp, and gets the weights
anew, in its own type and layout, once per step.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from noisyjax import hosts, models
from noisyjax.chat import ChatTokenizer
from noisyjax.engine.config import CaptureConfig, LocalConfig
from noisyjax.engine.local import LocalEngine
from noisyjax.engine.mesh import host_layout, open_layout
from noisyjax.engine.weights import Parked, relayout
from noisyjax.errors import UsageError
from noisyjax.models import lora
from noisyjax.models.sharding import SERVING, TRAINING, Layout, platform
from noisyjax.train.config import GrpoConfig, TrainConfig
from noisyjax.train.objective.metrics import Metrics
from noisyjax.train.step.optimizer import optimizer
from noisyjax.train.step.rows import Group, MicroBatch, Rows
from noisyjax.train.step.update import LossFn, Params, Updater


@dataclass
class Learner:
    """What a training task works with. `tree` is what a checkpoint holds."""

    cfg: models.ModelConfig
    tokenizer: ChatTokenizer
    updater: Updater
    sampler: LocalEngine | None = None
    reference: Params | Parked | None = None
    first: Params | None = None
    """The weights before training, until `start` has taken them."""

    def start(self) -> Any:
        """The state before the first update."""
        if self.first is None:
            raise RuntimeError("a learner starts once")
        tree, self.first = self.updater.start(self.first), None
        return tree

    def params(self, tree: Any) -> Params:
        """What a state trains: the policy's weights, or its adapter's."""
        return tree.params

    def engine(self, config: LocalConfig, tree: Any) -> LocalEngine:
        """An engine of its own with the weights of a state, such as evaluation wants; `refresh` gives it later ones.

        It lies on the devices that train, whatever mesh `config` names: weights do not travel.
        """
        dtype = self.updater.config.dtype if config.dtype == "auto" else config.dtype
        with hosts.collective():
            return _engine(config, self.cfg, self.updater.weights(tree), dtype, self.tokenizer, self.updater.layout)

    def refresh(self, engine: LocalEngine, tree: Any) -> None:
        """Give an engine the weights of a state."""
        with hosts.collective():
            engine.load_params(self.updater.weights(tree))

    def reference_params(self, tree: Any) -> Params:
        """The weights that KL is measured against. UsageError when there are none."""
        if self.reference is None:
            raise UsageError("this run has no reference model: set loss.beta above 0 before it starts")
        return self.reference.fetch() if isinstance(self.reference, Parked) else self.reference

    def load_sampler(self, tree: Any) -> LocalEngine:
        """The sampler with the policy's present weights."""
        if self.sampler is None:
            raise RuntimeError("this learner was opened without a sampler")
        self.refresh(self.sampler, tree)
        return self.sampler

    def batches(self, groups: Sequence[Group]) -> list[MicroBatch]:
        return self.updater.batches(groups)

    def logprobs(self, params: Params, rows: Rows) -> np.ndarray:
        """Log-probabilities of the rows' targets, float32 [B, P]."""
        with hosts.collective():
            logprob_bp = self.updater.logprobs(params, rows)[0]
            if logprob_bp.is_fully_addressable:
                return np.asarray(logprob_bp)
            return np.asarray(multihost_utils.process_allgather(logprob_bp, tiled=True))

    def update(self, tree: Any, rows: Sequence[Rows]) -> tuple[Any, Metrics, bool]:
        """One optimizer step; `tree` is donated. False: the numbers were none, and the state is what it was."""
        done = self.updater.update(tree, rows)
        return done.state, done.metrics, bool(done.ok)

    def close(self) -> None:
        if self.sampler is not None:
            self.sampler.close()


def open_learner(config: TrainConfig, loss: LossFn) -> Learner:
    """Read the model and prepare everything that runs.

    Raises UsageError for what cannot work (a window too short, a mesh this machine lacks), before anything is compiled.
    """
    cfg, layout, tokenizer, first = hosts.agree(lambda: _read(config))
    mesh, rules = (layout.mesh, layout.rules) if layout else (None, None)
    frozen, scale = (first, config.lora.scale) if config.lora else (None, 1.0)
    valid_v = np.asarray(tokenizer.decodable_vocab(cfg.vocab_size))
    sampled = isinstance(config, GrpoConfig)
    updater = Updater(
        cfg,
        optimizer(config.optimizer, config.optimizer_steps),
        loss,
        config.update,
        temperature=config.rollout.temperature if isinstance(config, GrpoConfig) else 1.0,
        valid_v=valid_v if sampled else None,
        frozen=frozen,
        scale=scale,
        layout=layout,
        router_aux=_router_aux(config, cfg),
    )
    learner = Learner(cfg, tokenizer, updater, first=first)
    if isinstance(config, GrpoConfig):
        learner.sampler = _sampler(config, cfg, first, tokenizer, layout)
        if config.loss.needs_reference:
            learner.reference = {} if config.lora else _reference(config, cfg, first, layout)
    if config.lora:
        learner.first = lora.init_adapters(cfg, config.lora.rank, config.lora.targets, config.seed, mesh, rules)
    return learner


def _read(config: TrainConfig) -> tuple[models.ModelConfig, Layout | None, ChatTokenizer, dict[str, jax.Array]]:
    """What a host may fail to find or to fit, before the devices of all of them compute together."""
    cfg = models.read_config(config.model)
    layout = _layout(config, cfg)
    mesh, rules = (layout.mesh, layout.rules) if layout else (None, None)
    tokenizer = ChatTokenizer.load(config.model)
    check_window(config, cfg)
    # What is trained is float32; the base of an adapter is never written to, so it stays in the products' type.
    dtype = config.update.dtype if config.lora else "float32"
    return cfg, layout, tokenizer, dict(models.load(config.model, mesh, rules, dtype).params)


def _layout(config: TrainConfig, cfg: models.ModelConfig) -> Layout | None:
    """Where the model lies: over the devices of all hosts."""
    several, devices = hosts.count(), jax.devices()
    if several > 1 and config.mesh.devices != len(devices):
        raise UsageError(
            f"mesh takes {config.mesh.devices} devices; {several} hosts have {len(devices)}, and all of them train: "
            f"mesh.fsdp={len(devices)} would do, or mesh.data={len(devices)}"
        )
    if told := idle(config, devices):
        print(told, file=sys.stderr, flush=True)
    return open_layout(
        config.mesh, cfg, TRAINING, devices=devices if several > 1 else None, sequence=config.mesh.sequence
    )


def idle(config: TrainConfig, devices: Sequence[Any]) -> str:
    """A line where accelerators have nothing to do; empty where all have, and for a CPU's."""
    judge: Any = getattr(config, "judge", None)
    own = judge.engine.mesh.devices if getattr(judge, "placement", "shared") == "split" else 0
    used = config.mesh.devices + own
    if used >= len(devices) or devices[0].platform == "cpu":
        return ""
    return f"{used} of {len(devices)} devices are used: mesh.fsdp={len(devices) - own} alone would use all"


def _router_aux(config: TrainConfig, cfg: models.ModelConfig) -> float:
    """Weight of the router's balance in the loss."""
    given = config.update.router_aux_coefficient
    if cfg.moe is None:
        if given:
            raise UsageError(f"update.router_aux_coefficient={given}: this {cfg.family} model has no experts")
        return 0.0
    if given is not None:
        return given
    return 0.0 if isinstance(config, GrpoConfig) else cfg.moe.aux_coefficient


def _sampler(
    config: GrpoConfig, cfg: models.ModelConfig, first: Params, tokenizer: ChatTokenizer, layout: Layout | None
) -> LocalEngine:
    rollout = config.rollout
    local = LocalConfig(
        model=config.model,
        dtype="auto",
        slots=rollout.slots,
        chunk=rollout.chunk,
        min_prefix=rollout.min_prefix,
        # Every step's prompts have other lengths; the programs are those of the longest from the start.
        row=prompt + rollout.max_tokens if (prompt := config.data.prompt.max_prompt_tokens) else None,
        capture=CaptureConfig(logprobs=True, entropy=config.loss.entropy_share < 1),
        offload=rollout.offload,
    )
    dtype = config.update.dtype if rollout.dtype == "auto" else rollout.dtype
    return _engine(local, cfg, first, dtype, tokenizer, layout)


def _engine(
    config: LocalConfig,
    cfg: models.ModelConfig,
    params: Params,
    dtype: str,
    tokenizer: ChatTokenizer,
    layout: Layout | None,
) -> LocalEngine:
    """A local engine on weights that are there already: on the devices of `layout`, laid out to sample with."""
    stacked = config.stacked if config.stacked is not None else platform(layout) != "cpu"
    serving = None
    if layout is not None:
        several = hosts.count() > 1
        serving = host_layout(layout, SERVING, jax.process_index()) if several else Layout(layout.mesh, SERVING)
    return LocalEngine(config, relayout(params, cfg, dtype, stacked, serving), tokenizer)


def _reference(config: GrpoConfig, cfg: models.ModelConfig, first: Params, layout: Layout | None) -> Params | Parked:
    """Frozen weights in the compute type: the start's, or those of another folder of the same shape."""
    dtype = config.update.dtype
    if config.reference is None:
        params = {path: jax.numpy.array(x, dtype) for path, x in first.items()}
    else:
        mesh, rules = (layout.mesh, layout.rules) if layout else (None, None)
        loaded = models.load(config.reference, mesh, rules, dtype)
        if loaded.cfg != cfg:
            raise UsageError(f"reference={config.reference} is another architecture than model={config.model}")
        params = loaded.params
    return Parked(params) if config.reference_offload else params


def check_window(config: TrainConfig, cfg: models.ModelConfig) -> None:
    """UsageError where prompts and responses of the config may be longer than the model's window."""
    if not isinstance(config, GrpoConfig):
        return
    prompt, response, row = config.data.prompt.max_prompt_tokens, config.rollout.max_tokens, config.update.row_tokens
    if prompt is None and row < cfg.max_positions:
        raise UsageError(
            f"data.prompt.max_prompt_tokens=null allows prompts up to the model's window of {cfg.max_positions}, and "
            f"update.row_tokens={row} would not hold them; with max_prompt_tokens={max(1, row - response)} it does"
        )
    longest = (prompt or 0) + response
    if longest > cfg.max_positions:
        raise UsageError(
            f"data.prompt.max_prompt_tokens={prompt} and rollout.max_tokens={response} make {longest} tokens, beyond "
            f"the model's window of {cfg.max_positions}"
        )
