"""Weights on their way: laid out anew for sampling, asleep in host memory, never gathered for a token."""

import dataclasses
import gc
import re

import jax
import numpy as np
import pytest
from flax import nnx

from noisyjax.engine.config import MeshConfig
from noisyjax.engine.mesh import open_layout
from noisyjax.engine.programs import Slots
from noisyjax.engine.sample import Draw
from noisyjax.engine.weights import HOST, Parked, relayout
from noisyjax.models import MoeConfig, init_params, shardings
from noisyjax.models.decoder import Decoder
from noisyjax.models.sharding import SERVING, TRAINING, Layout

MESH = MeshConfig(fsdp=2, expert=2, tensor=2)
MOE = {"family": "qwen3_moe", "moe": MoeConfig(n_experts=4, top_k=2, d_ff=64, norm_topk=True)}


@pytest.fixture(scope="module")
def sizes(cfg):
    """Every weight matrix is larger than any activation of a token in eight slots."""
    return dataclasses.replace(cfg, d_model=64, n_kv_heads=4, **MOE)


@pytest.fixture(scope="module")
def training(sizes):
    """Float32 parameters as a trainer holds them."""
    layout = open_layout(MESH, sizes, TRAINING)
    return layout, init_params(sizes, 5, mesh=layout.mesh, rules=layout.rules, stddev=0.3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_laid_out_anew(sizes, training, dtype):
    """The same numbers, whole along fsdp, in memory of their own: no more of it than the result takes."""
    layout, params = training
    serving = Layout(layout.mesh, SERVING)
    model = relayout(params, sizes, dtype, True, serving)
    want = nnx.split(Decoder(sizes, {path: x.astype(dtype) for path, x in params.items()}, layout=serving))[1]
    made = nnx.split(model)[1]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(made), jax.device_get(want))
    where = shardings(sizes, layout.mesh, SERVING)
    gate = model.layers.mlp.gate_efd[...]
    assert gate.sharding.is_equivalent_to(where["layers.moe.gate_efd"], gate.ndim)
    assert "fsdp" not in str(jax.tree.map(lambda x: x.sharding.spec, made))
    own = {shard.data.unsafe_buffer_pointer() for x in jax.tree.leaves(made) for shard in x.addressable_shards}
    theirs = {shard.data.unsafe_buffer_pointer() for x in params.values() for shard in x.addressable_shards}
    assert not own & theirs


def test_an_engine_takes_them_step_by_step(make_engine, make_model, make_request, answers, sizes):
    """What it held before is let go first, and one program serves every step."""
    engine = make_engine(make_model(stacked=True, mesh=MESH, d_model=64, n_kv_heads=4, **MOE))
    layout = open_layout(MESH, sizes, TRAINING)
    request = make_request("a", 9, max_tokens=6)
    for seed in (6, 7):
        params = init_params(sizes, seed, mesh=layout.mesh, rules=layout.rules, stddev=0.3)
        engine.load_params(params)
        alone = make_engine(Decoder(sizes, init_params(sizes, seed, stddev=0.3), stacked=True))
        np.testing.assert_array_equal(answers(engine, [request])["a", 0].ids, answers(alone, [request])["a", 0].ids)
    names = [name for name, _ in engine.stats.compiled]
    assert len(names) == len(set(names))


def test_no_weight_is_gathered_for_a_token(make_engine, make_model, make_request, answers):
    """In the decode program of eight devices nothing of the size of a weight is gathered or exchanged."""
    engine = make_engine(make_model(stacked=True, mesh=MESH, d_model=64, n_kv_heads=4, **MOE), slots=8)
    answers(engine, [make_request("a", 9, max_tokens=2)])
    device, b = engine._device, 8
    zeros = {t: np.zeros(b, t) for t in (np.int32, bool)}
    labels, keys = np.zeros(b, np.uint8), np.zeros((b, 2), np.uint32)
    slots = Slots(zeros[np.int32], labels, *[zeros[np.int32]] * 2, *[zeros[bool]] * 2, keys, Draw.idle(b))
    args = (device.state, device.rows, (), slots, device.view(), engine.valid_v, engine.stop_ids, np.bool_(False))
    text = device._decode.lower(*args).compile().as_text()
    moved = re.findall(r"= \(?\w+\[([\d,]*)\]\S* (all-gather|all-to-all|collective-permute|all-reduce)", text)
    assert {kind for _, kind in moved} >= {"all-reduce"}
    assert {kind for _, kind in moved} <= {"all-reduce", "all-gather"}
    cut = [x for x in jax.tree.leaves(device.state) if not x.sharding.is_fully_replicated]
    smallest = min(x.size for x in cut) // engine.model.cfg.n_layers
    gathered = [int(np.prod([int(n) for n in dims.split(",") if n])) for dims, kind in moved if kind == "all-gather"]
    assert max(gathered, default=0) < smallest


def test_parked_arrays_come_back_as_they_were(training):
    _, params = training
    parked = Parked(params)
    assert {x.sharding.memory_kind for x in parked.tree.values()} == {HOST}
    back = parked.fetch()
    for path, x in params.items():
        assert back[path].sharding == x.sharding
        np.testing.assert_array_equal(back[path], x)


@pytest.mark.parametrize("mesh", [None, MeshConfig(data=2, tensor=2)], ids=["one device", "four"])
def test_an_engine_that_sleeps(make_engine, make_model, make_request, answers, mesh):
    """Between calls nothing of it is left on the devices; awake it answers as before and compiles nothing again."""
    request = make_request("a", 70, n=2, max_tokens=6, temperature=0.8)
    expected = answers(make_engine(make_model(mesh=mesh)), [request])
    before = live()
    engine = make_engine(make_model(mesh=mesh), offload=True)
    for _ in range(2):
        got = answers(engine, [request])
        assert all(np.array_equal(got[key].ids, expected[key].ids) for key in expected)
        assert live() == before
        assert {x.sharding.memory_kind for x in jax.tree.leaves(nnx.split(engine.model)[1])} == {HOST}
    names = [name for name, _ in engine.stats.compiled]
    assert len(names) == len(set(names))


def live() -> int:
    """Bytes of arrays on the devices."""
    gc.collect()
    return sum(x.nbytes for x in jax.live_arrays() if x.sharding.memory_kind != HOST)
