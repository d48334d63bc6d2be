"""Makes the fakes importable, and makes the runs that all tests of reports share, once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluate"))
sys.path.insert(0, str(Path(__file__).parent))

from evaluate_fakes import fake_run
from report_fakes import Learner, curves, evaluated, sample, trained, world


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> dict[str, str]:
    """Name -> folder: a plain run, the same with CiC prompts, one with pass@2, and one of another block seed."""
    root = tmp_path_factory.mktemp("runs")
    small = "bench.datasets=[quickstart_facts, quickstart_choice, tau_retail]"
    fake_run(root / "plain", "name=plain", small)
    fake_run(root / "cic", "name=cic", small, "bench.prompting=cic")
    fake_run(root / "block", "name=block", small, "bench.block_seed=7")
    fake_run(root / "several", "name=several", "n=4", "k=2", "bench.questions=3")
    return {name: str(root / name) for name in ("plain", "cic", "block", "several")}


@pytest.fixture(scope="session")
def arms(tmp_path_factory) -> dict[str, str]:
    """Name -> folder: two training runs with three evaluations each, the second one not finished."""
    root = tmp_path_factory.mktemp("arms")
    data = world(root / "data")
    for name, planned, gain in (("or", 60, 0.2), ("graded", 80, 0.4)):
        with trained(root / name, name, curves(name, 60), planned) as log:
            for step in (1, 20, 40, 60):
                log.samples(step, [sample(step, n) for n in range(2)])
        for step in (0, 30, 60):
            share = step / 60
            evaluated(root / name, step, data, Learner(0.4 + gain * share, 0.4 * (1 - gain * share)))
    return {name: str(root / name) for name in ("or", "graded")}
