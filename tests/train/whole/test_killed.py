"""A run that is killed or told to stop, anywhere, goes on as if nothing had been."""

import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from noisyjax.interrupts import Stopped
from noisyjax.train.learner import Learner
from noisyjax.train.rollout import Sampler
from noisyjax.train.runs import train_grpo
from noisyjax.train.state import Checkpoints
from noisyjax.train.watch.log import read_metrics, read_samples

TIMED = ("speed/", "seconds", "data/seen", "data/kept")
STEPS = 5
VARIED = {"reward_fn": "toy_rewards:varied"}


def stored(run, step=STEPS):
    """All arrays of a checkpoint: weights, both moments of the optimizer, counters."""
    import orbax.checkpoint as ocp

    return ocp.PyTreeCheckpointer().restore(Path(run).absolute() / "checkpoints" / str(step) / "tree")


def told(run):
    """By step, the figures that do not measure time; and all samples."""
    lines = [{k: v for k, v in line.items() if not k.startswith(TIMED)} for line in read_metrics(run)]
    return [*lines, *read_samples(run)]


def records(run):
    """Record ids by step, in order."""
    steps: dict[int, dict[str, None]] = {}
    for row in read_samples(run):
        steps.setdefault(row["step"], {})[row["record"]] = None
    return {step: list(ids) for step, ids in steps.items()}


def settings(**changes):
    """Checkpoints after steps 2 and 4; two updates a step; every sample is logged."""
    return {
        "steps": STEPS,
        "minibatches": 3,
        "state": {"every_steps": 2, "keep": 9},
        "reward": {"reward_fn": "moments:varied"},
        "log": {"samples": 12, "samples_every": 1},
    } | changes


@pytest.fixture(scope="module")
def start(command, grpo_settings, tmp_path_factory):
    """`start(out, moment)`: the command line on these settings."""
    folder = tmp_path_factory.mktemp("configs")

    def run(out, moment="", *words):
        file = folder / f"{Path(out).parent.name}.yaml"
        file.write_text(yaml.safe_dump(merged(grpo_settings, {**settings(), "out": str(out)})))
        environ = {"MOMENT": moment} if moment else {}
        process = command("train", "grpo", file, *words, **environ)
        said, cried = process.communicate(timeout=500)
        return process.returncode, said, cried

    return run


def merged(base, changes):
    out = dict(base)
    for key, value in changes.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and key in out else value
    return out


@pytest.fixture(scope="module")
def straight(start, tmp_path_factory):
    """The run that nobody disturbs."""
    out = tmp_path_factory.mktemp("straight") / "run"
    code, said, cried = start(out)
    assert code == 0, cried
    assert f"step {STEPS} is stored in {out}" in said
    ids = [name for step in records(out).values() for name in step]
    assert len(ids) == len(set(ids)) == 15  # 5 steps of 3, none twice
    return out


def check_equal(out, straight):
    assert records(out) == records(straight)
    for mine, theirs in zip(told(out), told(straight), strict=True):
        assert mine == theirs
    jax.tree.map(np.testing.assert_array_equal, stored(out), stored(straight))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "goes_on_after"),
    [("rollout 4", 2), ("judge 4", 2), ("update 4", 2), ("checkpoint 4", 2), ("rollout 1", None)],
)
def test_kill_9(moment, goes_on_after, start, straight, tmp_path):
    """At a moment of step 4 (checkpoint 2 stands, that of step 4 does not yet), and before any checkpoint."""
    out = tmp_path / "run"
    code, _, cried = start(out, f"SIGKILL {moment}")
    assert code == -signal.SIGKILL, cried
    left = [p.name for p in (out / "checkpoints").iterdir()] if goes_on_after else []
    if moment == "checkpoint 4":
        assert any(name.startswith("4.") for name in left), left  # it was being written
    code, _, cried = start(out)
    assert code == 0, cried
    assert ("going on after step" in cried) == (goes_on_after is not None)
    if goes_on_after is not None:
        assert f"going on after step {goes_on_after}" in cried
    check_equal(out, straight)


@pytest.mark.slow
def test_sigterm_on_the_command_line(start, straight, tmp_path):
    out = tmp_path / "run"
    code, _, cried = start(out, "SIGTERM rollout 4")
    assert code == 143, cried
    last = cried.strip().splitlines()[-1]
    assert last == (
        f"noisyjax: stopped after step 3 of 5; it is stored in {out}. "
        "Run the same command again and it goes on from there."
    )
    code, _, cried = start(out)
    assert (code, "going on after step 3" in cried) == (0, True)
    check_equal(out, straight)


@pytest.fixture(scope="module")
def undisturbed(grpo_in, tmp_path_factory):
    config = grpo_in(tmp_path_factory.mktemp("undisturbed") / "run", **settings(reward=VARIED))
    train_grpo(config)
    return config.out


def on_call(monkeypatch, owner, name, number, action):
    """Do `action` when a method has returned for the `number`-th time."""
    method, calls = getattr(owner, name), [0]

    def wrapped(*args, **kwargs):
        result = method(*args, **kwargs)
        calls[0] += 1
        if calls[0] == number:
            action()
        return result

    monkeypatch.setattr(owner, name, wrapped)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("owner", "name", "number", "stored_step"),
    [(Sampler, "draw", 4, 3), (Learner, "update", 10, 4), (Sampler, "draw", 1, None), (Checkpoints, "due", 5, 5)],
    ids=["rollout", "first update", "first rollout", "last step"],
)
def test_sigterm(owner, name, number, stored_step, grpo, undisturbed, monkeypatch):
    """A rollout is given up and taken anew; an update is brought to its end. What is done is stored."""
    config = grpo(**settings(reward=VARIED))
    with monkeypatch.context() as patch:
        on_call(patch, owner, name, number, terminate)
        if stored_step == STEPS:  # nothing is left to stop
            assert train_grpo(config).step == STEPS
        else:
            with pytest.raises(Stopped) as stopped:
                train_grpo(config)
            assert stopped.value.exit_code == 143
            words = "before the first" if stored_step is None else f"after step {stored_step} of 5; it is stored"
            assert words in str(stopped.value)
    assert max(Checkpoints(config.out, config.state, {}).steps, default=None) == stored_step
    again = train_grpo(config)
    assert (again.step, again.tree is None) == (STEPS, stored_step == STEPS)
    jax.tree.map(np.testing.assert_array_equal, stored(config.out), stored(undisturbed))
    assert told(config.out) == told(undisturbed)


def test_a_second_sigterm_does_not_wait(grpo, monkeypatch):
    """In the middle of an update the arrays are no state: what is named is the checkpoint before."""
    config = grpo(**settings(reward=VARIED))
    on_call(monkeypatch, Learner, "update", 8, lambda: (terminate(), terminate()))
    with pytest.raises(
        Stopped, match="stopped in the middle of step 3 of 5; the last checkpoint is of step 2"
    ) as stopped:
        train_grpo(config)
    assert stopped.value.exit_code == 143
    assert Checkpoints(config.out, config.state, {}).steps == [2]
    assert not (Path(config.out) / "lock.json").exists()
