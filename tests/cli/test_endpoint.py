"""`noisyjax eval` against an endpoint that fails, both as processes of their own, as a person has them."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
ENV = {"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin"}
SMALL = ("bench.datasets=[quickstart_facts]", "bench.settings=[ND, HN]", "bench.questions=4", "bench.data=quickstart")
QUICK = ("engine.timeout_s=1.0", "engine.backoff_s=0.01", "engine.backoff_cap_s=0.05")


@contextmanager
def server(*words: str) -> Iterator[str]:
    """The address of a server that answers without a model."""
    command = [sys.executable, "-m", "noisyjax.engine.server", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO, env=ENV) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[0]
        finally:
            process.kill()


def run_eval(url: str, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "noisyjax", "eval", "endpoint", f"engine.base_url={url}", "engine.model=echo"]
    command += [f"out={out}", *SMALL, *QUICK, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPO, env=ENV, timeout=120)


def faults_of(url: str) -> dict[str, int]:
    with urllib.request.urlopen(url.removesuffix("/v1") + "/counts") as answer:
        return json.load(answer)["faults"]


def samples(out: Path) -> dict[tuple, tuple]:
    records = map(json.loads, (out / "samples.jsonl").read_text().splitlines())
    answered = (r for r in records if r["finish"] != "error")
    return {(r["cell"], r["question"], r["sample"]): (r["text"], r["finish"]) for r in answered}


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> tuple[str, dict]:
    """The table and the samples of a run without faults."""
    out = tmp_path_factory.mktemp("calm") / "run"
    with server("--port", "0") as url:
        done = run_eval(url, out)
    assert done.returncode == 0, done.stderr
    return done.stdout, samples(out)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("stall", "stalled: no whole answer within timeout_s"),
        ("cut_body", "connection: the connection broke"),
        ("invalid_json", "bad_body: "),
    ],
)
def test_a_fault_ends_the_run_readably_if_it_stays_and_changes_nothing_if_it_passes(kind, words, calm, tmp_path):
    out = tmp_path / "run"
    with server("--port", "0", "--fail-rate", "1", "--fail-kinds", kind) as url:
        done = run_eval(url, out, "engine.max_retries=1", "engine.give_up_after=3", "engine.timeout_s=0.5")
    assert done.returncode == 1, done.stderr
    message = done.stderr.strip().splitlines()[-1]
    assert re.match(rf"noisyjax: http.* answered none of the last 3 samples \(after 2 tries, {words}", message)
    assert "start the same run again and it goes on from there" in message
    assert "Traceback" not in done.stderr

    port = url.removesuffix("/v1").rpartition(":")[2]
    with server("--port", port, "--fail-rate", "0.5", "--fail-kinds", kind) as url:
        done = run_eval(url, out)
        met = faults_of(url)
    assert done.returncode == 0, done.stderr
    assert list(met) == [kind]
    assert met[kind] > 0
    assert samples(out) == calm[1]
    assert done.stdout == calm[0]
    assert "Traceback" not in done.stderr
