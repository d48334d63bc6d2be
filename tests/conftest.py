"""Shared fixtures. JAX runs on the CPU with eight fake devices, so that sharding is exercised everywhere."""

import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
REPO = Path(__file__).resolve().parent.parent

# Many tests build the same tiny programs: each is compiled once per checkout, not once per test or process started.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(REPO / ".pytest_cache" / "programs"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# So is Python's own bytecode, also where the environment says not to write any: hundreds of processes are started.
BYTECODE = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(REPO / ".pytest_cache" / "bytecode"))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.pycache_prefix, sys.dont_write_bytecode = BYTECODE, False

# The TPU's compiler, where `make test` puts it: jax is told to use the CPU, and finds it only when asked to compile.
sys.path.append(str(REPO / ".venv" / "tpu"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), sys.path[-1]]))

import hypothesis  # noqa: E402
import jax  # noqa: E402  what is set above is read when it is imported
import pytest  # noqa: E402

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

pytest_plugins = ["tests.timing"]

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_threefry_partitionable", True)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Upstream data files laid beside the checkout; tests on them are skipped where they are absent."""
    folder = REPO.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the upstream data files are not beside this checkout")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
