"""A plan for people, as `noisyjax tpu plan` prints it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from noisyjax.tpu.names import GIB


def text(found: Mapping[str, Any]) -> str:
    """All of a plan (`plan.Plan`): its programs, where the time of a step goes, and what that is worth."""
    mesh = " x ".join(f"{axis}={n}" for axis, n in found["mesh"].items()) or "of one device"
    more = ", sequence cut" if found["sequence"] else ""
    micro = f", micro-batches: {found['micro_batches']}" if "micro_batches" in found else ""
    lines = [f"{found['name']} ({found['topology']}, {found['devices']} devices): mesh {mesh}{more}{micro}", ""]
    lines += [_tried(one, "a round" if found["config"] == "eval" else "update") for one in found["search"]]
    for one in found["programs"]:
        lines += _program(one, found)
    return "\n".join([*lines, "", *_step(found), *_worth(found)])


def _tried(one: Mapping[str, Any], of: str) -> str:
    peak = "does not fit" if one["peak"] is None else f"{one['peak'] / GIB:.1f} GiB"
    verdict = "taken" if one["fits"] else "left"
    return f"{verdict}: {' '.join(one['words'])} ({of} {one['seconds']:.2f} s at best, {peak})"


def _program(one: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    head = f"{one['name']}: " + ("fits" if one["fits"] else "DOES NOT FIT")
    if one["peak"] is not None:
        head += f", {_size(one['peak'])} of {found['hbm'] / GIB:.0f} GiB"
    yield head
    if one["problem"]:
        yield f"  {one['problem']}; {_advice(one['name'])}"
    yield "  memory: " + ", ".join(f"{kind} {_size(size)}" for kind, size in one["memory"].items() if size)
    sent: dict[str, tuple[int, float]] = {}
    for c in one["collectives"]:
        count, size = sent.get(c["kind"], (0, 0.0))
        sent[c["kind"]] = (count + math.prod(c["trips"]), size + c["sent"])
    if sent:
        yield "  sends: " + ", ".join(f"{count:,} {kind} {_size(size)}" for kind, (count, size) in sorted(sent.items()))
    yield "  work: " + ", ".join(_work(one, found))


def _work(one: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    times = one["times"]
    yield f"{one['flops']:.3g} FLOPs in products"
    if not times:
        yield "no part of a step"
        return
    yield "once a step" if times == 1 else f"{times:,} times a step"
    rows = [row for row in found["parts"] if row["program"] == one["name"]]
    if attention := sum(row["attention_flops"] for row in rows):
        yield f"{attention:.3g} a device and step in attention"
    if rows:
        yield f"{sum(row['seconds'] for row in rows):.3f} s a step at best"


def _step(found: Mapping[str, Any]) -> Iterator[str]:
    """Where the time goes."""
    compiled = {one["name"] for one in found["programs"]}
    yield "a step at best, seconds   compute      HBM      ICI    at best"
    for row in found["parts"]:
        name = f"{row['program']}: {row['part']}" if row["program"] != row["part"] else row["part"]
        star = "" if row["program"] in compiled else "*"
        times = f"{row['compute']:>9.3f} {row['HBM']:>8.3f} {row['ICI']:>8.3f} {row['seconds']:>10.3f}"
        yield f"  {name + star:<22} {times}"
    yield f"  {'all':<22} {'':>27} {sum(found['seconds'].values()):>10.3f}"
    if any(row["program"] not in compiled for row in found["parts"]):
        yield "  * not compiled: by the formula alone"


def _worth(found: Mapping[str, Any]) -> Iterator[str]:
    """MFU, tokens a second and a dollar."""
    if found.get("mfu") is not None:
        yield ""
        yield f"update: {found['model_flops']:.3g} model FLOPs, estimated MFU {found['mfu']:.1%}"
    if found.get("tokens_per_second") is not None:
        speed = found["tokens_per_second"]
        yield f"step: {found['tokens']:,} response tokens, {speed:,.0f} a second at best"
        for name, tokens in (found["tokens_per_dollar"] or {}).items():
            yield f"  {tokens:,.0f} tokens per dollar, {name.replace('_', ' ')}"


def _advice(program: str) -> str:
    """What to change where a program does not fit."""
    if program.startswith("judge"):
        return "fewer judge.engine.slots, more judge.engine.mesh.tensor, rollout.offload=true, or placement=split"
    if "prefill" in program or "decode" in program:
        return "fewer slots, more mesh.tensor, a shorter row, or offload what sleeps"
    if program == "optimizer":
        return "more mesh.fsdp, lora, rollout.offload=true, reference_offload=true, or a larger slice"
    return (
        "a smaller update.batch_tokens, update.remat=full, mesh.sequence=true, more mesh.tensor, rollout.offload=true"
    )


def _size(size: float) -> str:
    unit, name = (GIB, "GiB") if size >= GIB / 100 else (2**20, "MiB") if size >= 2**20 / 100 else (1, "bytes")
    return f"{size / unit:.2f} {name}" if unit > 1 else f"{size:.0f} {name}"
