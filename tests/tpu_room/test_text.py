"""What a plan says to people."""

from typing import Any

from noisyjax.tpu.names import GIB
from noisyjax.tpu.planning.text import text


def told(**program: Any) -> dict[str, Any]:
    """A plan of one program."""
    one = {"name": "update", "fits": True, "peak": 3 * GIB, "problem": None, "memory": {}, "collectives": []}
    return {
        "config": "grpo",
        "name": "v5litepod-4",
        "topology": "v5e:2x2",
        "devices": 4,
        "mesh": {"tensor": 4},
        "sequence": False,
        "hbm": 16 * GIB,
        "search": [],
        "programs": [one | {"times": 1, "flops": 2e15} | program],
        "parts": [],
        "seconds": {},
    }


def test_a_plan_is_told_without_what_it_does_not_know() -> None:
    said = text(told(fits=False, peak=None, problem="3.0 GiB too much") | {"mfu": None})
    assert "update: DOES NOT FIT" in said
    assert "3.0 GiB too much; a smaller update.batch_tokens" in said
    assert "MFU" not in said
    assert "a second" not in said
    said = text(told(name="optimizer", fits=False, problem="3.0 GiB too much"))
    assert "3.0 GiB too much; more mesh.fsdp" in said


def test_a_plan_tells_the_work_and_what_was_not_compiled() -> None:
    sent = [{"kind": "all-gather", "trips": [4, 3], "sent": 5 * GIB}, {"kind": "all-gather", "trips": [], "sent": GIB}]
    row = {"flops": 1.0, "compute": 0.5, "HBM": 0.25, "ICI": 0.0, "seconds": 0.5}
    parts = [
        {"program": "update", "part": "layers", "attention_flops": 0.0, **row},
        {"program": "update", "part": "attention", "attention_flops": 3e12, **row},
        {"program": "decode", "part": "layers", "attention_flops": 0.0, **row},
    ]
    found = told(times=6, collectives=sent) | {"parts": parts, "seconds": {"update": 1.0, "decode": 0.5}}
    lines = text(found).splitlines()
    assert "  sends: 13 all-gather 6.00 GiB" in lines
    work = "2e+15 FLOPs in products, 6 times a step, 3e+12 a device and step in attention, 1.000 s a step at best"
    assert f"  work: {work}" in lines
    (decode,) = (line for line in lines if "decode: layers" in line)
    assert decode.split()[:2] == ["decode:", "layers*"]
    assert lines[-1] == "  * not compiled: by the formula alone"
    assert "no part of a step" in text(told(name="decode with capture", times=0))


def test_a_plan_tells_the_words_of_a_search() -> None:
    one = {"words": ["mesh.fsdp=8", "mesh.tensor=2"], "seconds": 2.0, "peak": 12 * GIB}
    said = text(told() | {"search": [one | {"fits": False, "peak": None}, one | {"fits": True}]})
    assert "left: mesh.fsdp=8 mesh.tensor=2 (update 2.00 s at best, does not fit)" in said
    assert "taken: mesh.fsdp=8 mesh.tensor=2 (update 2.00 s at best, 12.0 GiB)" in said
