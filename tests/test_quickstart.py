"""The whole path on the local engine: make a model, evaluate, report; and the same table through an endpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from noisyjax.config import load
from noisyjax.engine.server import EngineResponder, FaultPlan
from noisyjax.engine.server.app import ChatApp, running
from noisyjax.errors import UsageError
from noisyjax.evaluate import EvalConfig, evaluate, load_results
from noisyjax.quickstart import QUICKSTART, run_quickstart
from noisyjax.quickstart.random_model import make_model

SMALL = ["bench.questions=3", "bench.distractor_tokens=128", "sampling.max_tokens=12", "engine.dtype=float32"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart") / "model"
    make_model(folder)
    return folder


def table(out) -> dict:
    """Every sample's text, finish and score."""
    results = load_results(str(out))
    found = {}
    for reader in results.readers:
        for key, record in reader.latest("samples").items():
            score = results.samples[key].score
            found[key] = (record["text"], record["finish"], score.state, score.value)
    return found


def local(model: Path, out: Path, *words: str) -> EvalConfig:
    return load(EvalConfig, "sweeps/quickstart", [f"engine.model={model}", f"out={out}", *SMALL, *words])


def test_the_model_is_small_alike_every_time_and_complete(model, tmp_path):
    make_model(tmp_path / "again")
    names = {p.name for p in model.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert sum(p.stat().st_size for p in model.iterdir()) < 3_000_000
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (model / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


FULL = """
import resource, sys
from noisyjax.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
main(["quickstart", "--out", sys.argv[1]])
"""


def test_a_full_disk_is_one_readable_message(tmp_path):
    """A limit on the size of files stands for the full disk: the write itself fails."""
    repo = Path(__file__).resolve().parents[1]
    env = os.environ | {"PYTHONPATH": str(repo)}
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=repo)
    assert done.returncode == 1, done.stderr
    assert f"noisyjax: could not store to {tmp_path / 'world'}" in done.stderr
    assert "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_room_for_the_tokenizer_leaves_no_half_model(tmp_path, monkeypatch):
    """Its writer raises a bare Exception; the weights are there by then."""

    def full(self, folder, **_):
        (Path(folder) / "tokenizer.json").write_text("{")
        raise Exception("No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", full)
        with pytest.raises(OSError, match="No space left on device"):
            make_model(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    make_model(tmp_path / "model")
    assert (tmp_path / "model" / "config.json").is_file()


@pytest.mark.slow
def test_quickstart_end_to_end(tmp_path, capsys):
    """Two steps and eight questions: every part at work, not a result."""
    page = run_quickstart(tmp_path, steps=2, questions=8).read_text()
    out = capsys.readouterr().out
    for arm in QUICKSTART:
        assert arm.name in out
        assert arm.name in page
        for step in (0, 2):
            assert len(load_results(str(tmp_path / arm.folder / "eval" / f"step-{step:06d}")).samples) == 32
    run_quickstart(tmp_path, steps=2, questions=8)  # goes on where it was: nothing to do


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"start": "sparce"}, "did you mean 'sparse'"),
        ({"judge": "http://localhost/v1"}, "URL#MODEL"),
        ({"judge": "no/such/folder"}, "nor a model folder"),
    ],
)
def test_wrong_choices_are_refused_before_anything_is_written(tmp_path, wrong, said):
    with pytest.raises(UsageError, match=said):
        run_quickstart(tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_resume_and_endpoint_give_the_table_of_a_straight_run(model, tmp_path):
    straight = local(model, tmp_path / "straight")
    evaluate(straight)
    wanted = table(straight.out)
    assert len(wanted) == 24

    # half of the samples lost, one of them torn
    resumed = local(model, tmp_path / "resumed", "engine.slots=3", "engine.chunk=5")
    evaluate(resumed)
    path = tmp_path / "resumed" / "samples.jsonl"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (tmp_path / "resumed" / "scores.jsonl").unlink()
    evaluate(resumed)
    assert table(resumed.out) == wanted

    with running(ChatApp(_responder(model), FaultPlan(rate=0.2, retry_after_s=0.01, stall_s=0.2))) as url:
        remote = load(
            EvalConfig,
            "endpoint",
            [
                *(f"engine.base_url={url}", "engine.model=model", "engine.send_stream=true", "engine.backoff_s=0.01"),
                *(f"out={tmp_path}/remote", f"count_with={model}", "engine.backoff_cap_s=0.1", *SMALL[:-1]),
            ],
        )
        evaluate(remote)
    assert table(remote.out) == wanted


def _responder(model: Path) -> EngineResponder:
    from noisyjax.chat import build_prompt
    from noisyjax.engine.local import LocalConfig, LocalEngine
    from noisyjax.records import Label, Message, Part

    engine = LocalEngine(LocalConfig(model=model, dtype="float32", slots=4))

    def render(messages, chat):
        parts = tuple(Message(m.role, (Part(m.content, Label.QUESTION),)) for m in messages)
        return build_prompt(engine.tokenizer, parts, dataset="", question_id="", setting="ND")

    return EngineResponder(engine, render)


def test_stored_attention_sums_to_one(model, tmp_path):
    evaluate(local(model, tmp_path, "bench.questions=1", "bench.settings=[HN]"))
    from noisyjax.store import decode_completion

    record = json.loads((tmp_path / "samples.jsonl").read_text().split("\n")[0])
    mass = decode_completion(record).mass
    assert mass.shape[0] == 1
    assert mass.sum(axis=-1) == pytest.approx(1.0, abs=1e-4)
