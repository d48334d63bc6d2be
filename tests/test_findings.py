"""What GRPO does to the sparse start, where it is far from chance; docs/results.md has all arms and seeds."""

import numpy as np
import pytest

from noisyjax.config import load
from noisyjax.evaluate import EvalConfig, evaluate
from noisyjax.quickstart.arms import GRADED, OR
from noisyjax.quickstart.experiment import NONE, Plan, measured, train
from noisyjax.world import start_model, write_world
from noisyjax.world.files import write_eval


@pytest.mark.slow
def test_outcome_reward_beats_the_start_and_a_graded_reference_keeps_references_exact(tmp_path):
    """Each where it is far from chance in the experiment, here after half of its steps on half of its questions."""
    plan = Plan(tmp_path, starts=("sparse",), seeds=(0,), steps=100, questions=200)
    write_eval(tmp_path / "eval", plan.eval_seed, plan.questions)
    write_world(tmp_path / "world-0", 0, 4, mixes=("grpo",))
    words = [f"engine.model={start_model('sparse')}", f"bench.data={tmp_path / 'eval'}"]
    evaluate(load(EvalConfig, "sweeps/tiny_world", [*words, f"out={plan.folder('sparse', NONE)}"]))
    for arm in (OR, GRADED):
        train(plan, "sparse", arm, 0)

    def share(arm: str, setting: str, *, exact: bool) -> float:
        (values,) = measured(plan, "sparse", arm, exact=exact)[setting]
        assert len(values.values_q) == plan.questions
        return float(np.mean(values.values_q))

    for setting in ("RD", "HN"):
        assert share(OR.folder, setting, exact=False) > share(NONE, setting, exact=False), setting
        assert share(NONE, setting, exact=False) < 0.6  # there is something to gain
    for setting in ("RD", "RC"):
        assert share(GRADED.folder, setting, exact=True) > share(OR.folder, setting, exact=True), setting
