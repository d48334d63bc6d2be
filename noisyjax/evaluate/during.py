"""Evaluation while a model trains: a sweep on the policy's present weights, stored beside the run like any other."""

from collections.abc import Mapping
from typing import Any

from noisyjax.config import load
from noisyjax.engine.local import LocalEngine
from noisyjax.engine.opened import opened_local
from noisyjax.evaluate.results import load_results
from noisyjax.evaluate.run import evaluate
from noisyjax.evaluate.schema import EvalConfig
from noisyjax.scoring import summarise
from noisyjax.train import Evaluate, Learner, TrainConfig


def evaluator(config: TrainConfig, learner: Learner) -> Evaluate:
    """(weights, step) -> mean accuracy by setting, in [0, 1]; None where nothing was scored.

    Each evaluation is a run of its own in the folder `eval/step-NNNNNN`, for `noisyjax report`.
    """
    sweep = load(EvalConfig, config.evaluate.config, [f"engine.model={config.model}", *config.evaluate.overrides])

    def measure(tree: Any, step: int) -> Mapping[str, float | None]:
        engine: LocalEngine = learner.load_sampler(tree)
        identity = {"training_run": config.out, "step": step}
        mine = sweep.model_copy(update={"out": f"{config.out}/eval/step-{step:06d}", "name": f"step {step}"})
        evaluate(mine, opened_local(engine, identity, sweep.template_kwargs))
        results = load_results(mine.out)
        found = summarise([results.values(cell) for cell in results.cells], draws=1)
        return {setting: result.arithmetic.point for setting, result in found.settings.items()}

    return measure
