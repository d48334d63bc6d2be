"""docs/tpu.md: its scripts take the flags it shows, its job files are made, its table is that of the code."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from noisyjax.config import load
from noisyjax.evaluate import SweepConfig, load_runs
from noisyjax.tpu import GENERATIONS, parse_accelerator
from noisyjax.train import GrpoConfig, SftConfig

REPO = Path(__file__).resolve().parents[2]
PAGE = (REPO / "docs" / "tpu.md").read_text(encoding="utf-8")
LINES = re.findall(r"^(tpu_scripts/\S+\.sh [^'\n]*?(?:'[^']*')?)(?: {3,}#.*)?$", PAGE, re.MULTILINE)
"""Commands; a quoted script may be several lines long."""
MODELS = ("Qwen3-4B", "Qwen3-30B-A3B", "DeepSeek-R1-Distill-Llama-8B")
ENV = {"TPU_PROJECT": "acme-lab", "TPU_ZONE": "us-east5-b", "PATH": "/usr/bin:/bin"}


def test_the_path_is_whole():
    called = [shlex.split(line)[0].rsplit("/", 1)[1] for line in LINES]
    path = ["create.sh", "setup.sh", "launch.sh", "status.sh", "tail.sh", "sync.sh", "delete.sh", "resume.sh"]
    assert called[: len(path)] == path
    assert sorted(set(path)) == sorted(p.name for p in (REPO / "tpu_scripts").glob("*.sh") if p.name != "common.sh")


@pytest.mark.parametrize("line", LINES)
def test_scripts_take_these_words(line, tmp_path):
    words = shlex.split(line)
    if "resume.sh" in words[0]:  # it wants to know how the TPU was created
        (tmp_path / ".tpu" / words[1]).mkdir(parents=True)
        (tmp_path / ".tpu" / words[1] / "create").write_text("gcloud\0--project=acme-lab\0--zone=us-east5-b\0")
    script = [str(REPO / words[0]), "--dry-run", *words[1:]]
    done = subprocess.run(script, cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_what_workers_are_told_to_run_is_a_command():
    scripts = [line.split("bash -c '")[1].rstrip("'") for line in LINES if "bash -c" in line]
    found = [re.search(r"noisyjax ([^&]*)", script) for script in scripts]
    told = [shlex.split(match[1].replace("\\\n", "")) for match in found if match]
    assert [words[0] for words in told] == ["eval", "train", "export"]
    (_, sweep, *changes), (_, verb, train, *words), (_, run, out) = told
    assert len(load_runs(sweep, changes)) == 1
    assert verb == "grpo"
    made = load(GrpoConfig, train, words)
    assert made.out == run
    assert f"rsync --recursive {out} " in scripts[2]
    # The plan is of this run, and its words are the run's.
    plan = re.findall(r"^noisyjax tpu plan (.*--search)$", PAGE.split("## From a plan")[1], re.MULTILINE)[0]
    asked = [word for word in shlex.split(plan) if "=" in word and not word.startswith("model=")]
    (taken,) = re.findall(r"^taken: (.*) \(", PAGE, re.MULTILINE)
    assert {*asked, *taken.split()} <= set(words)
    assert made.mesh.devices == parse_accelerator(shlex.split(plan)[-2]).devices


def test_files_that_are_named_exist():
    for name in re.findall(r"`?(tpu_scripts/[\w.]+)", PAGE):
        assert (REPO / name).is_file(), name
    shell = [f"{name}.sh" for name in re.findall(r"`(\w+)\.sh`", PAGE)]
    assert all((REPO / "tpu_scripts" / name).is_file() for name in shell)


def test_the_sweep_is_one():
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    tree = yaml.safe_load(text)
    sweep = SweepConfig(axes=tree["axes"], skip=tree["skip"])
    assert len(sweep.combinations()) == 5


def test_the_recipe_makes_what_table_2_reads():
    recipe = PAGE.split("### The trained models of Table 2")[1].split("\n## ")[0]
    lines = [shlex.split(line) for line in re.findall(r"^noisyjax (.*)$", recipe, re.MULTILINE)]
    trained = {str(run.engine.model) for run in load_runs("sweeps/table2") if "trained" in str(run.engine.model)}
    made = {out.replace("$M", model) for verb, *_, out in lines if verb == "export" for model in MODELS}
    assert made == trained
    runs = {}
    for verb, kind, *rest in lines:
        if verb == "train":
            config = load({"sft": SftConfig, "grpo": GrpoConfig}[kind], rest[0], rest[1:])
            runs[config.out] = config
        else:
            assert kind in runs  # an export of what the line before has made
    assert [c.reward.combination for c in runs.values() if isinstance(c, GrpoConfig)] == ["outcome", "additive"]


def test_the_laptop_runs_what_the_tpus_do_not():
    lines = [shlex.split(line) for line in re.findall(r"^noisyjax (.*sweeps/table1 .*)$", PAGE, re.MULTILINE)]
    left = [
        {r.name for r in load_runs("sweeps/table1", [w for w in words if w.startswith("skip=")])} for words in lines
    ]
    everything = {r.name for r in load_runs("sweeps/table1")}
    assert [words[:2] for words in lines] == [["tpu", "jobs"], ["eval", "sweeps/table1"]]
    assert left[0] | left[1] == everything
    assert not left[0] & left[1]


def test_the_table_is_that_of_the_code():
    for name, g in GENERATIONS.items():
        numbers = (g.hbm_bytes / 2**30, g.flops / 1e12, g.hbm_bytes_s / 1e9, g.ici_bytes_s / 1e9)
        hbm, flops, bandwidth, ici = (f"{number:,.1f}".removesuffix(".0") for number in numbers)
        assert f"| {name} | {hbm} GiB | {flops} | {bandwidth} | {ici} | {g.devices_per_chip} |" in PAGE
