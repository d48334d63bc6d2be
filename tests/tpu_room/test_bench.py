"""The bounds and the tables of `benchmarks.tpu`, from plans that are written here: no compiler is asked."""

from typing import Any

import pytest

from benchmarks.tpu import CASES, Case, table
from noisyjax.tpu.names import GIB, parse_accelerator
from noisyjax.tpu.planning.subject import read_subject

SENT = {"kind": "all-gather", "size": 0, "group": 2, "trips": [], "sent": 0.5 * GIB}


def program(name: str, peak: float | None, **more: Any) -> dict[str, Any]:
    """peak: GiB, None where the compiler gave up."""
    one = {
        "name": name,
        "fits": peak is not None,
        "peak": None if peak is None else peak * GIB,
        "problem": None if peak is not None else "at least 20.0 GiB of 15.75: 4.2 GiB too much",
        "memory": {"parameters": 2 * GIB, "activations": ((peak or 0) - 2) * GIB, "inputs": 1024},
        "collectives": [SENT, SENT],
        "times": 4,
    }
    return one | more


def plan(*programs: dict[str, Any], mfu: float = 0.51) -> dict[str, Any]:
    return {
        "name": "v5litepod-16",
        "devices": 16,
        "hbm": 16 * GIB,
        "mesh": {"fsdp": 8, "tensor": 2},
        "sequence": True,
        "micro_batches": 4,
        "model_flops": 3.37e16,
        "mfu": mfu,
        "programs": list(programs),
        "seconds": {"update": 21.34},
    }


BOUNDED = Case("v5e-16", ("model=Qwen3-4B",), search=True, most_gib=13, least_mfu=0.5)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (plan(program("update", 13), program("decode", 15)), []),  # the bound is the update's
        (plan(program("update", 13.5)), ["13.5 GiB of a device, at most 13"]),
        (plan(program("update", 10), mfu=0.499), ["MFU 49.9%, at least 50%"]),
        (plan(program("update", 10), program("decode", None)), ["decode does not fit: at least 20.0 GiB"]),
        (plan(program("update", None), mfu=0.4), ["update does not fit", "inf GiB", "MFU 40.0%"]),
        (None, ["could not be planned"]),
    ],
)
def test_bounds(found: dict | None, said: list[str]) -> None:
    missed = list(BOUNDED.missed(found))
    assert len(missed) == len(said)
    assert all(words in one for words, one in zip(said, missed, strict=True))


def test_a_judges_plan_has_no_update() -> None:
    judged = Case("v5e-16", (), only=("judge decode",))
    assert not list(judged.missed(plan(program("judge decode", 9))))
    assert len(list(judged.missed(plan(program("judge decode", None))))) == 1


def test_what_is_compared_has_to_be_worse() -> None:
    obvious = Case("v5e-16", ("model=Qwen3-4B",), only=("update",), worse=True)
    better, large, none = plan(program("update", 10.3)), plan(program("update", 14.4)), plan(program("update", None))
    assert not list(obvious.missed(large, better))
    assert not list(obvious.missed(none, better))  # it need not fit
    assert list(obvious.missed(better, large))
    assert list(obvious.missed(better, better))
    assert list(obvious.missed(large, None))


def test_a_table() -> None:
    found = plan(program("update", 10.25), program("decode with capture", 12, times=0), program("judge decode", None))
    head, *lines = table(found).splitlines()
    assert head == "**v5litepod-16** (16 devices of 16 GiB), mesh fsdp 8 × tensor 2, sequence cut, micro-batches: 4"
    assert "| update | yes | 10.2 | parameters 2.0, activations 8.2 | 4.0 | 21.3 s |" in lines
    assert "| decode with capture | yes | 12.0 | parameters 2.0, activations 10.0 |  |  |" in lines
    (judge,) = (line for line in lines if line.startswith("| judge decode"))
    assert "**no**: at least 20.0 GiB of 15.75" in judge
    assert "| ? |" in judge
    assert lines[-1] == "Update: 3.37e+16 model FLOPs, MFU 51.0% at best."
    assert "MFU" not in table(plan(program("decode", 12)))


def test_every_case_is_a_run_that_can_be_asked_for() -> None:
    for case in (case for cases in CASES.values() for case in cases):
        subject = read_subject("train/grpo_paper", case.words)
        assert parse_accelerator(case.topology).hosts > 1
        assert subject.config.rollout.offload
        assert subject.judge is None or subject.judge.mesh.devices == 4
    searched, judged = CASES["4b-v5e"][0].command, CASES["20b-judge"][0].command
    assert searched.startswith("noisyjax tpu plan train/grpo_paper model=Qwen3-4B ")
    assert searched.endswith("--topology v5e-16 --search")
    assert "'judge={kind: engine," in judged
    assert judged.endswith("--topology v5e-16 --only 'judge prefill' --only 'judge decode'")
