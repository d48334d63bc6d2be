"""Evaluation while a model trains: a sweep on the policy's present weights, stored beside the run like any other."""

from collections.abc import Mapping
from typing import Any

from noisyjax.config import load
from noisyjax.engine.config import LocalConfig
from noisyjax.engine.local import LocalEngine
from noisyjax.engine.opened import opened_local
from noisyjax.errors import UsageError
from noisyjax.evaluate.results import load_results
from noisyjax.evaluate.run import evaluate
from noisyjax.evaluate.schema import EvalConfig
from noisyjax.scoring import summarise
from noisyjax.train import Evaluate, Learner, TrainConfig


def evaluator(config: TrainConfig, learner: Learner) -> Evaluate:
    """(weights, step) -> mean accuracy by setting, in [0, 1]; None where nothing was scored.

    Each evaluation is a run of its own in the folder `eval/step-NNNNNN`, for `noisyjax report`. The engine is one of
    its own, as the sweep describes it (slots, capture), so that what is measured does not depend on how rollouts are
    drawn. Raises UsageError when the sweep is for an endpoint.
    """
    sweep = load(EvalConfig, config.evaluate.config, [f"engine.model={config.model}", *config.evaluate.overrides])
    if not isinstance(sweep.engine, LocalConfig):
        raise UsageError(f"evaluate.config={config.evaluate.config} asks an endpoint; training needs a local engine")
    local = sweep.engine
    engine: LocalEngine | None = None

    def measure(tree: Any, step: int) -> Mapping[str, float | None]:
        nonlocal engine
        if engine is None:
            engine = learner.engine(local, tree)
        else:
            learner.refresh(engine, tree)
        identity = {"training_run": config.out, "step": step}
        mine = sweep.model_copy(update={"out": f"{config.out}/eval/step-{step:06d}", "name": f"step {step}"})
        evaluate(mine, opened_local(engine, identity, sweep.template_kwargs))
        engine.close()  # the caches; the next step's memory is the training's
        results = load_results(mine.out)
        found = summarise([results.values(cell) for cell in results.cells], draws=1)
        return {setting: result.arithmetic.point for setting, result in found.settings.items()}

    return measure
