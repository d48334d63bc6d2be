"""Hugging Face configs, old and new spelling, against hand-written expectations."""

import dataclasses
import json
from typing import Any

import pytest

from noisyjax.models import ModelConfig, MoeConfig, RopeConfig, UnknownArchitecture, UnsupportedConfig, read_config
from noisyjax.models.families import FAMILIES, config_from_hf, config_to_hf, file_names, file_shapes

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


EXPERTS = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
}
YARN = {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}


def hf(model_type: str = "qwen3", **changes: Any) -> dict[str, Any]:
    """A small config.json in the old spelling; a value of None removes the key."""
    base = {
        "model_type": model_type,
        "architectures": [FAMILIES[model_type].architecture] if model_type in FAMILIES else ["Other"],
        "vocab_size": 96,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "torch_dtype": "bfloat16",
        **EXPERTS.get(model_type, {}),
    }
    return {k: v for k, v in {**base, **changes}.items() if v is not None}


def test_qwen3_explicit_head_dim_is_not_hidden_over_heads():
    cfg = config_from_hf(hf("qwen3"))
    assert (cfg.head_dim, cfg.n_heads, cfg.n_kv_heads, cfg.d_model) == (16, 6, 2, 48)
    assert file_shapes(cfg)["model.layers.0.self_attn.q_proj.weight"] == (96, 48)
    assert file_shapes(cfg)["model.layers.2.self_attn.o_proj.weight"] == (48, 96)
    assert file_shapes(cfg)["model.layers.0.self_attn.k_norm.weight"] == (16,)
    assert (cfg.qk_norm, cfg.qkv_bias, cfg.rope, cfg.dtype) == (True, False, RopeConfig(1e6), "bfloat16")


@pytest.mark.parametrize(
    ("family", "head_dim"), [("qwen3", 128), ("qwen2", 8), ("llama", 8), ("qwen3_moe", 8), ("gpt_oss", 64)]
)
def test_head_dim_when_the_config_has_none(family, head_dim):
    assert config_from_hf(hf(family, head_dim=None)).head_dim == head_dim


@pytest.mark.parametrize(
    ("family", "keys", "expected"),
    [
        ("llama", {}, (False, False, False)),
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("llama", {"mlp_bias": True}, (False, False, True)),
        ("qwen2", {}, (True, False, False)),
        ("qwen2", {"attention_bias": False}, (True, False, False)),  # the key means nothing there
        ("qwen3", {}, (False, False, False)),
        ("qwen3", {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases(family, keys, expected):
    cfg = config_from_hf(hf(family, **keys))
    assert (cfg.qkv_bias, cfg.o_bias, cfg.mlp_bias) == expected
    biases = {name for name in file_shapes(cfg) if name.endswith(".bias") and ".0." in name}
    assert len(biases) == 3 * expected[0] + expected[1] + 3 * expected[2]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope_theta": 5e5}, RopeConfig(5e5)),
        ({"rope_theta": None}, RopeConfig(10_000.0)),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default"}}, RopeConfig(5e5)),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, RopeConfig(1e6, "linear", 4.0)),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.5}}, RopeConfig(1e6, "linear", 2.5)),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}, RopeConfig(5e5, "llama3", 8.0)),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 7e4, "rope_type": "default"}}, RopeConfig(7e4)),
        (
            {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3, "factor": 32}},
            RopeConfig(5e5, "llama3", 32.0),
        ),
        ({"rope_theta": 3e4, "rope_parameters": {"rope_type": "linear", "factor": 2}}, RopeConfig(3e4, "linear", 2.0)),
        (
            {"rope_theta": 1.5e5, "rope_scaling": {"rope_type": "yarn", **YARN, "truncate": False}},
            RopeConfig(1.5e5, "yarn", 32.0, original_max_positions=4096, truncate=False),
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", **YARN, "attention_factor": 1.5, "beta_fast": 16}},
            RopeConfig(1e6, "yarn", 32.0, original_max_positions=4096, beta_fast=16.0, attention_factor=1.5),
        ),
    ],
)
def test_rope_in_both_spellings(keys, expected):
    assert config_from_hf(hf("llama", **keys)).rope == expected


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, ["dynamic", "default, linear, llama3"]),
        ({"rope_scaling": {"type": "longrope"}}, ["longrope", "llama3"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, ["low_freq_factor", "high_freq_factor"]),
        ({"rope_scaling": {"rope_type": "linear"}}, ["linear", "factor"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, ["yarn", "original_max_position_embeddings"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, ["between layer types"]),
        ({"hidden_act": "gelu"}, ["gelu", "silu"]),
        ({"torch_dtype": "int8"}, ["int8", "bfloat16"]),
        ({"intermediate_size": None}, ["intermediate_size"]),
        ({"num_key_value_heads": 4}, ["6 heads", "4 key-value heads"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification", "LlamaForCausalLM"]),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_and_named(keys, words):
    with pytest.raises((UnknownArchitecture, UnsupportedConfig)) as caught:
        config_from_hf(hf("llama", **keys))
    assert all(word in str(caught.value) for word in words)


def test_an_unknown_architecture_lists_the_known_ones():
    with pytest.raises(UnknownArchitecture, match=r"mamba2.*known: gpt_oss, llama, qwen2, qwen3, qwen3_moe"):
        config_from_hf(hf("mamba2"))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}, None),
        ({"sliding_window": 8, "max_window_layers": 1}, None),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}, None),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, (None, 8, 8)),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}, None),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": 3,  # layer_types rules where both are given
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (8, None, 8),
        ),
    ],
)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_windows(family, keys, expected):
    assert config_from_hf(hf(family, **keys)).windows == expected


