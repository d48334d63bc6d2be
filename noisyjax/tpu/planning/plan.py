"""`noisyjax tpu plan`: asks the TPU's compiler what a run would be on a slice, on whatever machine this is."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from noisyjax.errors import NoisyjaxError, RunError, UsageError
from noisyjax.tpu.names import parse_accelerator
from noisyjax.tpu.planning.prices import ChipPrice
from noisyjax.tpu.planning.subject import read_subject

Plan = Mapping[str, Any]
"""As `account.account` makes it, with what a dollar buys."""

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
}
"""With these libtpu compiles without looking for a TPU, quietly, in any number of processes. The type is not the one
that is compiled for; it must only be one."""

COMPILER = Path(sys.prefix) / "tpu"
"""Where `make tpu` puts libtpu: inside the environment jax would find it, and every command would look for a TPU."""


def plan(
    source: str,
    overrides: Sequence[str],
    topology: str,
    *,
    search: bool = False,
    only: Sequence[str] = (),
    prices: Mapping[str, ChipPrice] | None = None,
) -> Plan:
    """What the run of a config would be on a slice; seconds to minutes of compilation in a process of its own.

    Args:
        topology: an accelerator's name.
        search: find the mesh and the micro-batch; the config's own are not looked at.
        only: names of programs, such as "update"; all without.

    Raises UsageError for what cannot be asked, RunError when the compiler fails.
    """
    where = parse_accelerator(topology)
    read_subject(source, overrides)
    if importlib.util.find_spec("libtpu") is None and not (COMPILER / "libtpu").is_dir():
        raise UsageError(
            "plans need the TPU's compiler (and no TPU): `make tpu` in the checkout brings it, or "
            f"pip install --no-deps --target {COMPILER} libtpu"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        request = {
            "source": source,
            "overrides": list(overrides),
            "topology": topology,
            "search": search,
            "only": list(only),
            "answer": str(file),
        }
        code = _compiled(request)
        if not file.exists():
            raise RunError(f"the compiler's process for {where.name} {_ended(code)}")
        answer = json.loads(file.read_text(encoding="utf-8"))
    if "error" in answer:
        failure: type[NoisyjaxError] = UsageError if answer["code"] == 2 else RunError
        raise failure(answer["error"])
    return answer["plan"] | _rates(answer["plan"], (prices or {}).get(where.generation.name))


def _compiled(request: Mapping[str, Any]) -> int:
    """The exit code of a process that answers the request.

    It ends when its stdin does, so that none is left at work by a plan that is interrupted or killed. Ctrl-C reaches
    this process alone.
    """
    paths = (os.environ.get("PYTHONPATH"), str(COMPILER))
    with subprocess.Popen(
        [sys.executable, "-m", "noisyjax.tpu.planning.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        process_group=0,
    ) as process:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        return process.wait()


def _ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed, as a system does that has no memory left: ask for less at once with --only"
    return f"ended with code {code} and no answer"


def _rates(found: Plan, price: ChipPrice | None) -> dict[str, Any]:
    """Response tokens per second of a step, and per dollar; nothing of a run that does not fit."""
    if "tokens" not in found or not found["fits"]:
        return {}
    speed = found["tokens"] / sum(found["seconds"].values())
    hourly = {} if price is None else {name: dollars for name, dollars in price if dollars is not None}
    bought = {name: speed * 3600 / (dollars * found["chips"]) for name, dollars in hourly.items()}
    return {"tokens_per_second": speed, "tokens_per_dollar": bought or None}
