"""The rooms of the package: each has its place in the layers contract, and hands on the names it promises."""

import pkgutil
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import noisyjax

CONTRACTS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
ROOMS = {f"noisyjax.{m.name}" for m in pkgutil.iter_modules(noisyjax.__path__) if m.name not in ("__main__", "models")}


def test_every_room_has_a_layer():
    layers = next(c["layers"] for c in CONTRACTS if c["type"] == "layers")
    assert sorted(room for row in layers for room in row.split(" | ")) == sorted(ROOMS)


def test_models_may_import_none_of_them():
    assert set(next(c["forbidden_modules"] for c in CONTRACTS if c["type"] == "forbidden")) >= ROOMS


@pytest.mark.parametrize("room", ["noisyjax.engine", "noisyjax.evaluate"])
def test_names_that_are_imported_late_exist(room):
    module = import_module(room)
    for name in module.__all__:
        assert getattr(module, name).__name__ == name


def test_models_have_one_import_name():
    """`import models` would make a second copy of every class."""
    repo = Path(__file__).parents[1]
    files = [p for folder in ("noisyjax", "tests", "benchmarks") for p in (repo / folder).rglob("*.py")]
    assert len(files) > 100
    twice = re.compile(r"^\s*(from|import) models\b", re.MULTILINE)
    assert [str(p) for p in files if twice.search(p.read_text())] == []
