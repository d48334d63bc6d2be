"""Experts in the forms that files have: a tensor each, joined, alternating and transposed, packed as MXFP4."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from noisyjax.models import (
    PRESETS,
    CheckpointMismatch,
    ModelError,
    MoeConfig,
    UnsupportedConfig,
    config_to_hf,
    init_params,
    load,
    param_specs,
    save,
)
from noisyjax.models.decoder import Decoder, forward
from noisyjax.models.families import file_names, mxfp4

EXPERTS = "model.layers.{i}.mlp.experts."


def edit_tensors(folder: Path, edit: Callable[[dict], None]) -> None:
    tensors = dict(load_file(folder / "model.safetensors"))
    edit(tensors)
    save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, folder / "model.safetensors")


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(np.asarray(got[path]), np.asarray(array), err_msg=path)


@pytest.mark.parametrize("dense", [(), (0,), (1,)])
def test_a_tensor_per_expert(tiny, random_params, tmp_path, dense):
    cfg = tiny("qwen3_moe", moe=MoeConfig(n_experts=3, top_k=2, d_ff=16, norm_topk=True, dense_layers=dense))
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m")
    tensors = load_file(tmp_path / "m/model.safetensors")
    sparse = [i for i in range(2) if i not in dense]
    for at, i in enumerate(sparse):
        for e in range(3):
            name = EXPERTS.format(i=i) + f"{e}.up_proj.weight"
            np.testing.assert_array_equal(tensors[name], params["layers.moe.up_efd"][at, e])
    assert load(tmp_path / "m").cfg == cfg
    assert_same(load(tmp_path / "m").params, params)


def test_all_experts_in_one_tensor_the_halves_one_after_the_other(tiny, random_params, tmp_path):
    cfg = tiny("qwen3_moe")
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m")

    def join(tensors):
        for i in range(2):
            name = EXPERTS.format(i=i)

            def take(which, name=name):
                return np.stack([tensors.pop(f"{name}{e}.{which}_proj.weight") for e in range(4)])

            tensors[name + "gate_up_proj"] = np.concatenate([take("gate"), take("up")], 1)
            tensors[name + "down_proj"] = take("down")

    edit_tensors(tmp_path / "m", join)
    assert_same(load(tmp_path / "m").params, params)
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"))
    assert_same(load(tmp_path / "m", mesh, PRESETS["fsdp_tensor"]).params, params)

    edit_tensors(tmp_path / "m", lambda tensors: tensors.pop(EXPERTS.format(i=1) + "down_proj"))
    with pytest.raises(CheckpointMismatch) as caught:
        load(tmp_path / "m")
    assert caught.value.mismatch.missing == ("model.layers.1.mlp.experts.down_proj",)
    assert not caught.value.mismatch.unexpected


def test_alternating_columns(tiny, random_params, tmp_path):
    """gpt-oss: inputs first; even columns of the joined tensor are the gate's, odd ones up's."""
    cfg = tiny("gpt_oss")
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m")
    tensors = load_file(tmp_path / "m/model.safetensors")
    name = EXPERTS.format(i=1)
    assert tensors[name + "gate_up_proj"].shape == (4, 24, 80)
    for which, half in (("gate", 0), ("up", 1)):
        weight, bias = params[f"layers.moe.{which}_efd"][1], params[f"layers.moe.{which}_bias_ef"][1]
        np.testing.assert_array_equal(tensors[name + "gate_up_proj"][2, 5, 2 * 7 + half], weight[2, 7, 5])
        np.testing.assert_array_equal(tensors[name + "gate_up_proj_bias"][:, half::2], bias)
    np.testing.assert_array_equal(tensors[name + "down_proj"][3, 9, 4], params["layers.moe.down_edf"][1, 3, 4, 9])
    assert_same(load(tmp_path / "m").params, params)


def test_mxfp4_by_hand():
    """Low nibble first; sign, exponent and mantissa as tabulated; the scale is a power of two with a bias of 127."""
    blocks = np.zeros((1, 16), np.uint8)
    blocks[0, :8] = [0x9A, 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xFE]
    expected = [-1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -4, -6]
    got = mxfp4.unpack(blocks, np.array([127], np.uint8))
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got[:16].astype(np.float32), expected)
    assert np.all(got[16:] == 0)
    halved = mxfp4.unpack(np.full((1, 16), 0x99, np.uint8), np.array([125], np.uint8))
    np.testing.assert_array_equal(halved.astype(np.float32), np.full(32, -0.125))
    with pytest.raises(UnsupportedConfig, match="40 numbers"):
        mxfp4.packed_shapes((4, 40))


@pytest.fixture
def packed(tiny, random_params, tmp_path):
    """(config, folder of a packed model, its parameters as numbers): random blocks and scales around one half."""
    cfg = tiny("gpt_oss", d_model=64, d_ff=96, moe=MoeConfig(3, 2, 96, True, bias=True, clamp=7.0))
    params = {path: np.asarray(x).astype(ml_dtypes.bfloat16) for path, x in random_params(cfg).items()}
    save(params, cfg, tmp_path / "packed")
    rng = np.random.default_rng(0)

    def pack(tensors):
        for i in range(2):
            for which, rows, width in (("gate_up", 192, 64), ("down", 64, 96)):
                name = EXPERTS.format(i=i) + which + "_proj"
                del tensors[name]
                tensors[name + "_blocks"] = rng.integers(0, 256, (3, rows, width // 32, 16), np.uint8)
                tensors[name + "_scales"] = rng.integers(118, 124, (3, rows, width // 32), np.uint8)
                whole = mxfp4.unpack(tensors[name + "_blocks"], tensors[name + "_scales"])
                if which == "down":
                    params["layers.moe.down_edf"][i] = whole
                else:
                    params["layers.moe.gate_efd"][i], params["layers.moe.up_efd"][i] = whole[:, ::2], whole[:, 1::2]

    edit_tensors(tmp_path / "packed", pack)
    config = json.loads((tmp_path / "packed/config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (tmp_path / "packed/config.json").write_text(json.dumps(config))
    return cfg, tmp_path / "packed", params


def test_packed_experts_are_read_as_numbers(packed):
    _, folder, params = packed
    assert_same(load(folder).params, params)
    assert load(folder).params["layers.moe.up_efd"].dtype == ml_dtypes.bfloat16
    wide = load(folder, dtype="float32")
    assert wide.cfg.dtype == "float32"
    assert_same(wide.params, {path: x.astype(np.float32) for path, x in params.items()})


@pytest.mark.parametrize("preset", ["fsdp", "tensor", "fsdp_tensor"])
def test_packed_experts_cut_over_a_mesh(packed, preset):
    """Cuts fall inside blocks of 32: 96 over 4 devices."""
    _, folder, params = packed
    mesh = jax.make_mesh((2, 4), ("fsdp", "tensor"))
    assert_same(load(folder, mesh, PRESETS[preset]).params, params)


def test_packed_experts_are_written_as_numbers(packed, tmp_path):
    cfg, folder, params = packed
    model = load(folder)
    save(model.params, model.cfg, tmp_path / "plain", source=folder)
    config = json.loads((tmp_path / "plain/config.json").read_text())
    assert "quantization_config" not in config
    names = {name for names in file_names(cfg).values() for name in names}
    assert load_file(tmp_path / "plain/model.safetensors").keys() == names
    assert_same(load(tmp_path / "plain").params, params)


def test_half_of_a_packed_tensor_is_missed(packed):
    _, folder, _ = packed
    name = EXPERTS.format(i=0) + "gate_up_proj_scales"
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointMismatch) as caught:
        load(folder)
    assert caught.value.mismatch.missing == (name,)


def test_programs_unpack_what_the_table_says():
    """Every byte with every scale whose numbers are in float32's normal range."""
    scales = np.repeat(np.arange(2, 253, dtype=np.uint8)[:, None], 16, 1)
    blocks = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(16, 16), (len(scales), 16, 16))
    expected = mxfp4.unpack(blocks, scales)
    for dtype in (jnp.bfloat16, jnp.float32):
        got = np.asarray(jax.jit(mxfp4.unpacked, static_argnums=2)(blocks, scales, dtype))
        np.testing.assert_array_equal(got, expected.astype(got.dtype))
        np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


