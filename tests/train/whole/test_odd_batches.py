"""Completions that are empty, cut, without room; batches that dynamic sampling fills; passes over one batch."""

import json
import math

import numpy as np
import pytest

from noisyjax import models
from noisyjax.records import Finish
from noisyjax.train.rollout import Sampler
from noisyjax.train.runs import train_grpo
from noisyjax.train.watch.log import read_metrics, read_samples


def lines_of(config):
    lines = read_metrics(config.out)
    assert all(value is None or math.isfinite(value) for line in lines for value in line.values())
    return lines


def moved(done, config):
    then = models.load(config.model, dtype="float32").params
    return max(float(np.abs(np.asarray(done.tree.params[path]) - x).max()) for path, x in then.items())


def emptied(kept):
    """`Sampler.draw` that takes all tokens out of the samples for which `kept(record, sample)` is false."""
    import dataclasses

    draw = Sampler.draw

    def changed(self, asked):
        def empty(c):
            none = np.zeros(0, np.int32)
            return dataclasses.replace(
                c, text="", ids=none, logprobs=none.astype(np.float32), finish=Finish.STOP, completion_tokens=0
            )

        return [
            dataclasses.replace(r, completions=tuple(c if kept(r.id, c.sample) else empty(c) for c in r.completions))
            for r in draw(self, asked)
        ]

    return changed


def test_some_completions_are_empty(grpo, monkeypatch):
    monkeypatch.setattr(Sampler, "draw", emptied(lambda record, sample: sample % 2 == 0))
    config = grpo(steps=2)
    done = train_grpo(config)
    assert [line["length/min"] for line in lines_of(config)] == [0, 0]
    assert (done.skipped, moved(done, config) > 1e-4) == (0, True)


def test_all_completions_are_empty(grpo, monkeypatch):
    """Nothing to learn from: the weights stay, the step counts as idle and not as bad."""
    monkeypatch.setattr(Sampler, "draw", emptied(lambda record, sample: False))
    config = grpo(steps=4, loss={"beta": 0.1}, updates=2)
    done = train_grpo(config)
    assert [line["update/idle"] for line in lines_of(config)] == [1] * 4
    assert (done.step, done.skipped, moved(done, config)) == (4, 0, 0)


@pytest.mark.parametrize(
    ("truncated", "mask", "idle"), [("zero", False, 0), ("mask", False, 1), ("score", True, 1), ("score", False, 0)]
)
def test_all_completions_are_cut(grpo, truncated, mask, idle):
    config = grpo(steps=1, reward={"truncated": truncated}, loss={"mask_truncated": mask}, rollout={"ignore_eos": True})
    done = train_grpo(config)
    (line,) = lines_of(config)
    assert (line["sample/truncated"], line["eos"]) == (1, 0)
    assert line["update/idle"] == idle
    assert done.skipped == 0
    assert (moved(done, config) > 1e-4) == (truncated == "score" and not mask)


def test_prompts_that_leave_no_room(grpo, data, tmp_path):
    """Without a prompt limit a prompt may fill the window: its samples are void, and the others learn."""
    rows = [json.loads(line) for line in data.read_text().splitlines()[:4]]
    rows[1]["question"] = "why? " * 220
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = grpo(
        steps=1,
        prompts=4,
        data={"files": [str(tmp_path / "long.jsonl")], "prompt": {"max_prompt_tokens": None}},
        update={"row_tokens": 1024},
        loss={"beta": 0.1},
        minibatches=2,
    )
    done = train_grpo(config)
    (line,) = lines_of(config)
    assert line["sample/undefined"] == 0.25
    assert line["length/min"] == 0
    assert moved(done, config) > 1e-4


def test_dynamic_sampling_draws_until_enough_groups_teach(grpo, monkeypatch):
    """Half of the records' groups are undecided: more prompts are drawn, and what is kept teaches. No sample is graded
    twice."""
    import toy_rewards

    decide, asked = toy_rewards.sometimes_undecided, []
    monkeypatch.setattr(toy_rewards, "sometimes_undecided", lambda sample: asked.append(sample) or decide(sample))
    config = grpo(
        steps=2,
        prompts=4,
        generation_batches=4,
        data={"shuffle": False, "epochs": 1},
        reward={"reward_fn": "toy_rewards:sometimes_undecided"},
        log={"samples": 16, "samples_every": 1},
    )
    train_grpo(config)
    lines = lines_of(config)
    assert [line["group/undefined"] for line in lines] == [0, 0]
    # Those that end in 1 to 5 are undecided. The first step takes three batches of four, the second two more.
    first = [list(dict.fromkeys(r["record"] for r in read_samples(config.out) if r["step"] == s)) for s in (1, 2)]
    assert first == [["r0", "r6", "r7", "r8"], ["r16", "r17", "r18", "r19"]]
    assert [line["group/kept"] for line in lines] == [4 / 12, 4 / 8]
    assert len(asked) == config.rollout.samples * (12 + 8)


def test_dynamic_sampling_ends_with_the_data(grpo, capfd):
    """Every group is constant: nothing is ever kept, all steps are idle, and the epoch's end is the run's."""
    config = grpo(
        steps=50,
        prompts=4,
        generation_batches=2,
        data={"epochs": 1},
        reward={"reward_fn": "toy_rewards:constant"},
    )
    done = train_grpo(config)
    assert done.step == 3  # 24 records, 8 a step
    assert [line["group/kept"] for line in lines_of(config)] == [0, 0, 0]
    assert moved(done, config) == 0
    assert "the data ended after step 3" in capfd.readouterr().err
