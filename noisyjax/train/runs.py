"""A training run from its config to its end: opens what it needs, runs the loop, closes everything."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import jax

from noisyjax import hosts
from noisyjax.engine.config import LocalConfig
from noisyjax.engine.device import keep_programs
from noisyjax.engine.mesh import open_layout
from noisyjax.engine.opened import open_engine
from noisyjax.errors import UsageError
from noisyjax.judge import Judge, VerdictCache, open_judge
from noisyjax.models import read_config
from noisyjax.models.sharding import SERVING
from noisyjax.store import check_model, open_folder
from noisyjax.train.config import GrpoConfig, PlacedJudgeConfig, SftConfig, TrainConfig
from noisyjax.train.grpo import GrpoTask, grpo_loss
from noisyjax.train.learner import Learner, open_learner
from noisyjax.train.loop import Done, Evaluate, finished, run
from noisyjax.train.sft import SftTask, sft_loss

MakeEvaluate = Callable[[Learner], Evaluate]
"""Gives what evaluates in between, once the model is open."""


def train_grpo(config: GrpoConfig, make_evaluate: MakeEvaluate | None = None) -> Done:
    """Run (or go on with) the GRPO run that `config` describes.

    Raises UsageError for what cannot work, before anything is compiled; RunError and Stopped as `loop.run` does.
    """
    if (done := finished(config, GrpoTask.kind)) is not None:
        return done
    keep_programs()
    hosts.agree(lambda: _check_models(config))
    devices = hosts.agree(lambda: judge_devices(config))
    with ExitStack() as stack:
        learner = open_learner(config, grpo_loss(config))
        stack.callback(learner.close)
        task = GrpoTask(config, learner, _judge(config, stack, devices))
        stack.callback(task.stream.close)
        return run(config, task, make_evaluate(learner) if make_evaluate else None)


def train_sft(config: SftConfig, make_evaluate: MakeEvaluate | None = None) -> Done:
    """The same for supervised training."""
    if (done := finished(config, SftTask.kind)) is not None:
        return done
    keep_programs()
    hosts.agree(lambda: _check_models(config))
    with ExitStack() as stack:
        learner = open_learner(config, sft_loss)
        stack.callback(learner.close)
        task = SftTask(config, learner)
        stack.callback(task.stream.close)
        return run(config, task, make_evaluate(learner) if make_evaluate else None)


def _check_models(config: TrainConfig) -> None:
    """UsageError that names the key of a model that is not there."""
    check_model("model", config.model)
    if not isinstance(config, GrpoConfig):
        return
    if config.reference is not None:
        check_model("reference", config.reference)
    if isinstance(config.judge, PlacedJudgeConfig) and isinstance(config.judge.engine, LocalConfig):
        check_model("judge.engine.model", config.judge.engine.model)


def judge_devices(config: GrpoConfig) -> Sequence[Any] | None:
    """Those that the judge may choose from; None for all of this host, or where it needs none.

    Raises UsageError where policy and judge do not fit beside each other, and UsageError or ShardingError where the
    judge's mesh does not suit the devices or its model.
    """
    judge = config.judge
    if not isinstance(judge, PlacedJudgeConfig) or not isinstance(judge.engine, LocalConfig):
        return None
    here, devices = jax.local_devices(), None
    if judge.placement == "split":
        if hosts.count() > 1:
            raise UsageError(
                "judge.placement=split is for one host: on several, each has a judge beside its share of the policy; "
                "let them take turns: judge.placement=shared, judge.engine.offload=true; or ask a judge on hosts of "
                "its own, an endpoint: judge.placement=shared, judge.engine.kind=remote with judge.engine.base_url"
            )
        policy, own = config.mesh.devices, judge.engine.mesh.devices
        if policy + own > len(here):
            raise UsageError(
                f"judge.placement=split: mesh takes {policy} devices and judge.engine.mesh {own}, of {len(here)}: "
                "make one of them smaller, or let them take turns: judge.placement=shared, judge.engine.offload=true"
            )
        devices = here[-own:]
    open_layout(judge.engine.mesh, read_config(judge.engine.model), SERVING, devices=devices)
    return devices


def _judge(config: GrpoConfig, stack: ExitStack, devices: Sequence[Any] | None) -> Judge:
    """The judge, its model on `devices` or at an endpoint, its verdicts kept in `out`."""
    if not isinstance(config.judge, PlacedJudgeConfig):
        return open_judge(config.judge)
    opened = open_engine(config.judge.engine, devices=devices)
    stack.callback(opened.engine.close)
    log = open_folder(config.out).log("verdicts" if hosts.first() else f"verdicts-{hosts.index()}")
    stack.callback(log.close)
    return open_judge(config.judge, opened.engine, opened.tokenizer, VerdictCache(log))