def expert_bytes(params) -> int:
    weights = ("layers.moe.gate_", "layers.moe.up_", "layers.moe.down_")
    return sum(x.nbytes for path, x in params.items() if path.startswith(weights) and "_bias_" not in path)


def test_packed_experts_may_stay_packed(packed):
    """Two numbers a byte and a scale for 32 of them: 17/64 of bfloat16, whatever type the rest is read as."""
    cfg, folder, params = packed
    kept = load(folder, keep_quantised=True)
    assert kept.cfg == dataclasses.replace(cfg, quantised="mxfp4", dtype="bfloat16")
    shapes = {path: spec.shape for path, spec in param_specs(kept.cfg).items()}
    assert {path: x.shape for path, x in kept.params.items()} == shapes
    assert {x.dtype.name for x in kept.params.values()} == {"bfloat16", "uint8"}
    assert expert_bytes(kept.params) / expert_bytes(params) == 17 / 64
    held = jax.tree.leaves(nnx.split(Decoder(kept.cfg, kept.params, stacked=False))[1])
    assert sum(x.nbytes for x in held) == sum(x.nbytes for x in kept.params.values())
    assert_same(
        {path: kept.params[path] for path in params if path in kept.params},
        {path: x for path, x in params.items() if path in kept.params},
    )
    wide = load(folder, dtype="float32", keep_quantised=True)
    assert {x.dtype.name for x in wide.params.values()} == {"float32", "uint8"}
    assert expert_bytes(wide.params) == expert_bytes(kept.params)


