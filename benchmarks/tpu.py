"""The plans that docs/tpu.md shows, compiled anew: what each run would be on its TPU, a table each.

python -m benchmarks.tpu                       all of them, by the TPU's own compiler; no TPU is needed
python -m benchmarks.tpu 4b-v5e 30b-v5p        only these
python -m benchmarks.tpu --json plans.json     also as JSON

Exit code 1 when a bound is not kept. What does not fit or compile is told as it is.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisyjax.errors import NoisyjaxError
from noisyjax.tpu.names import GIB
from noisyjax.tpu.planning.plan import Plan, plan


@dataclass(frozen=True)
class Case:
    """A plan, and the bounds that it has to keep. All programs have to fit, unless it is there to be compared.

    most_gib: of a device, in the update. least_mfu: of the update.
    """

    topology: str
    words: tuple[str, ...]
    search: bool = False
    only: tuple[str, ...] = ()
    most_gib: float | None = None
    least_mfu: float | None = None
    worse: bool = False
    """There to be compared: its update takes more of a device than that of the case before."""

    @property
    def command(self) -> str:
        """What a person would type."""
        options = ["--topology", self.topology, *["--search"] * self.search]
        options += [word for name in self.only for word in ("--only", name)]
        return shlex.join(["noisyjax", "tpu", "plan", "train/grpo_paper", *self.words, *options])

    def missed(self, found: Plan | None, before: Plan | None = None) -> Iterator[str]:
        """Bounds that are not kept. before: the plan of the case before."""
        if found is None:
            yield "could not be planned"
            return
        if self.worse:
            if before is None or _update_gib(found) <= _update_gib(before):
                yield f"its update takes {_update_gib(found):.1f} GiB of a device, no more than that of the case before"
            return
        for one in found["programs"]:
            if not one["fits"]:
                yield f"{one['name']} does not fit: {one['problem']}"
        if self.most_gib is not None and (peak := _update_gib(found)) > self.most_gib:
            yield f"its update takes {peak:.1f} GiB of a device, at most {self.most_gib:g}"
        if self.least_mfu is not None and found["mfu"] is not None and found["mfu"] < self.least_mfu:
            yield f"MFU {found['mfu']:.1%}, at least {self.least_mfu:.0%}"


def _update_gib(found: Plan) -> float:
    """Of a device; infinite where the compiler gave up."""
    peak = next(one["peak"] for one in found["programs"] if one["name"] == "update")
    return float("inf") if peak is None else peak / GIB


def _run(model: str, slots: int) -> tuple[str, ...]:
    """The words of a run in which what does not work waits in host memory. slots: of each host."""
    return (f"model={model}", f"rollout.slots={slots}", "rollout.offload=true", "reference_offload=true")


def _judged(topology: str, run: tuple[str, ...], mesh: tuple[str, ...], judge: str, slots: int) -> Case:
    """A judge beside a trainer on this mesh. Its experts are cut whole and along their width: packed ones, 2,880 wide,
    can only be halved."""
    engine = f"{{kind: local, model: {judge}, slots: {slots}, offload: true, mesh: {{expert: 2, tensor: 2}}}}"
    words = (*run, *mesh, f"judge={{kind: engine, max_tokens: 512, engine: {engine}}}")
    return Case(topology, words, only=("judge prefill", "judge decode"))


WORKING = ("update", "optimizer", "prefill", "decode")
OBVIOUS = ("mesh.fsdp=16", f"update.batch_tokens={16 * 28672}")
"""Parameters cut over all devices, a row for each: 2 micro-batches of 16 prompts with their responses."""

CASES: Mapping[str, tuple[Case, ...]] = {
    "4b-v5e": (
        Case("v5e-16", _run("Qwen3-4B", 12), search=True, most_gib=13),
        Case("v5e-16", (*_run("Qwen3-4B", 12), *OBVIOUS), only=("update",), worse=True),
    ),
    "4b-v6e": (Case("v6e-16", _run("Qwen3-4B", 24), search=True, only=WORKING),),
    "4b-v5p": (Case("v5p-32", _run("Qwen3-4B", 24), search=True, least_mfu=0.5),),
    "30b-v5p": (Case("v5p-32", _run("Qwen3-30B-A3B", 32), search=True, only=WORKING),),
    "30b-v6e": (Case("v6e-32", _run("Qwen3-30B-A3B", 16), search=True, only=WORKING),),
    "20b-judge": tuple(
        _judged(name, _run("Qwen3-4B", 12), ("mesh.fsdp=8", "mesh.tensor=2"), "gpt-oss-20b", 16)
        for name in ("v5e-16", "v6e-16")
    ),
    "120b-judge": (
        _judged("v5p-32", _run("Qwen3-30B-A3B", 32), ("mesh.fsdp=8", "mesh.tensor=2"), "gpt-oss-120b", 32),
        _judged("v6e-32", _run("Qwen3-30B-A3B", 16), ("mesh.fsdp=8", "mesh.tensor=4"), "gpt-oss-120b", 8),
    ),
}
"""The larger model samples 128 rows at a time, on all hosts together."""


def table(found: Plan) -> str:
    """A plan in Markdown: a line for each program; what it sends and its time are those of a step."""
    mesh = " × ".join(f"{axis} {n}" for axis, n in found["mesh"].items())
    cut = ", sequence cut" if found["sequence"] else ""
    head = f"**{found['name']}** ({found['devices']} devices of {found['hbm'] / GIB:.0f} GiB), mesh {mesh}{cut}"
    if "micro_batches" in found:
        head += f", micro-batches: {found['micro_batches']}"
    lines = [
        head,
        "",
        "| program | fits | GiB of a device | of them | sends in a step, GiB | a step at best |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(one, found["seconds"]) for one in found["programs"]]
    if found.get("mfu") is not None and any(one["name"] == "update" for one in found["programs"]):
        lines += ["", f"Update: {found['model_flops']:.3g} model FLOPs, MFU {found['mfu']:.1%} at best."]
    return "\n".join(lines)


def _row(one: Mapping[str, Any], spent: Mapping[str, float]) -> str:
    kinds = ", ".join(f"{kind} {size / GIB:.1f}" for kind, size in one["memory"].items() if size > 0.05 * GIB)
    peak = "?" if one["peak"] is None else f"{one['peak'] / GIB:.1f}"
    fits = "yes" if one["fits"] else f"**no**: {one['problem']}"
    sent = f"{sum(c['sent'] for c in one['collectives']) * one['times'] / GIB:.1f}" if one["times"] else ""
    best = f"{spent[one['name']]:.1f} s" if one["name"] in spent else ""
    return f"| {one['name']} | {fits} | {peak} | {kinds} | {sent} | {best} |"


def _planned(case: Case) -> Plan | None:
    """Compile a case and tell of it; None where it cannot be planned at all."""
    print(f"    {case.command}\n", flush=True)
    begin = time.perf_counter()
    try:
        found = plan("train/grpo_paper", case.words, case.topology, search=case.search, only=case.only)
    except NoisyjaxError as error:
        print(f"not planned: {error}\n", flush=True)
        return None
    print(f"{table(found)}\n\nCompiled in {time.perf_counter() - begin:.0f} s.\n", flush=True)
    return found


def main() -> int:
    """Parse, compile, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*CASES, []], help=", ".join(CASES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    plans, missed = [], []
    for name in options.names or CASES:
        before = None
        for case in CASES[name]:
            found = _planned(case)
            missed += [f"{case.command}: {words}" for words in case.missed(found, before)]
            plans.append({"command": case.command, **(found or {})})
            before = found
    print("\n".join(f"MISSED: {words}" for words in missed))
    if options.json:
        options.json.write_text(json.dumps(plans, indent=1) + "\n", encoding="utf-8")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
