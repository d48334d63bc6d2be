"""What rewards may do wrong, and what may be wrong with completions: counted, finite, and never the end of a run by
itself.
"""

import importlib
import math
import sys

import numpy as np
import pytest

from noisyjax import models
from noisyjax.errors import RunError
from noisyjax.train.runs import train_grpo
from noisyjax.train.state import Checkpoints
from noisyjax.train.watch.log import read_metrics


def params_of(done):
    return {path: np.asarray(x) for path, x in done.tree.params.items()}


def start_of(config):
    return {path: np.asarray(x) for path, x in models.load(config.model, dtype="float32").params.items()}


def save_broken(folder, out):
    """The model with one weight that is nan."""
    loaded = models.load(folder, dtype="float32")
    params = dict(loaded.params)
    path = next(path for path in params if "scale" in path)
    params[path] = params[path].at[0].set(np.nan)
    models.save(params, loaded.cfg, out, source=folder)
    return out


def moved(done, config):
    """Largest change of any weight since the start; all of them are finite."""
    now, then = params_of(done), start_of(config)
    assert all(np.isfinite(x).all() for x in now.values())
    return max(float(np.abs(now[path] - x).max()) for path, x in then.items())


def finite_lines(config):
    lines = read_metrics(config.out)
    assert all(value is None or math.isfinite(value) for line in lines for value in line.values())
    return lines


def test_a_reward_function_that_raises_at_times(grpo, capfd):
    config = grpo(reward={"reward_fn": "toy_rewards:fails_at_times"}, prompts=8, data={"shuffle": False}, steps=1)
    done = train_grpo(config)
    (line,) = finite_lines(config)
    assert line["sample/undefined"] == 4 / 32  # r1 of r0 ... r7, four samples
    assert line["group/undefined"] == 1 / 8
    assert "reward_fn failed on 4 of 32 samples (4 ValueError); the first: ValueError: no digit today" in (
        capfd.readouterr().err
    )
    assert moved(done, config) > 1e-4


def test_a_reward_function_that_fails_too_often_stops_the_run(grpo):
    config = grpo(reward={"reward_fn": "toy_rewards:always_fails"})
    with pytest.raises(RunError, match=r"failed on 12 of 12 samples \(12 OSError\).*away.*max_failed = 0.5"):
        train_grpo(config)


def test_a_reward_function_that_abstains(grpo):
    """Groups without any reward teach nothing and do no harm; the others learn."""
    config = grpo(reward={"reward_fn": "toy_rewards:sometimes_undecided"}, prompts=8, data={"shuffle": False}, steps=1)
    done = train_grpo(config)
    (line,) = finite_lines(config)
    assert line["group/undefined"] == 5 / 8
    assert line["sample/undefined"] == 20 / 32
    assert moved(done, config) > 1e-4


def test_constant_groups_teach_nothing(grpo):
    """Without weight decay the weights stay as they are: rewards that are all the same have no gradient."""
    config = grpo(reward={"reward_fn": "toy_rewards:constant"}, optimizer={"weight_decay": 0.0})
    done = train_grpo(config)
    lines = finite_lines(config)
    assert [line["group/zero_std"] for line in lines] == [1, 1, 1]
    assert [line["update/grad_norm"] for line in lines] == [0, 0, 0]
    assert done.skipped == 0
    assert moved(done, config) == 0


def test_constant_groups_that_are_dropped_are_no_bad_steps(grpo, capfd):
    """Four steps with nothing to learn from are more than `bad_steps` allows, and no reason to stop."""
    config = grpo(reward={"reward_fn": "toy_rewards:constant"}, advantage={"flat_groups": "drop"}, steps=4)
    done = train_grpo(config)
    lines = finite_lines(config)
    assert [line["update/idle"] for line in lines] == [1] * 4
    assert all("loss" not in line for line in lines)
    assert (done.step, done.skipped, moved(done, config)) == (4, 0, 0)
    assert "step 1: no sample has anything to teach" in capfd.readouterr().err


@pytest.fixture
def wild(grpo, monkeypatch):
    """`wild(records, **changes)`: a run on r0 r1 | r2 r3 | ... in which these records' advantages are infinite."""

    def make(records, **changes):
        monkeypatch.setattr(sys.modules["toy_rewards"], "WILD", set(records))
        reward = {"reward_fn": "toy_rewards:wild_for_some"}
        every = {"every_steps": 1, "keep": 9}
        data = {"shuffle": False}
        return grpo(prompts=2, data=data, advantage={"scale": "none"}, reward=reward, state=every, **changes)

    importlib.import_module("toy_rewards")
    return make


def test_a_bad_step_is_skipped_and_the_run_goes_on(wild, capfd):
    """Step 2 of 4 has an infinite advantage: it changes nothing, its figures are null, its neighbours learn."""
    config = wild({"r2"}, steps=4)
    done = train_grpo(config)
    lines = finite_lines(config)
    assert [line["skipped"] for line in lines] == [0, 1, 0, 0]
    assert [line["update/ok"] for line in lines] == [1, 0, 1, 1]
    assert lines[1]["loss"] is None
    assert (done.step, done.skipped) == (4, 1)
    assert "step 2: the loss or its gradient is no number; the step is skipped" in capfd.readouterr().err
    assert Checkpoints(config.out, config.state, {}).steps == [1, 3, 4]
    assert moved(done, config) > 1e-4


def test_a_bad_last_step_loses_nothing(wild):
    """The run ends with a checkpoint of its last step, which holds what the good ones made; it can be raised."""
    config = wild({"r4"}, steps=3)
    done = train_grpo(config)
    assert Checkpoints(config.out, config.state, {}).steps == [1, 2, 3]
    longer = train_grpo(wild(set(), steps=4))
    assert read_metrics(config.out)[2]["skipped"] == 1
    assert (done.step, longer.step) == (3, 4)


@pytest.mark.parametrize("good", [0, 2])
def test_bad_steps_in_a_row_stop_the_run(wild, good):
    bad = {f"r{i}" for i in range(2 * good, 24)}
    config = wild(bad, steps=9)
    held = "the last good checkpoint is of step 2" if good else "there is no checkpoint yet"
    with pytest.raises(RunError, match=rf"3 steps in a row .*no number \(the last was step {good + 3}\); {held}"):
        train_grpo(config)
    assert [line["skipped"] for line in finite_lines(config)] == [0] * good + [1, 1, 1]


def test_weights_that_are_no_numbers(grpo, folder, tmp_path):
    """A broken start: the sampler has nothing to draw from, or the loss is none. A readable end, not a hang."""
    broken = save_broken(folder, tmp_path / "broken")
    with pytest.raises(RunError, match="in a row had a loss or gradient that is no number"):
        train_grpo(grpo(model=broken, steps=9))
