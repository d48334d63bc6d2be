"""The same table, however the run went: straight, shuffled, killed, resumed, sharded, rescored."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from evaluate_fakes import FakeEngine, fake_config, fake_run

from noisyjax.errors import RunError, UsageError
from noisyjax.evaluate import Stopped, load_results, rescore
from noisyjax.evaluate.rescoring import Stored
from noisyjax.records import Finish
from noisyjax.scoring import summarise
from noisyjax.store import RunReader, decode_completion, open_folder

FAKES = Path(__file__).with_name("evaluate_fakes.py")


def table(out) -> dict:
    """Everything that a report shows, as plain data."""
    results = load_results(str(out))
    cells = {
        (c.dataset, c.setting): (
            dict(results.states(c)),
            dict(zip(results.values(c).question_ids, results.values(c).values_q.tolist(), strict=True)),
        )
        for c in results.cells
    }
    summary = summarise([results.values(c) for c in results.cells], draws=50)
    return json.loads(json.dumps({"cells": {str(k): v for k, v in cells.items()}, "summary": str(summary)}))


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> dict:
    out = tmp_path_factory.mktemp("straight")
    fake_run(out)
    return table(out)


def test_a_run_has_every_cell_and_every_state(straight):
    assert len(straight["cells"]) == 8
    states = {state for counts, _ in straight["cells"].values() for state in counts}
    assert states == {"scored", "truncated", "no_answer"}
    assert all(len(values) == 5 for _, values in straight["cells"].values())


def test_order_and_batching_change_nothing(tmp_path, straight):
    fake_run(tmp_path, engine=FakeEngine(width=17))
    assert table(tmp_path) == straight
    backwards = tmp_path / "backwards"
    fake_run(backwards, "bench.settings=[HN, RC, RD, ND]", "bench.datasets=[quickstart_choice, quickstart_facts]")
    assert table(backwards)["cells"] == straight["cells"]


def test_nothing_is_asked_twice(tmp_path, straight):
    class Tired(FakeEngine):
        def generate(self, requests):
            for i, completion in enumerate(super().generate(requests)):
                if i == 11:
                    raise RunError("the endpoint went away")
                yield completion

    first, second = Tired(), FakeEngine()
    with pytest.raises(RunError):
        fake_run(tmp_path, engine=first)
    partly = load_results(str(tmp_path))
    assert sum(partly.states(c)["missing"] for c in partly.cells) == 40 - 11
    fake_run(tmp_path, engine=second)
    assert len(second.asked) == 40 - 11
    assert table(tmp_path) == straight
    assert fake_run(tmp_path).asked == []


@pytest.mark.slow
def test_killed_twice_and_resumed_is_the_same_table(tmp_path, straight):
    command = [sys.executable, str(FAKES), str(tmp_path), "0.1"]
    path = tmp_path / "samples.jsonl"
    for wanted in (5, 15):
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        while not path.exists() or path.read_bytes().count(b"\n") < wanted:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
        process.communicate()
    # the second writer may also have died in the middle of a line
    with path.open("ab") as file:
        file.write(b'{"cell":"half')
    fake_run(tmp_path)
    assert table(tmp_path) == straight


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_stop_cleanly_and_say_how_to_go_on(tmp_path, number, code):
    path = tmp_path / "samples.jsonl"
    process = subprocess.Popen([sys.executable, str(FAKES), str(tmp_path), "0.2"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    stored = path.read_bytes().count(b"\n")
    assert f"stopped; {stored} of 40 samples are stored" in err
    assert "Run the same command again" in err
    assert "Traceback" not in err
    assert not (tmp_path / "lock.json").exists()


def test_a_signal_while_storing_waits_for_the_store(tmp_path, monkeypatch):
    real = os.fsync
    calls = []

    def fsync(fd):
        calls.append(fd)
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(Stopped) as caught:
        fake_run(tmp_path)
    assert caught.value.exit_code == 143
    monkeypatch.undo()
    for name in ("samples", "prompts", "texts", "questions"):
        assert (tmp_path / f"{name}.jsonl").read_bytes().endswith(b"\n")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_failed_samples_are_unscored_and_tried_again(tmp_path, straight):
    victims = frozenset(list(next(iter(straight["cells"].values()))[1])[:1])
    fake_run(tmp_path, engine=FakeEngine(fail=victims))
    results = load_results(str(tmp_path))
    unscored = [results.states(c)["unscored"] for c in results.cells]
    assert sum(unscored) == 4
    cell = next(c for c in results.cells if results.states(c)["unscored"])
    assert np.isnan(results.values(cell).values_q).sum() == 1
    again = fake_run(tmp_path)
    assert len(again.asked) == 4
    assert table(tmp_path) == straight


def test_another_config_cannot_mix_in(tmp_path):
    fake_run(tmp_path, "bench.questions=1")
    with pytest.raises(UsageError) as caught:
        fake_run(tmp_path, "bench.questions=1", "sampling.max_tokens=7", "bench.seed=3")
    assert "sampling.max_tokens: was 1024, now 7" in str(caught.value)
    assert "bench.seed: was 0, now 3" in str(caught.value)


def test_other_cells_may_not_join_silently(tmp_path):
    fake_run(tmp_path, "bench.questions=1", "bench.settings=[ND]")
    with pytest.raises(UsageError, match=r"bench\.settings"):
        fake_run(tmp_path, "bench.questions=1")


def test_over_length_drops_the_question_everywhere(tmp_path, straight):
    class Short(FakeEngine):
        def _one(self, request, sample):
            done = super()._one(request, sample)
            if request.prompt.setting == "HN" and request.prompt.question_id in gone:
                from dataclasses import replace

                return replace(done, text="", finish=Finish.OVER_LENGTH)
            return done

    ids = list(straight["cells"]["('quickstart_facts', 'ND')"][1])
    gone = set(ids[:2])
    fake_run(tmp_path, engine=Short())
    results = load_results(str(tmp_path))
    for setting in ("ND", "RD", "RC", "HN"):
        cell = results.cell("quickstart_facts", setting)
        assert set(results.values(cell).question_ids) == set(ids[2:])
        assert results.states(cell)["over_length"] == 2
    assert len(results.values(results.cell("quickstart_choice", "ND")).question_ids) == 5


def test_shards_add_up(tmp_path, straight):
    for i in (1, 2, 3):
        fake_run(tmp_path, f"shard={i}/3")
    assert len(list(tmp_path.glob("shard-*"))) == 3
    assert table(tmp_path) == straight
    with pytest.raises(UsageError, match="shard is i/n"):
        fake_config(tmp_path, "shard=4/3")


def test_shards_of_two_sizes_never_meet_in_a_folder(tmp_path):
    """They overlap: a report would count the questions of both twice."""
    fake_run(tmp_path / "shards", "shard=1/3")
    fake_run(tmp_path / "whole")
    for folder, words, of in (("shards", ["shard=1/2"], 3), ("shards", [], 3), ("whole", ["shard=1/2"], 1)):
        with pytest.raises(UsageError, match=rf"was begun in {of} share\(s\) .* or shard=i/{of} again"):
            fake_run(tmp_path / folder, *words)
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["shard-1-of-3"]


def test_several_samples_and_pass_at_k(tmp_path):
    engine = fake_run(tmp_path, "n=4", "k=2", "bench.settings=[ND]")
    results = load_results(str(tmp_path))
    cell = results.cells[0]
    assert (cell.n, cell.k) == (4, 2)
    assert len(engine.asked) == 40
    best, mean = results.values(cell).values_q, results.values(cell, "mean").values_q
    assert (best >= mean).all()
    assert (best > mean).any()
    with pytest.raises(UsageError, match="n is 1, k is 2"):
        fake_config(tmp_path, "n=1", "k=2")
    with pytest.raises(UsageError, match="greedy samples"):
        fake_run(tmp_path / "x", "n=2", "sampling.temperature=0")


def test_missing_samples_of_a_question_are_asked_alone(tmp_path):
    fake_run(tmp_path, "n=4", "k=2", "bench.settings=[ND]")
    path = tmp_path / "samples.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    keep = [line for line in lines if json.loads(line)["sample"] not in (0, 2)]
    path.write_bytes(b"".join(keep))
    engine = fake_run(tmp_path, "n=4", "k=2", "bench.settings=[ND]")
    assert sorted({sample for _, sample in engine.asked}) == [0, 2]
    assert len(engine.asked) == 20


def test_rescore_changes_scores_and_nothing_else(tmp_path, straight):
    fake_run(tmp_path)
    names = ("samples.jsonl", "prompts.jsonl", "texts.jsonl", "questions.jsonl", "manifest.json")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    scores = tmp_path / "scores.jsonl"
    spoiled = scores.read_bytes().replace(b'"state":"scored"', b'"state":"unscored"')
    scores.write_bytes(spoiled)
    assert "scores changed" in rescore(str(tmp_path))
    assert table(tmp_path) == straight
    assert rescore(str(tmp_path)) == "40 samples scored again, 0 scores changed"
    assert {name: (tmp_path / name).read_bytes() for name in names} == before


@pytest.mark.parametrize("name", ["prompts", "questions"])
def test_rescoring_without_a_log_that_samples_refer_to_names_it(tmp_path, name):
    fake_run(tmp_path)
    (tmp_path / f"{name}.jsonl").unlink()
    with pytest.raises(RunError, match=f"'{name}'"):
        rescore(str(tmp_path))


def test_lost_scores_are_made_again(tmp_path, straight):
    fake_run(tmp_path)
    (tmp_path / "scores.jsonl").unlink()
    assert fake_run(tmp_path).asked == []
    assert table(tmp_path) == straight


def test_score_of_a_retried_sample_is_made_again(tmp_path, straight):
    """The retry was stored, its score was not: the old `unscored` must not stay."""
    victims = frozenset(list(next(iter(straight["cells"].values()))[1])[:1])
    fake_run(tmp_path, engine=FakeEngine(fail=victims))
    before = (tmp_path / "scores.jsonl").read_bytes()
    fake_run(tmp_path)
    (tmp_path / "scores.jsonl").write_bytes(before)
    fake_run(tmp_path)
    assert table(tmp_path) == straight


def test_full_disk_in_the_middle_of_a_run(tmp_path, straight, monkeypatch):
    import errno

    real, calls = os.write, []

    def full(fd, data):
        calls.append(fd)
        if len(calls) > 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunError, match=r"No space left on device.*same command again"):
        fake_run(tmp_path)
    monkeypatch.undo()
    fake_run(tmp_path)
    assert table(tmp_path) == straight


def test_stored_prompts_can_be_rebuilt(tmp_path):
    from noisyjax.bench import load_bench
    from noisyjax.evaluate.prompts import read_messages

    fake_run(tmp_path, "bench.questions=2")
    reader = RunReader(open_folder(tmp_path))
    texts = {r["id"]: r["text"] for r in reader.records("texts")}
    stored = {(r["dataset"], r["setting"], r["question"]): r for r in reader.records("prompts")}
    bench = load_bench(fake_config(tmp_path, "bench.questions=2").bench)
    for name, dataset in bench.datasets.items():
        for setting in ("ND", "RD", "RC", "HN"):
            for prompt in dataset.prompts(setting):
                record = stored[name, setting, prompt.question_id]
                assert read_messages(record, texts) == prompt.messages
                assert record["gold"] == prompt.gold
    long = [t for t in texts.values() if len(t) > 200]
    assert len(long) == len(set(long))  # the shared block is stored once


def test_kept_arrays(tmp_path):
    for mode, rows in (("none", 0), ("mean", 1), ("tokens", 2)):
        out = tmp_path / mode
        fake_run(out, f"keep.mass={mode}", "bench.questions=1", "bench.settings=[ND]")
        record = next(RunReader(open_folder(out)).records("samples"))
        mass = decode_completion(record).mass
        if rows == 0:
            assert mass is None
        else:
            assert len(mass) == (1 if rows == 1 else record["completion_tokens"])


def test_given_engine_is_left_open_and_tau_is_absent(tmp_path):
    engine = fake_run(tmp_path, "bench.datasets=[quickstart_facts, tau_retail]", "bench.questions=1")
    assert not engine.closed
    results = load_results(str(tmp_path))
    assert "tau_retail" in results.absent
    assert results.datasets == ("quickstart_facts",)
    with pytest.raises(UsageError, match="nothing to run"):
        fake_run(tmp_path / "x", "bench.datasets=[tau_retail]")


def test_reading_is_stored_with_the_run(tmp_path):
    fake_run(tmp_path, "prompt_opens_thought=true", "bench.questions=1")
    stored = Stored(RunReader(open_folder(tmp_path)))
    assert stored.reading.opens_thought
