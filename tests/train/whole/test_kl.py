"""Several passes over a batch, and KL against a reference in the loss and in the reward."""

import numpy as np
import pytest

from noisyjax import models
from noisyjax.errors import UsageError
from noisyjax.train import learner
from noisyjax.train.runs import train_grpo
from noisyjax.train.watch.log import read_metrics

VARIED = {"reward_fn": "toy_rewards:varied"}


def lines_of(config):
    done = train_grpo(config)
    return read_metrics(config.out), {path: np.asarray(x) for path, x in done.tree.params.items()}


def test_two_passes_over_three_parts(grpo):
    """Six updates a step: all but the first see a ratio that has moved, and the mismatch is that of the old policy."""
    lines, _ = lines_of(grpo(reward=VARIED, updates=2, minibatches=3, steps=2, optimizer={"learning_rate": 1e-2}))
    for line in lines:
        assert line["ratio/min"] < 0.99
        assert line["ratio/max"] > 1.01
        assert line["log_ratio/abs_max"] > 0.05
        assert abs(line["kl/old"]) > 1e-5
        assert line["clip/low"] + line["clip/high"] > 0
        assert line["mismatch/abs/max"] < 1e-4  # old against the sampler, not new
        assert (line["update/ok"], line["update/idle"]) == (1, 0)


def test_one_pass_is_on_policy(grpo):
    lines, _ = lines_of(grpo(reward=VARIED))
    assert {(line["ratio/min"], line["ratio/max"], line["log_ratio/abs_max"], line["kl/old"]) for line in lines} == {
        (1.0, 1.0, 0.0, 0.0)
    }


def test_without_beta_no_reference_is_loaded(grpo, monkeypatch):
    monkeypatch.setattr(learner, "_reference", lambda *_: pytest.fail("a reference was loaded"))
    lines, _ = lines_of(grpo(reward=VARIED, steps=1))
    assert "kl" not in lines[0]


@pytest.mark.slow
def test_kl_in_the_loss_holds_the_policy_back(grpo):
    """The same rewards with and without a strong pull to the start: KL is 0 at first and smaller ever after."""
    fast = {"reward": VARIED, "steps": 4, "optimizer": {"learning_rate": 1e-2}}
    free, _ = lines_of(grpo("free", loss={"beta": 1e-9}, **fast))
    held, _ = lines_of(grpo("held", loss={"beta": 5.0}, **fast))
    assert free[0]["kl"] == held[0]["kl"] == pytest.approx(0, abs=1e-9)
    assert held[0]["loss/kl"] == pytest.approx(0, abs=1e-8)
    assert held[-1]["kl"] < 0.75 * free[-1]["kl"]
    assert held[-1]["loss/kl"] == pytest.approx(5 * held[-1]["kl"], rel=0.1)  # k3, sequence means against token means


@pytest.mark.slow
def test_kl_in_the_reward(grpo):
    """At the start it is nothing; later it is part of the advantages, so the trajectories part."""
    fast = {"steps": 3, "optimizer": {"learning_rate": 1e-2}, "reward": VARIED}
    without, plain = lines_of(grpo("without", **fast))
    lines, params = lines_of(grpo("within", loss={"beta": 0.5, "kl_in": "reward", "kl": "k1"}, **fast))
    assert lines[0]["advantage/abs"] == pytest.approx(without[0]["advantage/abs"], abs=1e-3)
    assert lines[1]["advantage/abs"] != pytest.approx(without[1]["advantage/abs"], abs=1e-3)
    assert abs(lines[2]["kl"]) > 1e-3
    assert all("loss/kl" not in line for line in lines)
    assert max(np.abs(params[path] - plain[path]).max() for path in params) > 1e-3


def test_a_reference_of_its_own(grpo, folder, tmp_path, save_model):
    """KL is measured against that folder from the first step on; another architecture is refused."""
    loaded = models.load(folder, dtype="float32")
    other = {path: x * 1.1 for path, x in loaded.params.items()}
    models.save(other, loaded.cfg, tmp_path / "other", source=folder)
    lines, _ = lines_of(grpo(reward=VARIED, steps=1, loss={"beta": 0.1}, reference=tmp_path / "other"))
    assert lines[0]["kl"] > 1e-4
    save_model(tmp_path / "smaller", n_layers=1)
    with pytest.raises(UsageError, match="is another architecture than model="):
        train_grpo(grpo("no", loss={"beta": 0.1}, reference=tmp_path / "smaller"))
