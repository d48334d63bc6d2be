"""The command line as a person meets it: help at once, one readable line for each mistake, the right exit code."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from evaluate_fakes import fake_run

from noisyjax.cli import main
from noisyjax.config import load, packaged_configs
from noisyjax.config.tree import read_tree

REPO = Path(__file__).resolve().parents[2]


def run(*words: str, cwd: Path = REPO) -> subprocess.CompletedProcess:
    """In a process of its own, without what this one has imported."""
    command = [sys.executable, "-m", "noisyjax", *words]
    env = {"PYTHONPATH": str(REPO), "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=300)


@pytest.fixture
def say(capsys):
    """Run in this process: (exit code, stdout, stderr)."""

    def _say(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(words)
        out = capsys.readouterr()
        return caught.value.code, out.out, out.err

    return _say


def test_help_imports_no_heavy_room():
    code = (
        "import sys\n"
        "from noisyjax.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as e:\n    assert e.code == 0\n"
        "heavy = {'jax', 'flax', 'numpy', 'torch', 'transformers', 'pydantic', 'openai', 'matplotlib', 'jinja2'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, check=True)
    assert "HEAVY []" in done.stdout
    assert "quickstart" in done.stdout


def test_help_is_fast():
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert run("--help").returncode == 0
        times.append(time.perf_counter() - start)
    bare = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import typer.main"], check=True)
    bare = time.perf_counter() - bare
    # half a second on an idle machine; typer's own share is allowed for on a busy one
    assert min(times) < max(0.5, 3 * bare), times


@pytest.mark.parametrize("words", [["eval"], ["report"], ["rescore"], ["bench"], ["bench", "ls"], ["bench", "show"]])
def test_every_verb_has_help(words, say):
    code, out, _ = say(*words, "--help")
    assert code == 0
    assert "Usage" in out


def test_version(say):
    assert say("--version")[:2] == (0, "noisyjax 0.1.0\n")


@pytest.mark.parametrize(
    ("words", "code", "wanted"),
    [
        (["evall"], 2, r"did you mean 'eval'|Did you mean 'eval'"),
        (["bench", "lss"], 2, "'ls'"),
        (["eval"], 2, "(?i)missing argument.*config"),
        (["eval", "sweeps/quickstrat"], 2, "did you mean 'sweeps/quickstart'"),
        (["eval", "quickstart", "engine.slotz=3"], 2, r"engine\.slotz .*did you mean 'slots'"),
        (["eval", "quickstart", "bench.datasets=[quickstart_fact]"], 2, "did you mean 'quickstart_facts'"),
        (["eval", "quickstart", "bench.settings=[ND, RDD]"], 2, "unknown setting 'RDD'"),
        (["eval", "quickstart", "bench.data=/no/such/folder"], 2, "/no/such/folder"),
        (["eval", "quickstart", "sampling.max_tokens=many"], 2, r"sampling\.max_tokens.*whole number|valid integer"),
        (["eval", "endpoint", "engine.api_key_env=NO_SUCH_VARIABLE_HERE"], 2, "NO_SUCH_VARIABLE_HERE is not set"),
        (["report", "no_such_run"], 2, "is not a run: there is nothing at that place"),
        (["report", "--draws", "x", "y"], 2, "draws"),
        (["rescore", "no_such_run"], 2, "is not a run: there is nothing at that place"),
        (["bench", "show", "quickstart_factz"], 2, "did you mean 'quickstart_facts'"),
        (["bench", "validate", "datas=1"], 2, "did you mean 'data'"),
        (["convert", "gguf", "nothing.gguf", "out"], 2, r"nothing\.gguf"),
    ],
)
def test_mistakes_get_one_readable_message(words, code, wanted, say):
    got, _, err = say(*words)
    assert got == code, err
    assert re.search(wanted, err), err
    assert "Traceback" not in err
    assert err.startswith("noisyjax: ")


def test_debug_adds_the_traceback_wherever_it_stands(say):
    for words in (["--debug", "report", "none"], ["report", "none", "--debug"], ["report", "--debug", "none"]):
        code, _, err = say(*words)
        assert code == 2
        assert "Traceback" in err
        assert err.rstrip().splitlines()[-1].startswith("noisyjax: none is not a run")


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "quickstart", "engine.slotz=3"],
        ["eval", "quickstrat"],
        ["eval", "endpoint", "bench.datasets=[nothing]"],
        ["eval", "quickstart", "bench.data=/no/such/folder"],
        ["eval", "quickstart", "engine.model=/no/such/folder"],
        ["eval", "endpoint", "bench.data=/no/such/folder"],
        ["bench", "show", "nothing"],
        ["bench", "validate", "datas=1"],
        ["report", "no_such_run"],
        ["rescore", "no_such_run"],
    ],
)
def test_mistakes_are_told_before_anything_heavy_is_imported(words):
    code = (
        "import sys\n"
        "from noisyjax.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as e:\n    assert e.code == 2, e.code\n"
        "heavy = {'jax', 'flax', 'torch', 'transformers', 'openai', 'matplotlib', 'datasets', 'sympy'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=REPO, check=True)
    assert done.stdout == "HEAVY []\n"
    assert done.stderr.startswith("noisyjax: ")


def test_a_message_cannot_command_the_terminal(say):
    code, _, err = say("report", "no\x1b[2Jrun")
    assert code == 2
    assert "no␛[2Jrun is not a run" in err


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda m: {}, "lacks 'format', 'config'"),
        (lambda m: {**m, "about": {}}, r"lacks 'about\.cells', 'about\.datasets'"),
        (lambda m: {**m, "config": {}}, r"lacks 'config\.bench'"),
        (
            lambda m: {**m, "about": {**m["about"], "cells": [{"id": "x"}]}},
            r"holds a cell in 'about\.cells' that is none",
        ),
    ],
)
def test_a_broken_manifest_is_one_readable_message(change, wanted, tmp_path, say):
    fake_run(tmp_path, "bench.questions=1")
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    code, _, err = say("report", str(tmp_path))
    assert code == 2
    assert re.search(wanted, err), err
    assert "restore this one file from a copy" in err
    assert "Traceback" not in err


def test_eval_leaves_a_folder_alone_that_is_no_run(tmp_path, say):
    """Said before the model, which is not there, is looked for."""
    (tmp_path / "thesis.tex").write_text("")
    code, _, err = say("eval", "quickstart", "engine.model=/no/such", f"out={tmp_path}")
    assert code == 2
    assert "is not empty and holds no run (thesis.tex)" in err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_model_folder_mistakes(tmp_path, say):
    code, _, err = say("eval", "quickstart", f"engine.model={tmp_path}", f"out={tmp_path}/run")
    assert code == 2
    assert f"engine.model={tmp_path} is not a model folder: it has no config.json" in err
    (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}')
    judge = "judge={engine: {kind: local, model: nowhere}}"  # told before the run, at whose end it is asked
    code, _, err = say("eval", "quickstart", f"engine.model={tmp_path}", judge, f"out={tmp_path}/run")
    assert code == 2
    assert "judge.engine.model=nowhere is not a model folder" in err
    code, _, err = say("eval", "quickstart", f"engine.model={tmp_path}", f"out={tmp_path}/run")
    assert code == 2
    assert not (tmp_path / "run").exists()


def test_bugs_keep_their_traceback(monkeypatch):
    from noisyjax import report

    def broken(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(report, "print_report", broken)
    with pytest.raises(ZeroDivisionError):
        main(["report", "x"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on(number, code, monkeypatch, say):
    from noisyjax.evaluate import run as room

    def stopped(_):
        raise room.Stopped(number, "stopped; the same command goes on")

    monkeypatch.setattr(room, "evaluate", stopped)
    assert say("eval", "quickstart") == (code, "", "noisyjax: stopped; the same command goes on\n")


def test_an_interrupt_without_words(monkeypatch, say):
    from noisyjax import report

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "print_report", stopped)
    assert say("report", "x") == (130, "", "noisyjax: interrupted\n")


def test_endpoint_that_refuses_is_a_run_failure(tmp_path, say):
    words = ["engine.base_url=http://127.0.0.1:9/v1", "engine.first_contact_s=0.2", "engine.backoff_s=0.05"]
    code, _, err = say("eval", "endpoint", *words, "bench.questions=1", f"out={tmp_path}/run")
    assert code == 1
    assert "127.0.0.1:9" in err
    assert "Traceback" not in err


def test_bench_verbs(say):
    code, out, _ = say("bench", "ls")
    assert code == 0
    assert "survival_instinct" in out  # names are to be typed: whole at 80 columns
    assert "absent" in out
    code, out, _ = say("bench", "show", "quickstart_facts", "--setting", "HN")
    assert code == 0
    assert "⟨distractor" in out
    assert "⟨question⟩" in out
    code, out, _ = say("bench", "validate")
    assert code == 0
    assert "sound" in out


def test_bench_validate_finds_broken_rows(tmp_path, say):
    import shutil

    from noisyjax.bench.quickstart import FOLDER

    shutil.copytree(FOLDER, tmp_path / "data")
    with (tmp_path / "data" / "quickstart_facts.jsonl").open("a") as file:
        file.write('{"broken\n')
    code, out, _ = say("bench", "validate", f"data={tmp_path}/data")
    assert code == 1
    assert "quickstart_facts.jsonl" in out
    assert "not sound" in out


def test_packaged_configs_that_evaluate_load():
    from noisyjax.evaluate import EvalConfig, load_runs

    sweeps = [name for name in packaged_configs() if name.startswith("sweeps/")]
    assert len(sweeps) >= 5
    for name in sweeps:
        assert all(run.name for run in load_runs(name))
    assert load(EvalConfig, "small").bench.questions == 12
    assert load(EvalConfig, "paper_cic").bench.prompting == "cic"


def test_every_config_file_is_known_to_a_test():
    """Whoever adds a kind of config says here who loads it."""
    from noisyjax.bench import BenchConfig
    from noisyjax.engine.remote.config import PriceTable
    from noisyjax.evaluate import EvalConfig, load_runs
    from noisyjax.tpu.planning.prices import ChipPrices

    schemas = {"bench": BenchConfig, "prices": PriceTable, "tpu_prices": ChipPrices}
    for name, path in packaged_configs().items():
        kind = name.split("/")[0]
        if name.startswith("models/presets/"):
            pass  # tests/config/test_presets.py
        elif kind == "models":
            load(EvalConfig, None, [f"engine={yaml.safe_dump(read_tree(path)[0], default_flow_style=True)}"])
        elif kind == "sweeps":
            assert load_runs(path)
        elif kind in schemas:
            load(schemas[kind], path)
        elif kind == "train":
            pass  # tests/train/test_config.py
        else:
            raise AssertionError(f"no test loads configs of the kind {kind}")
