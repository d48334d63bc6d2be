"""The command line of training: what cannot work is one line and code 2, before anything is compiled."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from noisyjax.errors import NoisyjaxError
from noisyjax.train import runs
from noisyjax.train.loop import DataEnd, Step
from noisyjax.train.runs import train_grpo
from noisyjax.train.watch.log import read_metrics

VARIED = {"reward_fn": "toy_rewards:varied"}


@pytest.fixture
def file(grpo_settings, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**grpo_settings, "out": str(tmp_path / "run")}))
    return path


REFUSED = {
    "unknown key": (["rollout.sample=4"], "rollout.sample", "unknown key; did you mean 'samples'?"),
    "unknown top key": (["promts=4"], "promts", "did you mean 'prompts'?"),
    "missing data": (["data.files=[nowhere.jsonl]"], "nowhere.jsonl", ""),
    "no data at all": (["data.files=[]"], "no training data", "files=[FILE"),
    "missing model": (["model=nowhere"], "noisyjax: model=nowhere is not a model folder", "no config.json"),
    "window": (["rollout.max_tokens=900", "update.row_tokens=2048"], "window of 1024", "max_prompt_tokens=400"),
    "no prompt limit": (["data.prompt.max_prompt_tokens=null"], "update.row_tokens=512", "max_prompt_tokens=500"),
    "rows too short": (["update.row_tokens=256"], "update.row_tokens: 256", "412 would do"),
    "minibatches": (["minibatches=2"], "minibatches: 2 does not divide prompts: 3", ""),
    "one sample": (["rollout.samples=1"], "rollout.samples", "at least 2"),
    "graded by a model": (
        ["reward.rationale=graded", "reward.reward_fn=null", "judge={kind: engine, engine: {kind: local, model: x}}"],
        "reward.rationale",
        "judge.kind: rules",
    ),
    "missing judge": (
        ["reward.reward_fn=null", "judge={kind: engine, engine: {kind: local, model: nowhere}}"],
        "judge.engine.model=nowhere is not a model folder",
        "no config.json",
    ),
    "idle reference": (["reference=x"], "loss.beta is 0", ""),
    "missing reference": (["reference=nowhere", "loss.beta=0.1"], "reference=nowhere is not a model folder", ""),
    "reward function": (["reward.reward_fn=toy_rewards:digit"], "toy_rewards:digit", "did you mean 'digits'?"),
    "too few devices": (["mesh.data=64"], "needs 64 devices", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, file, capfd, monkeypatch):
    """In this process, with the updater's programs forbidden."""
    from noisyjax.cli import main
    from noisyjax.train.step.update import Updater

    words, says, advises = REFUSED[name]
    monkeypatch.setattr(Updater, "start", lambda *_: pytest.fail("something was compiled"))
    with pytest.raises(SystemExit) as ended:
        main(["train", "grpo", str(file), *words])
    said = capfd.readouterr().err
    assert ended.value.code == 2, said
    (line,) = said.strip().splitlines()
    assert line.startswith("noisyjax: ")
    assert says in line
    assert advises in line
    assert not (file.parent / "run").exists() or not any((file.parent / "run").iterdir())


