"""A training run from its config to its end: opens what it needs, runs the loop, closes everything."""

from collections.abc import Callable
from contextlib import ExitStack

from noisyjax.engine.device import keep_programs
from noisyjax.engine.opened import open_engine
from noisyjax.judge import EngineJudgeConfig, Judge, VerdictCache, open_judge
from noisyjax.store import open_folder
from noisyjax.train.config import GrpoConfig, SftConfig
from noisyjax.train.grpo import GrpoTask, grpo_loss
from noisyjax.train.learner import Learner, open_learner
from noisyjax.train.loop import Done, Evaluate, run
from noisyjax.train.sft import SftTask, sft_loss

MakeEvaluate = Callable[[Learner], Evaluate]
"""Gives what evaluates in between, once the model is open."""


def train_grpo(config: GrpoConfig, make_evaluate: MakeEvaluate | None = None) -> Done:
    """Run (or go on with) the GRPO run that `config` describes.

    Raises UsageError for what cannot work, before anything is compiled; RunError and Stopped as `loop.run` does.
    """
    keep_programs()
    with ExitStack() as stack:
        learner = open_learner(config, grpo_loss(config))
        stack.callback(learner.close)
        task = GrpoTask(config, learner, _judge(config, stack))
        stack.callback(task.stream.close)
        return run(config, task, make_evaluate(learner) if make_evaluate else None)


def train_sft(config: SftConfig, make_evaluate: MakeEvaluate | None = None) -> Done:
    """The same for supervised training."""
    keep_programs()
    with ExitStack() as stack:
        learner = open_learner(config, sft_loss)
        stack.callback(learner.close)
        task = SftTask(config, learner)
        stack.callback(task.stream.close)
        return run(config, task, make_evaluate(learner) if make_evaluate else None)


def _judge(config: GrpoConfig, stack: ExitStack) -> Judge:
    """The judge, its model on this mesh (time-sliced with the policy) or at an endpoint, its verdicts kept in `out`."""
    if not isinstance(config.judge, EngineJudgeConfig):
        return open_judge(config.judge)
    opened = open_engine(config.judge.engine)
    stack.callback(opened.engine.close)
    log = open_folder(config.out).log("verdicts")
    stack.callback(log.close)
    return open_judge(config.judge, opened.engine, opened.tokenizer, VerdictCache(log))
