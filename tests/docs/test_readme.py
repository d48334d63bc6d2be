"""The README's commands name what is there, its links lead somewhere, and its Python runs."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.exceptions import TyperException

from noisyjax.bench import BenchConfig
from noisyjax.cli import app
from noisyjax.config import load
from noisyjax.evaluate import EvalConfig, load_runs
from noisyjax.quickstart.random_model import make_model
from noisyjax.quickstart.run import WORDS
from noisyjax.tpu.jobs import JobSpec, job_file
from noisyjax.train import GrpoConfig, SftConfig

REPO = Path(__file__).resolve().parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")
PAGES = {"README": README} | {
    name: (REPO / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("configuration", "tpu")
}


def commands(text: str) -> list[str]:
    """Every line that begins with `noisyjax`, in blocks or in inline code, and the lines of config headers."""
    inline = re.findall(r"`(noisyjax [^`\n]+)`", text)
    lines = re.findall(r"^[ #]*(noisyjax [a-z].*)$", text, re.MULTILINE)
    # Three spaces part a command from what is said about it.
    return [re.split(r" {3,}", line)[0] for line in dict.fromkeys(inline + lines)]


def texts() -> list[tuple[str, str]]:
    """(where, command) of the pages, the quickstart's last words and the comments of the packaged configs."""
    found = [(where, line) for where, text in PAGES.items() for line in commands(text)]
    found += [("quickstart", line) for line in commands(WORDS)]
    for path in sorted((REPO / "noisyjax" / "configs").rglob("*.yaml")):
        comments = re.findall(r"^#   (noisyjax .*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        found += [(path.stem, line) for line in comments]
    return found


def parse(line: str) -> tuple[str, dict]:
    """The verb and its parameters as the command line itself reads them; raises on an unknown verb or option."""
    words = shlex.split(line, comments=True)[1:]
    command, name = typer.main.get_command(app), "noisyjax"
    context = command.make_context(name, [], resilient_parsing=True)
    while hasattr(command, "commands"):
        assert words, f"{line}: a verb is missing"
        name, command, words = command.resolve_command(context, words)
        assert command is not None, f"{line}: unknown verb"
    return name, command.make_context(name, words).params


@pytest.mark.parametrize(("where", "line"), texts(), ids=lambda text: text[:60])
def test_commands_parse_and_their_configs_load(where, line):
    name, params = parse(line.replace("=URL", "=http://localhost/v1"))
    if name == "eval":
        assert load_runs(params["config"], params["overrides"] or [], params["shard"], params["split"])
    elif name in ("grpo", "sft"):
        assert load({"grpo": GrpoConfig, "sft": SftConfig}[name], params["config"], params["overrides"] or []).steps
    elif name == "jobs":
        mounts = dict(word.split("=", 1) for word in params["mount"])
        given = {key: params[key] for key in ("accelerator", "shards", "split", "spot", "bucket", "image")}
        given |= {"mounts": mounts, "env": tuple(params["env"])}
        text = job_file(params["engine"], JobSpec(params["config"], tuple(params["overrides"]), **given))
        assert "brought by no --mount" not in text
    elif name in ("show", "validate"):
        load(BenchConfig, None, params["overrides"] or [])


def test_the_readme_shows_the_main_verbs():
    assert {parse(line)[0] for line in commands(README)} >= {"eval", "report", "ls", "gguf"}


@pytest.mark.parametrize("line", ["noisyjax evil x", "noisyjax report runs/x --htm y", "noisyjax bench"])
def test_a_wrong_command_would_be_found(line):
    with pytest.raises((TyperException, AssertionError)):
        parse(line)


def test_words_in_inline_code_are_keys():
    words = re.findall(r"`((?:(?:bench|engine|sampling)\.[\w.]+=[^`\s]+ ?)+)`", README)
    assert len(words) >= 3
    for word in words:
        load(EvalConfig, "sweeps/quickstart", word.split())


def test_extras_and_targets_exist():
    project = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(r"'\.\[(\w+)\]'", README):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", README, re.MULTILINE):
        assert re.search(rf"^{''.join(target)}:", makefile, re.MULTILINE), target


def test_links_lead_to_files():
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (REPO / link).is_file(), link


@pytest.mark.slow
def test_the_python_runs(tmp_path, capsys):
    make_model(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "FOLDER" in code
    exec(compile(code.replace("FOLDER", str(tmp_path)), "README.md", "exec"), {"__name__": "readme"})
    out = capsys.readouterr().out
    assert {line[0] for line in re.findall(r"^[0-3] ", out, re.MULTILINE)} == set("0123")
