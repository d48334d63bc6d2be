"""The programs of training, sampling and judging, by the TPU's own compiler, with the kernels that they are to have.

Nothing is run, and no TPU is needed: libtpu compiles ahead of time.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from noisyjax.tpu.planning.plan import ENVIRONMENT

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the extra `tpu`"),
    pytest.mark.slow,
]

TOPOLOGIES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")


@functools.cache
def compiled(topology: str, family: str = "qwen3") -> dict[str, Any]:
    """`compiling.facts` of every program, by name."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "facts.json"
        script = Path(__file__).with_name("compiling.py")
        command = [sys.executable, str(script), topology, family, str(file)]
        done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_all_attend_by_kernel(topology: str) -> None:
    """One kernel forwards, whose results are kept, and two backwards; one for stored keys, in prefill and decoding."""
    found = compiled(topology)
    kernels = {name: facts["kernels"] for name, facts in found.items()}
    assert kernels == {"update": 3, "prefill": 1, "decode": 1, "judge prefill": 1, "judge decode": 1}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_decoding_copies_no_cache(topology: str) -> None:
    for name in ("decode", "judge decode"):
        found = compiled(topology)[name]
        assert found["cache"] > 2**26
        assert found["temp"] <= 0.2 * found["cache"], name


def test_sinks_windows_and_experts() -> None:
    """A window in every other layer of a scan: training has each kernel twice, prefill and decoding take any. Experts:
    three products, made again with the layer, and two for each going backward."""
    found = compiled("v6e:2x2", "gpt_oss")
    assert found["update"]["kernels"] == 2 * 3 + (3 + 3 + 2 * 3)
    assert found["prefill"]["kernels"] == 1 + 3
    assert found["decode"]["kernels"] == 1 + 3
    assert found["replay"]["kernels"] == 2 + 3  # what is stored is visited for values and for labels
