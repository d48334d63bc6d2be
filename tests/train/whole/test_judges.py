"""Verdicts from a second model on the same mesh, and from an endpoint."""

from pathlib import Path

import numpy as np
import pytest

from noisyjax import hosts, models
from noisyjax.engine.server.app import ChatApp, running
from noisyjax.engine.server.faults import FaultPlan
from noisyjax.engine.server.protocol import Reply
from noisyjax.errors import RunError, UsageError
from noisyjax.train.runs import train_grpo
from noisyjax.train.state import Checkpoints
from noisyjax.train.watch.log import read_metrics, read_samples

JUDGED = {"reward_fn": None, "combination": "additive", "format": {"role": "none"}}


class Lenient:
    """Decides by the sum of the letters of what it is asked; every fifth call gets no verdict that can be read."""

    model = "lenient"

    def __init__(self):
        self.calls = []

    async def answer(self, chat):
        text = chat.messages[-1].content
        self.calls.append(text)
        kind = sum(text.split("\n\n")[-2].encode()) % 5
        words = ("no", "yes") if "reference" in text.lower() else ("incorrect", "correct")
        said = "I cannot say." if kind == 0 else f"So be it.\nVERDICT: {words[kind % 2].upper()}"
        return [Reply(said, "stop", 100, 8)]

    def close(self):
        pass


def params_of(done):
    return {path: np.asarray(x) for path, x in done.tree.params.items()}


def moved(done, folder):
    start = models.load(folder, dtype="float32").params
    return max(float(np.abs(x - np.asarray(start[path])).max()) for path, x in params_of(done).items())


def endpoint(url, **more):
    fast = {"backoff_s": 0.01, "backoff_cap_s": 0.05, "timeout_s": 5.0}
    return {"kind": "engine", "engine": {"kind": "remote", "base_url": url, **{"model": "lenient", **fast, **more}}}


def test_a_judge_on_the_same_mesh_that_cannot_judge(grpo, folder, tmp_path, save_model):
    """A random model gives no verdict that can be read: all is unscored, counted, and nothing is learned from it."""
    judge = save_model(tmp_path / "judge", max_positions=8192)
    engine = {"kind": "local", "model": str(judge), "slots": 4}
    config = grpo(steps=2, prompts=2, reward=JUDGED, judge={"kind": "engine", "engine": engine, "max_tokens": 16})
    done = train_grpo(config)
    lines = read_metrics(config.out)
    assert [line["judge/outcome_unscored"] for line in lines] == [1, 1]
    assert [line["group/undefined"] for line in lines] == [1, 1]
    assert [line["reward/total"] for line in lines] == [None, None]
    assert [line["advantage/abs"] for line in lines] == [None, None]
    assert all(line["speed/judge"] > 0 for line in lines)
    assert done.skipped == 0
    rows = read_samples(config.out)
    assert all(
        row["outcome"]["value"] is None and row["outcome"]["reason"] and row["advantage"] is None for row in rows
    )
    assert moved(done, folder) < 1e-4  # no gradient: what moves the weights is their decay alone


@pytest.mark.slow
def test_taking_turns_and_apart(grpo, tmp_path, save_model):
    """A judge that leaves the policy's devices after every call says what one with devices of its own says."""
    judge = save_model(tmp_path / "judge", max_positions=8192)
    engine = {"kind": "local", "model": str(judge), "slots": 4, "mesh": {"data": 2}}
    asked = {"kind": "engine", "max_tokens": 16}
    settings = {"steps": 1, "prompts": 2, "reward": JUDGED, "mesh": {"tensor": 2}}
    settings |= {"log": {"samples": 8, "samples_every": 1}}
    shared = grpo("shared", judge=asked | {"engine": engine | {"offload": True}}, **settings)
    split = grpo("split", judge=asked | {"engine": engine, "placement": "split"}, **settings)
    np.testing.assert_equal(params_of(train_grpo(split)), params_of(train_grpo(shared)))
    assert read_samples(split.out) == read_samples(shared.out)
    assert read_metrics(shared.out)[0]["judge/outcome_unscored"] == 1


@pytest.mark.slow
def test_sampler_and_reference_off_the_devices(grpo):
    settings = {"reward": {"reward_fn": "toy_rewards:varied"}, "loss": {"beta": 0.1}, "steps": 2}
    plain = train_grpo(grpo("plain", **settings))
    away = train_grpo(grpo("away", rollout={"offload": True}, reference_offload=True, **settings))
    np.testing.assert_equal(params_of(away), params_of(plain))


