"""Where a test session's time goes, by phase, file and test; printed at the end of every run.

Phases of one test, all in seconds:
- `compile`: XLA's own compiler, and reading programs back from its cache (jax.monitoring);
- `trace`: Python to jaxpr to MLIR;
- `child`: blocked on a process that the test started (`subprocess`);
- `idle`: neither this process nor its children used the processor: sleeps, timeouts, sockets;
- `run`: the rest.
`import` is a worker's time from its start to the end of collection, once a worker.

Nested phases are not counted twice by much: tracing inside tracing is, so `trace` may overstate.
"""

import json
import os
import resource
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import jax
import pytest

STARTED = time.monotonic()
PHASES = ("compile", "trace", "child", "idle", "run")
_EVENTS = {
    "/jax/core/compile/backend_compile_duration": "compile",
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "trace",
}
_spent: dict[str, float] = defaultdict(float)


def _on_duration(event: str, seconds: float, **_: object) -> None:
    if event in _EVENTS:
        _spent[_EVENTS[event]] += seconds


jax.monitoring.register_event_duration_secs_listener(_on_duration)


def _count_child_time() -> None:
    """Popen.wait is what run, call, check_output and communicate end in."""
    plain_wait, plain_communicate = subprocess.Popen.wait, subprocess.Popen.communicate
    depth = 0

    def timed(plain):
        def call(self, *args, **kwargs):
            nonlocal depth
            depth += 1
            started = time.monotonic()
            try:
                return plain(self, *args, **kwargs)
            finally:
                depth -= 1
                if not depth:
                    _spent["child"] += time.monotonic() - started

        return call

    subprocess.Popen.wait = timed(plain_wait)  # type: ignore[method-assign]
    subprocess.Popen.communicate = timed(plain_communicate)  # type: ignore[method-assign]


_count_child_time()


def _cpu_seconds() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    _spent.clear()
    item.stash[_BEGUN] = (time.monotonic(), _cpu_seconds())
    return (yield)


_BEGUN: pytest.StashKey[tuple[float, float]] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """The last report of a test carries what its set-up, call and clean-up took together."""
    report = yield
    if call.when == "teardown":
        wall0, cpu0 = item.stash[_BEGUN]
        wall = time.monotonic() - wall0
        spent = {name: _spent[name] for name in ("compile", "trace", "child")}
        spent["idle"] = max(0.0, wall - (_cpu_seconds() - cpu0))
        spent["run"] = max(0.0, wall - sum(spent.values()))
        report.user_properties.append(("spent", {"wall": wall, **spent}))
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["import"] = time.monotonic() - STARTED


class Summary:
    """On the controller: collects what the workers' reports carry, and prints it."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, float]] = {}
        self.imports: list[float] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "spent":
                self.tests[report.nodeid] = value
                if target := os.environ.get("NOISYJAX_TEST_TIMES"):
                    with Path(target).open("a") as file:
                        file.write(json.dumps({"test": report.nodeid, **value}) + "\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error) -> None:
        self.imports.append(getattr(node, "workeroutput", {}).get("import", 0.0))

    def pytest_terminal_summary(self, terminalreporter) -> None:
        write = terminalreporter.write_line
        if len(self.tests) < 20:
            return
        files: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for test, spent in self.tests.items():
            for phase, seconds in spent.items():
                files[test.split("::")[0]][phase] += seconds
        total = {phase: sum(spent[phase] for spent in self.tests.values()) for phase in ("wall", *PHASES)}
        terminalreporter.section("time")
        imports = f"import {sum(self.imports):.0f} s, " if self.imports else ""
        write(f"workers' time {total['wall']:.0f} s: {imports}" + ", ".join(f"{p} {total[p]:.0f} s" for p in PHASES))
        write("the twenty slowest files")
        for name, spent in sorted(files.items(), key=lambda pair: -pair[1]["wall"])[:20]:
            write(_line(name, spent))
        write("the twenty slowest tests")
        for name, spent in sorted(self.tests.items(), key=lambda pair: -pair[1]["wall"])[:20]:
            write(_line(name, spent))


def _line(name: str, spent: dict[str, float]) -> str:
    shares = ", ".join(f"{phase} {spent[phase]:.0f}" for phase in PHASES if spent[phase] >= 0.5)
    return f"{spent['wall']:7.1f} s  {name}  ({shares})"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(), "time summary")
