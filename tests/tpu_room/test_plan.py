"""`noisyjax tpu plan` through the command: tiny runs through the TPU's own compiler, on a machine without a TPU."""

import importlib.util
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from noisyjax.cli import main
from noisyjax.errors import RunError, UsageError
from noisyjax.models import ModelError
from noisyjax.tpu import GENERATIONS
from noisyjax.tpu.names import GIB, parse_accelerator
from noisyjax.tpu.planning import plan as plans
from noisyjax.tpu.planning import worker
from noisyjax.tpu.planning.plan import _rates
from noisyjax.tpu.planning.prices import ChipPrice, read_prices
from noisyjax.tpu.planning.programs import Program
from noisyjax.tpu.planning.subject import architecture, read_subject

compiler = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the extra `tpu`")

SHORT = ("prompts=8", "rollout.samples=2", "rollout.max_tokens=64", "data.prompt.max_prompt_tokens=64")
ROWS = ("update.row_tokens=256", "update.batch_tokens=256")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of the size of a word: nothing but its config.json."""
    folder = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 256,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_theta": 10000,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(tiny: Path, topology: str, *words: str, out: Path | None = None) -> int:
    made = [] if out is None else ["--json", str(out)]
    command = ["tpu", "plan", "train/grpo_paper", f"model={tiny}", *SHORT, *ROWS, "--topology", topology, *made, *words]
    return call(*command)


def call(*words: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return int(end.value.code or 0)


def update(found: dict) -> dict:
    return next(one for one in found["programs"] if one["name"] == "update")


def judged(tiny: Path, placement: str = "shared", **mesh: int) -> str:
    engine = {"kind": "local", "model": str(tiny), "mesh": mesh}
    judge = {"kind": "engine", "placement": placement, "max_tokens": 32, "engine": engine}
    return f"judge={json.dumps(judge)}"


@compiler
@pytest.mark.slow
def test_every_program_of_a_run_with_a_judge(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "plan.json"
    prices = tmp_path / "prices.yaml"
    prices.write_text("v5e: {on_demand: 2.0, spot: 1.0}\n")
    words = ("mesh.fsdp=2", "mesh.tensor=2", judged(tiny, tensor=2, data=2), "--prices", str(prices))
    assert run(tiny, "v5e-4", *words, out=out) == 0
    (found,) = json.loads(out.read_text())
    named = {one["name"]: one for one in found["programs"]}
    sampled = {"prefill", "decode", "decode with capture"}
    judges = {"judge prefill", "judge decode"}  # without capture: nobody asks for a judge's attention
    assert set(named) == {"update", "optimizer", "logprobs"} | sampled | judges
    assert all(one["fits"] and one["peak"] == pytest.approx(sum(one["memory"].values())) for one in named.values())
    assert {"parameters", "optimizer", "gradient", "reference", "beside", "activations"} <= named["update"][
        "memory"
    ].keys()
    assert {"parameters", "cache", "trainer"} <= named["decode"]["memory"].keys()
    assert {c["kind"] for c in named["update"]["collectives"]} >= {"all-gather", "all-reduce"}
    assert any(2 in c["trips"] for c in named["update"]["collectives"])
    assert all((one["flops"] > 0) == (name != "optimizer") for name, one in named.items())
    bought = found["tokens_per_dollar"]
    assert bought["spot"] == pytest.approx(2 * bought["on_demand"])
    assert bought["spot"] == pytest.approx(found["tokens_per_second"] * 3600 / 4)
    said = capsys.readouterr().out
    assert "update: fits" in said
    assert "judge decode: fits" in said
    assert "tokens per dollar, spot" in said


@compiler
@pytest.mark.slow
@pytest.mark.parametrize(("topology", "fsdp"), [("v5p-8", 2), ("v6e-4", 2), ("tpu7x-8", 4)])
def test_a_run_with_a_judge_compiles_for_other_kinds(topology: str, fsdp: int, tiny: Path, tmp_path: Path) -> None:
    names = ("update", "prefill", "decode", "judge prefill", "judge decode")
    words = (f"mesh.fsdp={fsdp}", "mesh.tensor=2", judged(tiny, tensor=2, data=fsdp))
    only = [word for name in names for word in ("--only", name)]
    assert run(tiny, topology, *words, *only, out=tmp_path / "plan.json") == 0
    (found,) = json.loads((tmp_path / "plan.json").read_text())
    assert found["devices"] == parse_accelerator(topology).devices
    assert [one["name"] for one in found["programs"]] == list(names)
    assert all(one["fits"] for one in found["programs"])
    assert 0 < found["mfu"] < 1


@compiler
def test_each_host_samples_on_its_own_devices(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Each of a v5p-16's two hosts has four of its devices, the sampler's whole weights, and half of the work."""
    words = ("mesh.fsdp=4", "mesh.tensor=2", "--only", "prefill")
    assert run(tiny, "v5p-16", *words, out=tmp_path / "plan.json") == 0
    (found,) = json.loads((tmp_path / "plan.json").read_text())
    (prefill,) = found["programs"]
    assert prefill["times"] == 4  # of 8 prompts, one piece each
    assert run(tiny, "v5p-16", "mesh.fsdp=4", judged(tiny, "split", tensor=2, data=2)) == 2
    assert "judge.placement=split is for one host" in capsys.readouterr().err


