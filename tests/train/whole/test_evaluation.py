"""Evaluation in between, on the policy's present weights."""

import json
import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from noisyjax.evaluate import evaluator
from noisyjax.evaluate.results import load_results
from noisyjax.interrupts import Stopped
from noisyjax.train.runs import train_grpo
from noisyjax.train.watch.log import read_metrics

SWEEP = (
    "bench.datasets=[quickstart_facts]",
    "bench.settings=[ND,RD]",
    "bench.questions=2",
    "bench.distractor_tokens=64",
    "sampling.max_tokens=8",
    "engine.capture.attention=none",
)


@pytest.fixture
def evaluated(grpo_in, tmp_path, tmp_path_factory, save_model):
    model = save_model(tmp_path_factory.mktemp("wide") / "model", max_positions=4096)

    def make(out="run", **changes):
        measured = {"every": 2, "overrides": SWEEP}
        reward = {"reward_fn": "toy_rewards:varied"}
        return grpo_in(tmp_path / out, model=model, evaluate=measured, reward=reward, **changes)

    return make


def train(config):
    return train_grpo(config, lambda learner: evaluator(config, learner))


def test_before_between_and_after(evaluated):
    """Steps 0, 2 and 3, each a stored run with its own weights; the figures stand beside the metrics."""
    config = evaluated()
    done = train(config)
    assert set(done.evaluations) == {0, 2, 3}
    lines = read_metrics(config.out)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert ["eval/ND" in line for line in lines] == [True, False, True, True]
    assert set(done.evaluations[0]) == {"ND", "RD"}
    texts = []
    for step in (0, 2, 3):
        results = load_results(f"{config.out}/eval/step-{step:06d}")
        assert {cell.setting for cell in results.cells} == {"ND", "RD"}
        rows = (Path(config.out) / "eval" / f"step-{step:06d}" / "samples.jsonl").read_text().splitlines()
        texts.append({json.loads(row)["text"] for row in rows})
    assert len(texts[0]) > 1
    assert texts[0] != texts[2]
    plain = train_grpo(evaluated("plain").model_copy(update={"evaluate": type(config.evaluate)()}))
    jax.tree.map(np.testing.assert_array_equal, done.tree.params, plain.tree.params)  # a look changes nothing


@pytest.mark.slow
def test_on_a_mesh(evaluated):
    alone, many = train(evaluated("alone")), train(evaluated("many", mesh={"fsdp": 2, "tensor": 2}))
    assert alone.evaluations == many.evaluations


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 2])
def test_stopped_in_the_middle_of_one(evaluated, monkeypatch, step):
    """The step is stored; the next call ends its evaluation first, and its line is whole."""
    config = evaluated(state={"every_steps": 50})
    straight = train(evaluated("straight"))
    calls = []

    def stopping(learner):
        measure = evaluator(config, learner)

        def measured(tree, number):
            calls.append(number)
            if number == step and calls.count(step) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                raise AssertionError("the signal came too late")
            return measure(tree, number)

        return measured

    with pytest.raises(Stopped, match="after step 2 of 3; it is stored" if step else "before the first"):
        train_grpo(config, stopping)
    done = train_grpo(config, stopping)
    assert calls == ([0, 2, 2, 3] if step else [0, 0, 2, 3])
    lines, whole = read_metrics(config.out), read_metrics(evaluated("straight").out)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert [set(line) for line in lines] == [set(line) for line in whole]
    jax.tree.map(np.testing.assert_array_equal, done.tree.params, straight.tree.params)
