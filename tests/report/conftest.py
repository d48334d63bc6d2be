"""Makes the fake engine of tests/evaluate importable, and runs it once for all tests of reports."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluate"))

from evaluate_fakes import fake_run


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
