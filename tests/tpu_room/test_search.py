"""The search for a mesh and a micro-batch: what it tries, and what it finds for the paper's step."""

import importlib.util
import json
from pathlib import Path

import pytest

from noisyjax.cli import main
from noisyjax.engine.config import MeshConfig
from noisyjax.errors import RunError
from noisyjax.tpu.names import GIB, parse_accelerator
from noisyjax.tpu.planning import search
from noisyjax.tpu.planning.subject import architecture, read_subject

V5E_16 = parse_accelerator("v5e-16")


def test_candidates_cut_the_model_and_fill_the_slice() -> None:
    subject = read_subject("train/grpo_paper", ["model=Qwen3-4B", "rollout.offload=true"])
    cfg = architecture("Qwen3-4B")
    found = {one.words: one for one in search.candidates(subject, cfg, V5E_16)}
    meshes = {words[:3] for words in found}
    assert ("mesh.fsdp=16", "mesh.expert=1", "mesh.tensor=1") in meshes
    assert ("mesh.fsdp=8", "mesh.expert=1", "mesh.tensor=2") in meshes
    assert not any("expert=2" in word for words in meshes for word in words)
    larger = search.candidates(subject, cfg, parse_accelerator("v5e-64"))
    assert not any("mesh.tensor=64" in one.words for one in larger)  # of 32 heads
    best = min((one for one in found.values() if one.memory < 0.85 * 15.75 * GIB), key=lambda one: one.order)
    obvious = min((one for one in found.values() if "mesh.fsdp=16" in one.words), key=lambda one: one.memory)
    assert best.memory < obvious.memory


def test_what_is_found_takes_the_place_of_the_whole_mesh() -> None:
    """The words stand behind the config's own; an axis that was left as it is would make other devices."""
    cfg, given = architecture("Qwen3-4B"), ["mesh.data=2", "mesh.replicas=2"]
    subject = read_subject("train/grpo_paper", ["model=Qwen3-4B", *given])
    words = next(iter(search.candidates(subject, cfg, V5E_16))).words
    assert read_subject("train/grpo_paper", ["model=Qwen3-4B", *given, *words]).config.mesh.devices == 16
    assert search._undone(MeshConfig(fsdp=2, tensor=4), "engine.mesh", ("replicas", "fsdp")) == ("engine.mesh.fsdp=1",)


def test_candidates_leave_room_for_the_sampler() -> None:
    """A host of a v6e-32 has 4 devices of 32 GiB: 57 GiB of weights have to be cut over all four."""
    cfg, where = architecture("Qwen3-30B-A3B"), parse_accelerator("v6e-32")

    def found(*words: str) -> list[search.Candidate]:
        return list(search.candidates(read_subject("train/grpo_paper", ["model=Qwen3-30B-A3B", *words]), cfg, where))

    asleep = {one.words: one.memory for one in found("rollout.offload=true", "rollout.slots=4")}
    assert asleep
    assert not any("mesh.expert=1" in words and "mesh.tensor=1" in words for words in asleep)
    awake = {one.words: one.memory for one in found("rollout.slots=4")}
    assert all(awake[words] > memory + 14 * GIB for words, memory in asleep.items())
    assert not found("rollout.offload=true", "rollout.slots=128")  # 36 GiB of keys and values
    crowded = read_subject("train/grpo_paper", ["model=Qwen3-30B-A3B", "rollout.slots=128"])
    with pytest.raises(RunError, match=r"fewer rollout\.slots"):
        search.best(search.candidates(crowded, cfg, where), where, lambda _: pytest.fail("there is nothing to compile"))


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the extra `tpu`")
@pytest.mark.slow
def test_the_papers_step_fits_a_v5e_16_where_the_obvious_mesh_is_tight(tmp_path: Path) -> None:
    """Qwen3-4B, 32 prompts, 96 responses, 4,096 + 8,192 tokens in shared rows: at most 13 GiB of a device's 16.

    The obvious mesh is estimated here; `make bench-tpu` compiles it.
    """
    out = tmp_path / "plan.json"
    words = ("model=Qwen3-4B", "rollout.offload=true", "reference_offload=true")
    command = ["tpu", "plan", "train/grpo_paper", *words, "--topology", "v5e-16", "--search", "--only", "update"]
    with pytest.raises(SystemExit) as end:
        main([*command, "--json", str(out)])
    assert not end.value.code
    (found,) = json.loads(out.read_text())
    (update,) = found["programs"]
    assert update["peak"] <= 13 * GIB
    assert found["mesh"] != {"fsdp": 16}
    assert found["mfu"] >= 0.45
    candidates = search.candidates(read_subject("train/grpo_paper", words), architecture("Qwen3-4B"), V5E_16)
    (obvious,) = (one for one in candidates if {"mesh.fsdp=16", "update.batch_tokens=458752"} <= {*one.words})
    assert obvious.memory > update["peak"] + GIB
