"""`python compiling.py TOPOLOGY FAMILY FILE`: a tiny run's own programs through the TPU's compiler, as a process of its
own (the compiler takes its settings from the environment before jax is imported). What is known of each goes to FILE.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jax.experimental import topologies

from noisyjax.engine import cache
from noisyjax.engine.config import LocalConfig
from noisyjax.engine.device import PIECE, _replay_program
from noisyjax.engine.mesh import open_layout
from noisyjax.models import ModelConfig, MoeConfig, RopeConfig
from noisyjax.models.sharding import SERVING
from noisyjax.tpu.planning.programs import Program, Sampling, _Recorder, device_bytes, engine, serving, training
from noisyjax.tpu.planning.subject import read_subject

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "d_model": 256,
    "n_layers": 2,
    "n_heads": 8,
    "n_kv_heads": 4,
    "head_dim": 64,
    "d_ff": 512,
    "rope": RopeConfig(),
    "norm_eps": 1e-6,
    "tie_embeddings": True,
    "max_positions": 16384,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True, "moe": MoeConfig(n_experts=8, top_k=2, d_ff=256, norm_topk=True)},
    "gpt_oss": {
        "qkv_bias": True,
        "o_bias": True,
        "sinks": True,
        "norm_scale_f32": True,
        "windows": (128, None),
        "moe": MoeConfig(n_experts=8, top_k=2, d_ff=256, norm_topk=True, bias=True, clamp=7.0),
    },
}
TRAIN = ("prompts=8", "rollout.samples=2", "loss.beta=0", "update.remat=dots", "mesh.tensor=2", "model=unread")
LENGTHS = {"v5e:2x2": 512}
"""Of a prompt, and of a response. The largest blocks are tried once: small ones compile in a tenth of the time."""
WORK = Sampling(prompts=8, prompt=8192, samples=32, tokens=1024)


def programs(family: str, devices: list[Any], length: int) -> Iterator[Program]:
    """The update of GRPO, and what the sampler and the judge do; the judge has two devices to itself."""
    cfg = ModelConfig(family=family, **SIZES, **FAMILIES[family])
    rows = (f"update.row_tokens={3 * length}", f"update.batch_tokens={3 * length * len(devices)}")
    prompts = (f"data.prompt.max_prompt_tokens={length}", f"rollout.max_tokens={length}")
    words = (*TRAIN, *rows, *prompts, f"mesh.fsdp={len(devices) // 2}")
    train = training(read_subject("train/grpo_paper", words).config, cfg, devices)
    yield next(program for program in train.programs({}) if program.name == "update")
    local = LocalConfig(model=Path("unread"), slots=32)
    sampler = engine(local, cfg, serving(train.layout), "bfloat16", WORK)
    yield from _sampled(sampler)
    if family == "gpt_oss":
        yield _replay(sampler)
    if family == "qwen3":
        own = LocalConfig(model=Path("unread"), slots=8, mesh={"tensor": 2})  # type: ignore[arg-type]
        layout = open_layout(own.mesh, cfg, SERVING, devices=devices[-2:])
        assert layout is not None
        yield from _sampled(engine(own, cfg, layout, "bfloat16", WORK, "judge "))


def _sampled(one: Any) -> Iterator[Program]:
    return (program for program in one.programs({}) if not program.name.endswith("with capture"))


def _replay(one: Any) -> Program:
    """A piece of the second pass that gives every layer's attention mass, by the kernel with labels for values."""
    capture = one.capture._replace(layers=tuple(range(one.cfg.n_layers)))
    device = _Recorder(one.model, one.shape, capture)
    ids, view = np.zeros((1, PIECE), np.int32), cache.idle_view(1, 2 * PIECE, 0, 0)
    args = (device.state, device._allocate(1, 2 * PIECE), (), ids, ids.astype(np.uint8), view)
    return Program("replay", _replay_program(device.graph, capture, device._sharding(1), None), args, {})


def facts(program: Program) -> dict[str, Any]:
    """kernels: calls of them in the program's text, where a loop's body stands once; sizes in bytes on one device."""
    made = program.call.lower(*program.args).compile()  # type: ignore[attr-defined]
    return {
        "kernels": made.as_text().count('custom_call_target="tpu_custom_call"'),
        "temp": made.memory_analysis().temp_size_in_bytes,
        "cache": device_bytes(program.kinds.get("cache", ())),
    }


if __name__ == "__main__":
    topology, family, file = sys.argv[1:]
    chosen = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    made = programs(family, list(chosen.devices), LENGTHS.get(topology, 128))
    found = {program.name: facts(program) for program in made}
    Path(file).write_text(json.dumps(found), encoding="utf-8")
