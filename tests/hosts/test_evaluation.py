"""Evaluation over four processes: the table of one, with many questions or with fewer than there are hosts."""

import json
import signal

import pytest
import yaml

from noisyjax.evaluate import load_results
from noisyjax.world import start_model, write_eval

QUESTIONS = 10
SETTINGS = ["ND", "HN"]

KILLED = """
import os, signal
from noisyjax.cli import main
from noisyjax.store import RunWriter

put, calls = RunWriter.put_sample, []

def put_sample(*args):
    put(*args)
    calls.append(args)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

RunWriter.put_sample = put_sample
main()
"""
"""The command line, killed behind its second sample."""


@pytest.fixture(scope="module")
def evaluate(run, tmp_path_factory):
    """`evaluate(out, questions, ...)`: the command line on so many questions in both settings."""
    home = tmp_path_factory.mktemp("hosts")
    settings = {
        "extends": "sweeps/tiny_world",
        "name": "hosts",
        "engine": {"kind": "local", "model": str(start_model("sparse")), "slots": 4, "row": 160, "chunk": 16},
        "bench": {"data": str(write_eval(home / "eval", 0, QUESTIONS)), "settings": SETTINGS},
        "sampling": {"max_tokens": 16},
    }
    file = home / "sweep.yaml"
    file.write_text(yaml.safe_dump(settings))

    def start(out, questions, *words, **how):
        return run("eval", file, f"out={out}", f"bench.questions={questions}", *words, **how)

    return start


def table(out):
    """Every sample's text and score, and what every cell comes to."""
    results = load_results(str(out))
    texts = {}
    for reader in results.readers:
        for key, record in reader.latest("samples").items():
            assert key not in texts  # no two hosts have the same question
            texts[key] = (record["text"], record["finish"])
    scores = {key: None if s.score is None else (s.score.state, s.score.value) for key, s in results.samples.items()}
    cells = {cell.id: (cell.questions, dict(results.states(cell))) for cell in results.cells}
    return texts, scores, cells


@pytest.fixture(scope="module")
def alone(evaluate, tmp_path_factory):
    """Of one process: questions -> its table."""
    found = {}
    for questions in (QUESTIONS, 1):
        out = tmp_path_factory.mktemp("alone") / "run"
        (ended,) = evaluate(out, questions, "--no-table")
        assert ended.code == 0, ended.cried
        found[questions] = table(out)
        assert len(found[questions][0]) == questions * len(SETTINGS)
    assert len({text for text, _ in found[QUESTIONS][0].values()}) > QUESTIONS // 2  # it answers what it is asked
    return found


@pytest.mark.slow
def test_one_question_over_four_processes(evaluate, alone, tmp_path):
    out = tmp_path / "run"
    ended = evaluate(out, 1, hosts=4)
    assert {one.code for one in ended} == {0}, [one.cried for one in ended]
    assert "hosts" in ended[0].said  # the table, of all shards, once
    assert [one.said + one.cried for one in ended[1:]] == [""] * 3
    assert sorted(p.name for p in out.iterdir()) == [f"shard-{i}-of-4" for i in (1, 2, 3, 4)]
    assert table(out) == alone[1]


@pytest.mark.slow
def test_ten_questions_and_one_of_four_is_killed(evaluate, alone, tmp_path):
    """Each of the others ends and names it; all go on, what was stored is not asked again, and the table is that of one
    process. Two hosts cannot go on for four."""
    out = tmp_path / "run"
    ended = evaluate(out, QUESTIONS, hosts=4, programs={2: KILLED})
    assert ended.pop(2).code == -signal.SIGKILL
    for one in ended:
        assert one.code == 1, one.cried
        assert one.cried.strip().splitlines()[-1].startswith("noisyjax: host 2 (")
        assert "Traceback" not in one.cried
    held = {path: path.read_bytes() for path in out.glob("*/samples.jsonl")}
    assert held[out / "shard-3-of-4" / "samples.jsonl"].count(b"\n") == 2
    for one in evaluate(out, QUESTIONS, hosts=2):
        assert one.code == 2, one.cried
        assert "was begun in 4 share(s) and cannot be gone on with in 2" in one.cried
    again = evaluate(out, QUESTIONS, "--no-table", hosts=4)
    assert {one.code for one in again} == {0}, [one.cried for one in again]
    assert table(out) == alone[QUESTIONS]
    lines = [line for path in out.glob("*/samples.jsonl") for line in path.read_text().splitlines()]
    assert len([json.loads(line) for line in lines]) == QUESTIONS * len(SETTINGS)
    for path, before in held.items():
        assert path.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