@compiler
def test_what_does_not_fit_is_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ("model=Qwen3-30B-A3B", "mesh.fsdp=4", "update.batch_tokens=256", *SHORT, "update.row_tokens=256")
    command = ["tpu", "plan", "train/grpo_paper", *words, "--topology", "v5e-4", "--only", "optimizer"]
    assert call(*command) == 1
    said = capsys.readouterr().out
    assert "optimizer: DOES NOT FIT" in said
    assert "GiB too much; more mesh.fsdp" in said
    assert "MFU" not in said
    assert "a second" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rollout.max_tokens=500", "update.row_tokens=564"), ["make 564 tokens, beyond the model's window of 512"]),
        (("mesh.fsdp=2",), ["mesh fsdp=2 makes 2 devices", "v5litepod-4 (2x2) has 4", "mesh.fsdp=4", "--search"]),
        (("mesh.tensor=3",), ["q_nhd: heads of size 4 cannot be cut into 3 along mesh axis 'tensor'"]),
    ],
)
def test_runs_that_cannot_be_are_not_compiled(
    words: tuple, said: list, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_devices", lambda _: [])
    with pytest.raises((UsageError, ModelError)) as caught:
        worker.answer(request("train/grpo_paper", f"model={tiny}", *SHORT, *ROWS, *words))
    assert all(part in str(caught.value) for part in said)


@pytest.mark.parametrize("search", [False, True])
def test_a_judge_must_leave_devices_to_the_policy(search: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_devices", lambda _: [])
    asked = request("train/grpo_paper", f"model={tiny}", *SHORT, *ROWS, judged(tiny, "split", data=4))
    with pytest.raises(UsageError, match=r"makes 4 devices, and v5litepod-4 \(2x2\) has 4 for judge and policy"):
        worker.answer(asked | {"search": search})


def test_an_evaluation_fills_a_host(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its run does, where `data` is left open; a mesh that leaves some of it idle is refused."""
    monkeypatch.setattr(worker, "_devices", lambda _: [])
    monkeypatch.setattr(worker, "_run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # it would run
        worker.answer(request("sweeps/quickstart", f"engine.model={tiny}", "engine.mesh.tensor=2"))
    with pytest.raises(UsageError, match=r"say engine\.mesh\.data=4, or another product of 4, or --search$"):
        worker.answer(request("sweeps/quickstart", f"engine.model={tiny}", "engine.mesh.data=3"))


@compiler
def test_the_mesh_of_an_evaluation_is_found(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Its prompts are prefilled by all copies alike, so that cutting the model is worth it as far as its heads go."""
    words = (f"engine.model={tiny}", "engine.context=512", "sampling.max_tokens=128", "--topology", "v5e-4")
    out = tmp_path / "plan.json"
    assert call("tpu", "plan", "sweeps/quickstart", *words, "--search", "--only", "decode", "--json", str(out)) == 0
    (found,) = json.loads(out.read_text())
    assert found["mesh"] == {"data": 2, "tensor": 2}
    assert [one["name"] for one in found["programs"]] == ["decode"]
    said = capsys.readouterr().out
    assert "taken: engine.mesh.data=2 engine.mesh.expert=1 engine.mesh.tensor=2 (a round " in said


def request(source: str, *words: str) -> dict:
    return {"source": source, "overrides": words, "topology": "v5e-4", "search": False, "only": []}


def test_every_name_of_a_program_is_looked_at() -> None:
    programs = [Program(name, None, (), {}) for name in ("update", "decode", "decode with capture")]
    made = worker._Made(None, [], programs)
    assert worker._wanted(made, []) == programs
    assert worker._wanted(made, ["decode"]) == programs[1:2]
    with pytest.raises(UsageError, match=r"--only decod: this run has no such program; did you mean 'decode'\?"):
        worker._wanted(made, ["update", "decod"])


def test_bad_requests_start_no_compiler(tiny: Path, capsys: pytest.CaptureFixture) -> None:
    assert run(tiny, "v5e-5") == 2
    assert "v5litepod-4 (2x2)" in capsys.readouterr().err
    assert run(tiny, "v5e-4", "mesh.fdsp=4") == 2
    assert "did you mean 'fsdp'?" in capsys.readouterr().err
    assert call("tpu", "plan", "sweeps/endpoint", "--topology", "v5e-4") == 2
    assert run(tiny, "v5e-4", "mesh.fsdp=4", "--topology", "v5e-5") == 2
    assert "v5litepod-4 (2x2)" in capsys.readouterr().err
    assert run(tiny, "v5e-4", "mesh.fsdp=4", out=tiny) == 2
    assert "is a directory" in capsys.readouterr().err


def planned(name: str) -> dict:
    """Something like a plan, of nothing."""
    empty = {"mesh": {}, "search": [], "programs": [], "parts": [], "seconds": {}, "sequence": False}
    return {"name": name, "topology": name, "devices": 1, "hbm": GIB, "fits": True, **empty}


def test_what_was_planned_is_kept_when_the_next_fails(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(source: str, overrides: list, topology: str, **_: object) -> dict:
        if topology == "v6e-4":
            raise RunError("no room")
        return planned(topology)

    monkeypatch.setattr(plans, "plan", one)
    out = tmp_path / "new" / "plan.json"
    assert run(tiny, "v5e-4", "--topology", "v6e-4", out=out) == 1
    assert [made["name"] for made in json.loads(out.read_text())] == ["v5e-4"]


def started_instead(monkeypatch: pytest.MonkeyPatch, program: str) -> list[subprocess.Popen]:
    """Lets `program` run where the compiler's process would; the processes that were started."""
    started, popen = [], subprocess.Popen

    def start(command: list[str], **kwargs: Any) -> subprocess.Popen:
        started.append(popen([command[0], "-c", f"import os, sys, threading\n{program}"], **kwargs))
        return started[-1]

    monkeypatch.setattr(plans.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(plans.subprocess, "Popen", start)
    return started


def test_a_process_that_was_killed_is_told(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started_instead(monkeypatch, "os.kill(os.getpid(), 9)")
    with pytest.raises(RunError, match=r"for v5litepod-4 was killed, .* memory left: ask for less at once"):
        plans.plan("train/grpo_paper", [f"model={tiny}"], "v5e-4")


def test_the_compiler_is_found_beside_the_environment(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_instead(monkeypatch, "import libtpu; os._exit(libtpu.CODE)")
    monkeypatch.setattr(plans.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(plans, "COMPILER", tmp_path / "tpu")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(UsageError, match=rf"`make tpu` .* pip install --no-deps --target {tmp_path}/tpu libtpu$"):
        plans.plan("train/grpo_paper", [f"model={tiny}"], "v5e-4")
    (tmp_path / "tpu" / "libtpu").mkdir(parents=True)
    (tmp_path / "tpu" / "libtpu" / "__init__.py").write_text("CODE = 5\n")
    with pytest.raises(RunError, match="ended with code 5 and no answer"):
        plans.plan("train/grpo_paper", [f"model={tiny}"], "v5e-4")


def test_an_interrupted_plan_leaves_no_compiler_at_work(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = started_instead(
        monkeypatch,
        "from noisyjax.tpu.planning.worker import _end_with\n"
        "sys.stdin.readline()\n"
        "threading.Thread(target=_end_with, args=(0,), daemon=True).start()\n"
        f"os.kill({os.getpid()}, {int(signal.SIGINT)})\n"
        "threading.Event().wait(60)",
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            plans.plan("train/grpo_paper", [f"model={tiny}"], "v5e-4")
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].wait(10) == 1


def test_configs_are_known_by_their_keys(tiny: Path) -> None:
    assert read_subject("train/grpo_paper", [f"model={tiny}"]).kind == "grpo"
    assert read_subject("train/sft_paper", [f"model={tiny}"]).kind == "sft"
    assert read_subject("sweeps/small", [f"engine.model={tiny}"]).kind == "eval"
    with pytest.raises(UsageError, match="several runs"):
        read_subject("sweeps/table2")


def test_models_are_folders_or_known_names(tiny: Path) -> None:
    assert architecture(tiny).d_model == 128
    assert architecture("weights/Qwen3-4B").d_model == 2560
    assert architecture("gpt-oss-20b").quantised is None
    assert architecture("gpt-oss-20b", keep_quantised=True).quantised == "mxfp4"
    with pytest.raises(UsageError, match=r"^judge\.engine\.model=Qwen3-4b is .*did you mean 'Qwen3-4B'"):
        architecture("Qwen3-4b", "judge.engine.model")


def test_prices_are_the_readers_own(tmp_path: Path) -> None:
    assert set(read_prices("tpu_prices")) == set(GENERATIONS)
    assert not any(price.spot or price.on_demand for price in read_prices("tpu_prices").values())
    (tmp_path / "mine.yaml").write_text("v5x: {spot: 1}\n")
    with pytest.raises(UsageError, match="did you mean"):
        read_prices(str(tmp_path / "mine.yaml"))
    found = {"tokens": 7200, "seconds": {"update": 1.5, "decode": 0.5}, "chips": 4, "fits": True}
    assert _rates(found, ChipPrice(spot=0.5))["tokens_per_dollar"] == {"spot": 3600 * 3600 / 2}
    assert _rates(found, ChipPrice())["tokens_per_dollar"] is None
    assert _rates(found | {"fits": False}, ChipPrice(spot=0.5)) == {}
