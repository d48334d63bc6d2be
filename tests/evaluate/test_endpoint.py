"""Against a real HTTP server that fails one call in five: the same table as against one that never does."""

import json

import pytest

from noisyjax.bench import load_bench
from noisyjax.chat import ChatTokenizer
from noisyjax.config import load
from noisyjax.engine.server import EchoResponder, FaultPlan
from noisyjax.engine.server.app import ChatApp, running
from noisyjax.errors import UsageError
from noisyjax.evaluate import EvalConfig, evaluate, load_results


def config(url: str, out, *words: str) -> EvalConfig:
    quick = ["engine.backoff_s=0.01", "engine.backoff_cap_s=0.05", "engine.timeout_s=5", "engine.concurrency=16"]
    return load(
        EvalConfig,
        "endpoint",
        [f"engine.base_url={url}", "engine.model=echo", f"out={out}", "bench.questions=6", *quick, *words],
    )


def stored(out) -> dict:
    """Every sample's text and score."""
    results = load_results(str(out))
    texts = {key: record["text"] for reader in results.readers for key, record in reader.latest("samples").items()}
    return {key: (texts[key], s.score.state, s.score.value) for key, s in results.samples.items()}


def test_faults_change_nothing(tmp_path):
    faults = FaultPlan(rate=0.2, retry_after_s=0.01, stall_s=0.2)
    with running(ChatApp(EchoResponder())) as url:
        evaluate(config(url, tmp_path / "calm"))
    app = ChatApp(EchoResponder(), faults)
    with running(app) as url:
        outcome = evaluate(config(url, tmp_path / "rough"))
    assert outcome.samples == outcome.fresh == 48
    assert outcome.errors == 0
    assert stored(tmp_path / "calm") == stored(tmp_path / "rough")
    assert len(stored(tmp_path / "calm")) == 48


def test_tokens_of_noise_are_counted_by_the_tokenizer_that_is_named(tmp_path):
    from noisyjax.quickstart.random_model import make_model

    make_model(tmp_path / "model")
    words = ["bench.settings=[RD]", "bench.distractor_tokens=900"]
    with running(ChatApp(EchoResponder())) as url:
        evaluate(config(url, tmp_path / "counted", *words, f"count_with={tmp_path}/model"))
        evaluate(config(url, tmp_path / "estimated", *words))
    counted, estimated = (_units(tmp_path / name) for name in ("counted", "estimated"))
    assert counted != estimated
    tokenizer = ChatTokenizer.load(tmp_path / "model")
    bench = load_bench(config("http://nowhere.invalid/v1", tmp_path, *words).bench)
    prompts = (p for dataset in bench.datasets.values() for p in dataset.prompts("RD", count=tokenizer.count_tokens))
    assert counted == {p.question_id: list(p.units) for p in prompts}


def _units(out) -> dict[str, list[str]]:
    lines = (out / "prompts.jsonl").read_bytes().splitlines()
    return {record["question"]: record["units"] for record in map(json.loads, lines)}


def test_template_options_are_not_for_endpoints(tmp_path):
    with pytest.raises(UsageError, match=r"an endpoint takes engine\.extra_body"):
        config("http://nowhere.invalid/v1", tmp_path, "template_kwargs={enable_thinking: false}")
