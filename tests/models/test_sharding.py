"""Rules that fit, rules that do not, and arrays built piece by piece."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from noisyjax.models import PRESETS, Layout, ShardingError, ShardingRules, init_params, param_specs, shardings
from noisyjax.models.decoder import Decoder, forward
from noisyjax.models.sharding import MESH_AXES, SERVING, TRAINING, build, partition_specs


def mesh(**axes: int) -> jax.sharding.Mesh:
    size = int(np.prod(list(axes.values())))
    auto = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), auto, devices=jax.devices()[:size])


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("kv", [1, 2, 4])
def test_key_value_heads_are_cut_or_replicated(tiny, kv, tensor):
    layout = shardings(tiny(n_kv_heads=kv), mesh(tensor=tensor), PRESETS["tensor"])
    assert layout["layers.attn.q_nhd"].spec == PartitionSpec(None, "tensor", None, None)
    assert layout["layers.attn.v_khd"].spec[1] == ("tensor" if kv % tensor == 0 else None)


def test_every_bad_dimension_is_named_at_once(tiny):
    with pytest.raises(ShardingError) as caught:
        shardings(tiny("llama", n_heads=6, d_ff=42), mesh(tensor=4), PRESETS["tensor"])
    text = str(caught.value)
    assert "layers.attn.q_nhd: heads of size 6 cannot be cut into 4 along mesh axis 'tensor'" in text
    assert "layers.mlp.down_df: ffn of size 42" in text
    assert "vocab" not in text  # 64 rows go over 4 devices


def test_a_mesh_axis_cannot_cut_two_dimensions(tiny):
    rules = ShardingRules(embed="tensor", heads="tensor")
    with pytest.raises(ShardingError, match=r"q_nhd: mesh axis 'tensor' is used for both heads and embed"):
        shardings(tiny(), mesh(tensor=2), rules)


def test_a_rule_for_an_axis_the_mesh_lacks(tiny):
    with pytest.raises(ShardingError, match="rule embed='fsdp': this mesh has no such axis, only data, tensor"):
        shardings(tiny(), mesh(data=2, tensor=2), PRESETS["fsdp_tensor"])


def test_what_a_mesh_cannot_cut_is_known_without_devices(tiny):
    axes = {"replica": 4, "data": 1, "fsdp": 16, "expert": 8, "tensor": 3}
    with pytest.raises(ShardingError) as caught:
        partition_specs(tiny("qwen3_moe", vocab_size=96, d_model=32), axes, TRAINING)
    text = str(caught.value)
    assert "layers.moe.gate_efd: experts of size 4 cannot be cut into 8 along mesh axis 'expert'" in text
    assert "layers.attn.q_nhd: heads of size 4 cannot be cut into 3 along mesh axis 'tensor'" in text
    assert "layers.moe.down_edf: ffn of size 16 cannot be cut into 3" in text
    assert "vocab" not in text
    assert "embed of" not in text
    assert "kv_heads" not in text
    whole = partition_specs(tiny("qwen3_moe"), dict.fromkeys(axes, 1) | {"expert": 4}, SERVING)
    assert whole["layers.moe.down_edf"] == PartitionSpec(None, "expert", None, "tensor")
    assert whole["layers.attn.q_nhd"] == PartitionSpec(None, "tensor", None, None)


@pytest.mark.parametrize(("width", "cut"), [(64, "tensor"), (96, None)])
def test_packed_experts_are_cut_between_their_groups(tiny, width, cut):
    """32 numbers share a scale: a width of two such groups goes over two devices, one of three is whole on both."""
    cfg = tiny("gpt_oss", d_model=64)
    cfg = dataclasses.replace(cfg, moe=dataclasses.replace(cfg.moe, d_ff=width), quantised="mxfp4")
    specs = partition_specs(cfg, {"expert": 2, "tensor": 2}, PRESETS["tensor_expert"])
    assert specs["layers.moe.gate_blocks_efgb"] == PartitionSpec(None, "expert", cut, None, None)
    assert specs["layers.moe.down_scales_edg"] == PartitionSpec(None, "expert", None, cut)


def test_a_batch_is_cut_along_the_axes_that_divide_it():
    layout = Layout(mesh(data=2, fsdp=2, tensor=2), PRESETS["fsdp_tensor"])
    assert [layout.batch_axes(rows) for rows in (1, 2, 6, 8)] == [(), ("data",), ("data",), ("data", "fsdp")]
    assert layout.shards() == 4
    assert Layout(mesh(tensor=2), PRESETS["tensor"]).batch_axes(8) == ()
    assert Layout(mesh(expert=2, fsdp=2), PRESETS["fsdp"]).batch_axes(4) == ("fsdp", "expert")


def test_where_activations_lie():
    x_btd = np.zeros((4, 6, 3), np.float32)
    for sequence, time in ((False, None), (True, "tensor")):
        layout = Layout(mesh(data=2, tensor=2), PRESETS["tensor"], sequence)
        assert jax.jit(layout.place)(x_btd).sharding.is_equivalent_to(layout.sharding("data", time, None), 3)
    assert jax.jit(layout.place)(x_btd[:1, :5]).sharding.is_fully_replicated  # neither one row nor five tokens divide


MESHES = {
    "8x1": {"fsdp": 8},
    "4x2": {"fsdp": 4, "tensor": 2},
    "2x4 sequence": {"fsdp": 2, "tensor": 4},
    "2x2x2 experts": {"fsdp": 2, "expert": 2, "tensor": 2},
}


@pytest.mark.parametrize("name", MESHES)
def test_logits_are_those_of_one_device(tiny, random_params, name):
    family = "qwen3_moe" if "expert" in name else "qwen3"
    cfg = tiny(family)
    ids_bt = np.random.default_rng(0).integers(0, 64, (8, 12))
    plain = forward(Decoder(cfg, random_params(cfg)), ids_bt)
    axes = dict.fromkeys(MESH_AXES, 1) | MESHES[name]
    layout = Layout(mesh(**axes), TRAINING, "sequence" in name)
    params = jax.device_put(random_params(cfg), shardings(cfg, layout.mesh, layout.rules))
    cut = jax.jit(lambda params, ids_bt: forward(Decoder(cfg, params, layout=layout), ids_bt))
    np.testing.assert_allclose(cut(params, ids_bt), plain, atol=1e-5)


def test_build_fills_each_distinct_shard_once():
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    filled = []

    def fill(buffer, index):
        filled.append(index)
        buffer[...] = whole[index]

    sharding = NamedSharding(mesh(data=4, tensor=2), PartitionSpec(None, "tensor"))
    array = build((4, 6), np.dtype(np.float32), sharding, fill)
    assert filled == [(slice(0, 4), slice(0, 3)), (slice(0, 4), slice(3, 6))]
    assert len(array.addressable_shards) == 8
    np.testing.assert_array_equal(np.asarray(array), whole)


def test_init_depends_on_seed_and_path_alone(tiny):
    plain, deeper = init_params(tiny(), 1), init_params(tiny(n_layers=3, qkv_bias=True), 1)
    for path, array in plain.items():
        want = deeper[path][:2] if path.startswith("layers.") else deeper[path]
        np.testing.assert_array_equal(array, want, err_msg=path)
    other = init_params(tiny(), 2)
    assert not np.array_equal(other["embed.w_vd"], plain["embed.w_vd"])
    assert not np.array_equal(plain["layers.mlp.gate_fd"][0], plain["layers.mlp.gate_fd"][1])
    assert np.all(np.asarray(plain["layers.attn.q_norm.scale_h"]) == 1)
    assert abs(float(np.std(plain["layers.mlp.gate_fd"])) - 0.02) < 1e-3

    sharded = init_params(tiny(), 1, mesh=mesh(fsdp=2, tensor=4), rules=PRESETS["fsdp_tensor"])
    for path, array in plain.items():
        np.testing.assert_array_equal(np.asarray(sharded[path]), array, err_msg=path)


def test_the_first_numbers_never_change(tiny):
    """Golden logits elsewhere in the suite rest on these weights."""
    first = np.asarray(init_params(tiny(), 0)["embed.w_vd"])[0, :3]
    np.testing.assert_allclose(first, np.float32([-0.019453825, -0.0026974168, 0.0011174898]), rtol=1e-6)


def test_specs_cover_what_the_flags_ask_for(tiny):
    assert "head.w_vd" not in param_specs(tiny(tie_embeddings=True))
    full = param_specs(tiny("llama", qkv_bias=True, o_bias=True, mlp_bias=True))
    assert full["layers.attn.k_bias_kh"].shape == (2, 2, 8)
    assert full["layers.attn.o_dnh"].file_shape == (24, 32)
    assert full["layers.attn.o_dnh"].axes == ("layers", "embed", "heads", "head_dim")