def cut(path: Path):
    """Take the second half of every data file of a checkpoint."""
    files = [p for p in (path / "tree").rglob("*") if p.is_file() and p.parent.name == "d"]
    assert files
    for p in files:
        p.write_bytes(p.read_bytes()[: p.stat().st_size // 2])


def test_a_checkpoint_cut_short_and_another_config(file, grpo, capfd):
    from noisyjax.cli import main

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main(["train", "grpo", str(file), *words])
        return ended.value.code, capfd.readouterr()

    each = "state.every_steps=1"
    assert call("steps=2", each)[0] in (0, None)
    code, said = call("steps=3", each, "optimizer.learning_rate=0.5")
    assert (code, "optimizer.learning_rate: was 0.001, now 0.5" in said.err) == (2, True)
    assert "use another `out`, or the same config" in said.err
    code, said = call("steps=3", each, "optimizer.schedule=linear")
    assert (code, "optimizer.schedule" in said.err) == (2, True)
    out = file.parent / "run"
    cut(out / "checkpoints" / "2")
    code, said = call("steps=3", each)
    (line,) = [line for line in said.err.splitlines() if line.startswith("noisyjax:")]
    assert code == 1
    assert "the checkpoint of step 2" in line
    assert "state.restore=1 goes on from the one before" in line
    code, said = call("steps=3", each, "state.restore=1")
    assert code in (0, None), said.err
    assert "going on after step 1" in said.err
    assert "step 3 is stored in" in said.out
    assert [line["step"] for line in read_metrics(out)] == [1, 2, 3]  # what was given up is gone from the log as well


class Counted:
    """An SFT task without a model, whose data ends after a step; counts how often one is opened."""

    kind, stream, opened = "sft", contextlib.ExitStack(), 0

    def __init__(self, *_):
        Counted.opened, self.taken = Counted.opened + 1, 0

    def identity(self):
        return {}

    def start(self):
        return {"x": np.zeros(2)}

    def cursor(self):
        return {"taken": self.taken}

    def resume(self, cursor):
        self.taken = cursor["taken"]

    def gather(self, *_):
        if self.taken:
            raise DataEnd
        self.taken += 1
        return self.taken

    def learn(self, tree, *_):
        return Step(tree, {"loss": 1.0})


def test_a_run_that_has_come_to_its_end_opens_nothing(grpo_settings, tmp_path, capfd, monkeypatch):
    """The same words again. With any others, or without the arrays, it is opened as ever."""
    from noisyjax.cli import main

    monkeypatch.setattr(runs, "SftTask", Counted)
    monkeypatch.setattr(runs, "open_learner", lambda *_: contextlib.ExitStack())
    file, run = tmp_path / "sft.yaml", tmp_path / "run"
    known = {name: grpo_settings[name] for name in ("model", "data", "log")}
    file.write_text(yaml.safe_dump({**known, "data": {"files": ["x"]}, "out": str(run), "steps": 8, "batch": 4}))

    def call(*words):
        """Exit code, first line, and whether the run was opened."""
        before = Counted.opened
        with pytest.raises(SystemExit) as ended:
            main(["train", "sft", str(file), *words])
        return ended.value.code, *capfd.readouterr().out.splitlines()[:1], Counted.opened > before

    done, nothing = f"step 1 is stored in {run}", f"nothing was left to do: step 1 is stored in {run}"
    assert call() == (0, done, True)
    assert call() == (0, nothing, False)  # of the eight steps that were asked for the data had one
    assert call("hosts.join_s=9") == (0, nothing, False)
    assert call("steps=9") == (0, done, True)
    assert call("steps=9") == (0, nothing, False)
    assert call("steps=9", "state.restore=1") == (0, done, True)
    assert call() == (0, done, True)
    held = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert call("seed=1") == (2, True)  # another run's folder
    assert {path: path.read_bytes() for path in held} == held
    assert call() == (0, nothing, False)
    mark = run / "training.json"
    for bad in ("", "[]", '{"kind"', '{"kind": 1}', "\xff"):
        mark.write_bytes(bad.encode("latin-1"))
        assert call() == (2, False)
        assert mark.read_bytes() == bad.encode("latin-1")
    mark.write_bytes(held[mark].replace(b'"finished": 1', b'"finished": "1"'))
    assert call() == (0, done, True)
    (run / "checkpoints").rename(tmp_path / "away")
    assert call() == (0, done, True)


def test_a_longer_run_has_another_schedule(grpo):
    """Where the rate depends on the run's length, going on with another length would be another run."""
    linear = {"optimizer": {"schedule": "linear", "learning_rate": 1e-3}}
    train_grpo(grpo(steps=1, **linear))
    with pytest.raises(NoisyjaxError, match="schedule_steps: was 1, now 2"):
        train_grpo(grpo(steps=2, **linear))


FULL = """
import resource, sys
from noisyjax.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_a_full_disk_while_a_checkpoint_is_written(command, file):
    """A limit on the size of files stands for the full disk. What was whole before stays, and the run goes on later."""
    words = ("train", "grpo", file, "state.every_steps=1", "reward.reward_fn=toy_rewards:varied")
    done = command(*words, "steps=1").communicate(timeout=400)
    assert "step 1 is stored" in done[0], done[1]
    # Programs are read from the cache, and none is written there: that disk is not meant.
    process = command("30000", *words, "steps=4", run=FULL, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1e9")
    _, cried = process.communicate(timeout=400)
    print(cried)
    (line,) = [line for line in cried.splitlines() if line.startswith("noisyjax:")]
    assert process.returncode == 1, cried
    assert "could not be written to" in line
    assert "the whole ones: checkpoints of steps 1; make room" in line, line
    again = command(*words, "steps=4").communicate(timeout=400)
    assert "going on after step 1" in again[1]
    assert "step 4 is stored" in again[0]


def test_export_of_a_run_whose_start_has_moved(grpo, folder, tmp_path, capfd):
    from noisyjax.cli import main

    shutil.copytree(folder, tmp_path / "start")
    config = grpo(steps=1, model=tmp_path / "start")
    train_grpo(config)
    shutil.move(tmp_path / "start", tmp_path / "elsewhere")

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main(["export", config.out, *map(str, words)])
        return ended.value.code, capfd.readouterr()

    capfd.readouterr()
    code, said = call(tmp_path / "a")
    assert code == 2
    assert said.err.strip() == (
        f"noisyjax: the start of {config.out} is no longer in {tmp_path / 'start'}: name its folder with --model"
    )
    code, said = call(tmp_path / "a", "--model", tmp_path / "elsewhere")
    assert code in (0, None), said.err
    assert said.out.startswith(f"step 1 of {config.out} is in {tmp_path / 'a'} (float32)")
    code, said = call(tmp_path / "b", "--step", "7", "--model", tmp_path / "elsewhere")
    assert (code, "holds checkpoints of steps 1, not step 7" in said.err) == (2, True)
    code, said = call(tmp_path / "b", "--dtype", "float23", "--model", tmp_path / "elsewhere")
    assert (code, "float32" in said.err) == (2, True)
    # The run itself goes on from the moved start: what counts is what is in it.
    assert train_grpo(grpo(steps=2, model=tmp_path / "elsewhere")).step == 2


@pytest.mark.parity
@pytest.mark.slow
def test_export_of_a_grpo_run_checked_in_transformers(grpo, tmp_path, capfd):
    from noisyjax.cli import main

    config = grpo(steps=2, reward=VARIED, optimizer={"learning_rate": 1e-2})
    train_grpo(config)
    with pytest.raises(SystemExit) as ended:
        main(["export", config.out, str(tmp_path / "out"), "--check"])
    said = capfd.readouterr()
    assert ended.value.code in (0, None), said.err
    assert "without a missing or unknown name; logits differ by at most" in said.out