@pytest.mark.parametrize(
    ("policy", "own", "words"),
    [
        ({"data": 7}, {"data": 2}, "mesh takes 7 devices and judge.engine.mesh 2, of 8: make one of them smaller"),
        ({}, {"tensor": 7}, "heads of size 4 cannot be cut into 7 along mesh axis 'tensor'"),
    ],
)
def test_a_judge_that_cannot_be_placed(grpo, folder, policy, own, words):
    """Nothing is loaded or written for it."""
    engine = {"kind": "local", "model": str(folder), "mesh": own}
    config = grpo(mesh=policy, reward=JUDGED, judge={"kind": "engine", "engine": engine, "placement": "split"})
    with pytest.raises((UsageError, models.ModelError), match=words):
        train_grpo(config)
    assert not Path(config.out).exists()


def test_a_judge_apart_is_for_one_host(grpo, folder, monkeypatch):
    """The two ways that there are on several are told."""
    engine = {"kind": "local", "model": str(folder)}
    config = grpo(reward=JUDGED, judge={"kind": "engine", "engine": engine, "placement": "split"})
    monkeypatch.setattr(hosts, "count", lambda: 2)
    with pytest.raises(
        UsageError, match=r"is for one host.*judge\.engine\.offload=true; or .* judge\.engine\.base_url$"
    ):
        train_grpo(config)
    assert not Path(config.out).exists()


def test_a_judge_at_an_endpoint(grpo, folder):
    """Verdicts decide. Those that cannot be read are left out, counted and not kept; the others are asked for once."""
    responder = Lenient()
    with running(ChatApp(responder)) as url:
        config = grpo(reward=JUDGED, judge=endpoint(url), log={"samples": 12, "samples_every": 1})
        done = train_grpo(config)
    rows = read_samples(config.out)
    judged = [row for row in rows if row["outcome"] is not None]
    assert {row["outcome"]["value"] for row in judged} == {True, False, None}
    for row in judged:
        assert (row["advantage"] is None) == (row["outcome"]["value"] is None)
    unscored = [line["judge/outcome_unscored"] for line in read_metrics(config.out)]
    assert sum(unscored) / 3 == pytest.approx(np.mean([row["outcome"]["value"] is None for row in judged]), abs=0.05)
    kept = (Path(config.out) / "verdicts.jsonl").read_text().splitlines()
    readable = {(row["question"], row["answer"]) for row in judged if row["outcome"]["value"] is not None}
    assert len(kept) == len(readable)
    assert moved(done, folder) > 1e-4


def test_an_endpoint_with_faults_changes_nothing(grpo):
    """Half of the calls fail on their first tries."""
    with running(ChatApp(Lenient())) as url:
        calm = train_grpo(grpo("calm", steps=2, reward=JUDGED, judge=endpoint(url)))
    plan = FaultPlan(rate=0.5, kinds=("server_error", "cut_body", "invalid_json"))
    app = ChatApp(Lenient(), plan)
    with running(app) as url:
        rough = train_grpo(grpo("rough", steps=2, reward=JUDGED, judge=endpoint(url)))
    assert app.counts.faults.total() > 5
    for path, x in params_of(calm).items():
        np.testing.assert_array_equal(params_of(rough)[path], x)


def test_an_endpoint_that_goes_away(grpo):
    """A run cannot go on without its judge: it ends with a readable error, and goes on when the judge is back, at
    another address: its verdicts are the model's, wherever that is asked."""
    brief = {"outage_s": 0.5, "patience_s": 1.0}
    with running(ChatApp(Lenient())) as url:
        train_grpo(grpo("run", steps=1, reward=JUDGED, judge=endpoint(url, **brief)))
    with pytest.raises(RunError, match=r"endpoint|connect|answer"):
        train_grpo(grpo("run", steps=2, reward=JUDGED, judge=endpoint(url, **brief)))
    assert Checkpoints(grpo("run").out, grpo("run").state, {}).steps == [1]
    with running(ChatApp(Lenient())) as other:
        assert train_grpo(grpo("run", steps=2, reward=JUDGED, judge=endpoint(other, **brief))).step == 2
    with pytest.raises(UsageError, match=r"judge.engine.model: was 'lenient', now 'strict'"):
        train_grpo(grpo("run", steps=3, reward=JUDGED, judge=endpoint(other, **brief, model="strict")))