def cases() -> list[ModelConfig]:
    """One config per corner that a family can express."""
    llama3 = {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    return [
        config_from_hf(hf("qwen3", tie_word_embeddings=True)),
        config_from_hf(hf("qwen3", attention_bias=True, **windows)),
        config_from_hf(hf("qwen2", head_dim=None, **windows)),
        config_from_hf(hf("llama", attention_bias=True, mlp_bias=True, **llama3)),
        config_from_hf(hf("qwen3_moe")),
        config_from_hf(hf("qwen3_moe", norm_topk_prob=False, mlp_only_layers=[1], attention_bias=True)),
        config_from_hf(hf("qwen3_moe", use_sliding_window=True, sliding_window=8)),
        config_from_hf(hf("qwen3_moe", output_router_logits=True, router_aux_loss_coef=0.02)),
        config_from_hf(hf("gpt_oss")),
        config_from_hf(hf("gpt_oss", rope_scaling={"rope_type": "default"}, sliding_window=None)),
        config_from_hf(hf("gpt_oss", tie_word_embeddings=True, swiglu_limit=5.0, attention_bias=False)),
        config_from_hf(hf("gpt_oss", rope_scaling={"rope_type": "yarn", **YARN, "attention_factor": 1.25})),
        config_from_hf(hf("llama", rope_scaling={"type": "linear", "factor": 2.0}, torch_dtype="float32")),
    ]


@pytest.mark.parametrize("cfg", cases(), ids=lambda cfg: cfg.family)
def test_a_generated_config_reads_back_the_same(cfg):
    assert config_from_hf(json.loads(json.dumps(config_to_hf(cfg)))) == cfg


@pytest.mark.parametrize("cfg", cases(), ids=lambda cfg: cfg.family)
def test_transformers_understands_the_generated_config_alike(cfg):
    from transformers import AutoConfig

    hf_cfg = AutoConfig.for_model(**config_to_hf(cfg, {"eos_token_id": [3, 4]}))
    assert hf_cfg.eos_token_id == [3, 4]
    assert config_from_hf({**hf_cfg.to_dict(), "architectures": None}) == cfg


def test_a_config_that_a_family_cannot_express_is_refused():
    cfg = config_from_hf(hf("llama"))
    with pytest.raises(UnsupportedConfig, match="qk_norm=True"):
        config_to_hf(dataclasses.replace(cfg, qk_norm=True))
    with pytest.raises(UnsupportedConfig, match=r"\[4, 8\]"):
        config_to_hf(dataclasses.replace(config_from_hf(hf("qwen2")), windows=(4, None, 8)))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_name_table_goes_both_ways(family):
    cfg = config_from_hf(hf(family))
    names = [name for names in file_names(cfg).values() for name in names]
    shared = [name for name in names if "gate_up" in name]  # gate's and up's
    assert len(names) - len(shared) // 2 == len(set(names)) == len(file_shapes(cfg))
    table = FAMILIES[family].names
    assert len(set(table.values())) == len(table)


@pytest.mark.parametrize(
    "change",
    [{"n_heads": 0}, {"d_model": "64"}, {"d_ff": 1.5}, {"head_dim": 7}, {"windows": (4,)}, {"dtype": "int4"}],
    ids=lambda c: next(iter(c)),
)
def test_numbers_that_contradict_each_other_are_refused(change):
    with pytest.raises(UnsupportedConfig):
        dataclasses.replace(config_from_hf(hf("llama")), **change)


@pytest.mark.parametrize(
    ("keys", "dense"),
    [
        ({}, ()),
        ({"mlp_only_layers": [2, 0]}, (0, 2)),
        ({"decoder_sparse_step": 2}, (0, 2)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (0, 1, 2)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": []}, (0, 1)),
    ],
)
def test_which_layers_are_dense(keys, dense):
    cfg = config_from_hf(hf("qwen3_moe", **keys))
    assert cfg.moe is not None
    assert cfg.moe.dense_layers == dense
    shapes = file_shapes(cfg)
    for i in range(3):
        assert (f"model.layers.{i}.mlp.up_proj.weight" in shapes) == (i in dense)
        assert (f"model.layers.{i}.mlp.gate.weight" in shapes) == (i not in dense)
        assert (f"model.layers.{i}.mlp.experts.7.down_proj.weight" in shapes) == (i not in dense)
    if not dense:
        assert shapes["model.layers.0.mlp.experts.0.gate_proj.weight"] == (24, 48)
        assert shapes["model.layers.0.mlp.experts.0.down_proj.weight"] == (48, 24)


def test_qwen3_moe_defaults_are_those_of_the_upstream_class():
    """Weights are not made to sum to one unless the config says so; both spellings of the number of experts count."""
    spelt = hf("qwen3_moe", norm_topk_prob=None, num_experts=None, num_local_experts=16)
    assert config_from_hf(spelt).moe == MoeConfig(n_experts=16, top_k=2, d_ff=24, norm_topk=False)


@pytest.mark.parametrize(
    ("keys", "weight"),
    [
        ({}, 0.0),
        ({"router_aux_loss_coef": 0.02}, 0.0),
        ({"output_router_logits": True}, 0.001),
        ({"output_router_logits": True, "router_aux_loss_coef": 0.02}, 0.02),
        ({"output_router_logits": True, "router_aux_loss_coef": 0.0}, 0.0),
    ],
)
def test_the_routers_loss_counts_where_it_is_switched_on(keys, weight):
    cfg = config_from_hf(hf("qwen3_moe", **keys))
    assert cfg.moe is not None
    assert cfg.moe.aux_coefficient == weight


def test_gpt_oss():
    """Layers take turns from a sliding one on; yarn's bounds stay fractions; every unit is clamped."""
    cfg = config_from_hf(hf("gpt_oss", rope_theta=None))
    assert config_from_hf(hf("gpt_oss", rope_theta=1e4)).rope == dataclasses.replace(cfg.rope, theta=1e4)
    assert cfg.windows == (8, None, 8)
    assert cfg.rope == RopeConfig(1.5e5, "yarn", 32.0, original_max_positions=4096, truncate=False)
    assert (cfg.sinks, cfg.qkv_bias, cfg.o_bias, cfg.norm_scale_f32) == (True, True, True, True)
    assert cfg.moe == MoeConfig(n_experts=4, top_k=2, d_ff=80, norm_topk=True, bias=True, clamp=7.0, alpha=1.702)
    other = config_from_hf(hf("gpt_oss", layer_types=["full_attention", "sliding_attention", "full_attention"]))
    assert other.windows == (None, 8, None)
    shapes = file_shapes(cfg)
    assert shapes["model.layers.1.mlp.experts.gate_up_proj"] == (4, 48, 160)
    assert shapes["model.layers.1.mlp.experts.down_proj"] == (4, 80, 48)
    assert shapes["model.layers.1.self_attn.sinks"] == (6,)


@pytest.mark.parametrize(
    ("family", "keys", "words"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 9}, ["9 experts per token of only 8"]),
        ("qwen3_moe", {"num_experts": 0}, ["n_experts"]),
        ("qwen3_moe", {"moe_intermediate_size": None}, ["moe_intermediate_size"]),
        ("qwen3_moe", {"decoder_sparse_step": 0}, ["decoder_sparse_step 0"]),
        ("qwen3_moe", {"hidden_act": "gelu"}, ["gelu"]),
        ("gpt_oss", {"layer_types": ["chunked_attention"] * 3}, ["chunked_attention", "sliding_attention"]),
        ("gpt_oss", {"sliding_window": 0}, ["sliding window of 0"]),
        ("gpt_oss", {"num_local_experts": None}, ["num_local_experts"]),
    ],
)
def test_experts_that_cannot_be_are_refused(family, keys, words):
    with pytest.raises((UnknownArchitecture, UnsupportedConfig)) as caught:
        config_from_hf(hf(family, **keys))
    assert all(word in str(caught.value) for word in words)


def test_experts_that_another_family_has_cannot_be_written():
    ours, theirs = (config_from_hf(hf(family)) for family in ("qwen3_moe", "gpt_oss"))
    for cfg, moe in ((ours, theirs.moe), (theirs, ours.moe), (ours, None)):
        with pytest.raises(UnsupportedConfig, match="cannot express"):
            config_to_hf(dataclasses.replace(cfg, moe=moe))


def test_a_quantisation_that_is_no_object_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(hf("qwen3", quantization_config="fp8")))
    with pytest.raises(UnsupportedConfig, match=r"config\.json: quantization_config is a str"):
        read_config(tmp_path)
