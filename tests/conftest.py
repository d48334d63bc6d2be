"""Shared fixtures. JAX runs on the CPU with eight fake devices, so that sharding is exercised everywhere."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_threefry_partitionable", True)

REPO = Path(__file__).resolve().parent.parent

# Many tests build the same tiny programs: each is compiled once per checkout, not once per test.
jax.config.update("jax_compilation_cache_dir", str(REPO / ".pytest_cache" / "programs"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Upstream data files laid beside the checkout; tests on them are skipped where they are absent."""
    folder = REPO.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the upstream data files are not beside this checkout")
    return folder