@pytest.mark.parametrize(("dtype", "stacked"), [("float32", True), ("bfloat16", False)])
def test_packed_experts_compute_what_numbers_do_to_the_last_bit(packed, dtype, stacked):
    _, folder, _ = packed
    ids = jnp.asarray(np.random.default_rng(1).integers(0, 64, (2, 30)))

    def logits(**how):
        model = load(folder, dtype=dtype, **how)
        return jax.jit(lambda params, ids: forward(Decoder(model.cfg, params, stacked=stacked), ids))(model.params, ids)

    numbers, kept = logits(), logits(keep_quantised=True)
    assert np.abs(numbers).max() > 0.1
    np.testing.assert_array_equal(kept, numbers)


def test_packed_experts_become_numbers_one_at_a_time(tiny):
    """The program never holds a layer of them, let alone all."""
    numbers = tiny("gpt_oss", d_model=64, d_ff=64, moe=MoeConfig(32, 2, 64, True, bias=True, clamp=7.0))
    cfg, drawn = dataclasses.replace(numbers, quantised="mxfp4"), init_params(numbers)
    params = {
        path: drawn[path] if path in drawn else jnp.full(spec.shape, 120, jnp.uint8)
        for path, spec in param_specs(cfg).items()
    }
    run = jax.jit(lambda params, ids: forward(Decoder(cfg, params), ids))
    used = run.lower(params, jnp.zeros((1, 16), jnp.int32)).compile().memory_analysis().temp_size_in_bytes
    one_expert = 3 * 64 * 64 * 4
    assert used < 8 * one_expert < 32 * one_expert


@pytest.mark.parametrize("preset", ["fsdp", "tensor", "fsdp_tensor_expert"])
def test_packed_experts_kept_packed_on_a_mesh(packed, preset):
    _, folder, _ = packed
    mesh = jax.make_mesh((2, 1, 4), ("fsdp", "expert", "tensor"))
    assert_same(
        load(folder, mesh, PRESETS[preset], keep_quantised=True).params, load(folder, keep_quantised=True).params
    )


def test_what_came_packed_leaves_packed(packed, tmp_path):
    """Byte for byte, config.json included; and without a source too."""
    _, folder, _ = packed
    model = load(folder, keep_quantised=True)
    save(model.params, model.cfg, tmp_path / "out", source=folder)
    assert (tmp_path / "out/config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert_same(load_file(tmp_path / "out/model.safetensors"), load_file(folder / "model.safetensors"))
    save(model.params, model.cfg, tmp_path / "alone")
    assert json.loads((tmp_path / "alone/config.json").read_text())["quantization_config"]["quant_method"] == "mxfp4"
    again = load(tmp_path / "alone", keep_quantised=True)
    assert again.cfg == model.cfg
    assert_same(again.params, model.params)


def test_a_model_that_is_not_packed_stays_as_it_is(tiny, random_params, tmp_path):
    cfg = tiny("gpt_oss")
    save(random_params(cfg), cfg, tmp_path / "m")
    assert load(tmp_path / "m", keep_quantised=True).cfg == cfg


def test_what_cannot_be_held_packed(tiny, packed):
    with pytest.raises(UnsupportedConfig, match="d_model 24 is no multiple of 32"):
        tiny("gpt_oss", quantised="mxfp4")
    with pytest.raises(UnsupportedConfig, match="models with experts: mxfp4"):
        tiny("qwen3", quantised="mxfp4")
    with pytest.raises(UnsupportedConfig, match="qwen3_moe model cannot be held as mxfp4"):
        config_to_hf(tiny("qwen3_moe", d_model=32, moe=MoeConfig(4, 2, 32, True), quantised="mxfp4"))
    cfg, folder, _ = packed
    with pytest.raises(UnsupportedConfig, match="drawn as numbers"):
        init_params(dataclasses.replace(cfg, quantised="mxfp4"))
    name = EXPERTS.format(i=0) + "down_proj_scales"
    edit_tensors(folder, lambda tensors: tensors.update({name: tensors[name].astype(np.float32)}))
    for keep in (True, False):
        with pytest.raises(ModelError, match=r"down_proj_scales .* is stored as F32; known: U8"):
            load(folder, keep_quantised=keep)


@pytest.mark.parametrize(("family", "method"), [("qwen3_moe", "mxfp4"), ("gpt_oss", "gptq")])
def test_other_packings_are_refused(tiny, random_params, tmp_path, family, method):
    cfg = tiny(family)
    save(random_params(cfg), cfg, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
    with pytest.raises(UnsupportedConfig, match=method):
        load(tmp_path / "m")


@pytest.mark.slow
@pytest.mark.parity
def test_packed_logits_are_those_of_transformers(packed):
    """Its own reading of the same files, as numbers in float32."""
    torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra")
    from transformers import AutoModelForCausalLM, Mxfp4Config

    from noisyjax.models.decoder import Decoder, forward

    _, folder, _ = packed
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=Mxfp4Config(dequantize=True)
    ).eval()
    ids = np.random.default_rng(1).integers(0, 64, (2, 30))
    with torch.inference_mode():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    ours = load(folder, dtype="float32")
    assert np.abs(expected).max() > 0.1
    got = forward(Decoder(ours.cfg, ours.params), jax.numpy.asarray(ids))
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-4, rtol=0)
