"""gpt-oss: attention sinks, every other layer with a sliding window, yarn, biases everywhere, clamped expert units.

The published weights hold their experts in MXFP4. They are kept so, or read as numbers (exact in bfloat16) and then
written as transformers writes a model that is not quantised.
"""

from typing import Any

from ..config import ModelConfig, MoeConfig
from ..errors import UnknownArchitecture, UnsupportedConfig
from .dense import (
    NAMES,
    O_BIAS_NAMES,
    QKV_BIAS_NAMES,
    Family,
    Json,
    aux_from_hf,
    aux_to_hf,
    common_fields,
    common_to_hf,
    refuse,
    require,
)
from .forms import Form, joined, kept_packed

MLP = "model.layers.{i}.mlp."
BIAS = MLP + "experts.gate_up_proj_bias"
PACKED = joined(MLP, alternating=True, packed=True)
QUANTISATION = {  # of a config.json whose experts are packed
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
KINDS = ("full_attention", "sliding_attention")
THETA = 150_000.0
ROPE = {  # of a config that says nothing about it, as upstream
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def from_hf(hf: Json) -> ModelConfig:
    """`intermediate_size` is the width of an expert. Layers take turns from a sliding one on, unless `layer_types`
    says otherwise; a window counts the token itself. `head_dim` is 64 when absent."""
    rope = {} if hf.get("rope_parameters") or hf.get("rope_scaling") else {"rope_parameters": ROPE}
    theta = {"rope_theta": hf.get("rope_theta") or THETA}
    fields = common_fields({**hf, **theta, **rope}) | {"head_dim": hf.get("head_dim") or 64}
    layers, window = fields["n_layers"], hf.get("sliding_window", 128)
    types = hf.get("layer_types") or [KINDS[(i + 1) % 2] for i in range(layers)]
    if unknown := set(types) - set(KINDS):
        raise UnknownArchitecture(sorted(unknown)[0], KINDS, "layer type")
    if "sliding_attention" in types and not window:
        raise UnsupportedConfig(f"this gpt_oss config has layers with a sliding window of {window!r} tokens")
    windows = tuple(window if kind == "sliding_attention" else None for kind in types)
    bias = bool(hf.get("attention_bias", True))
    moe = MoeConfig(
        n_experts=require(hf, "num_experts" if "num_experts" in hf else "num_local_experts"),
        top_k=require(hf, "num_experts_per_tok" if "num_experts_per_tok" in hf else "experts_per_token"),
        d_ff=fields["d_ff"],
        norm_topk=True,
        bias=True,
        clamp=float(hf.get("swiglu_limit", 7.0)),
        alpha=float(hf.get("swiglu_alpha", 1.702)),
        aux_coefficient=aux_from_hf(hf, 0.9),
    )
    return ModelConfig(
        **fields,
        qkv_bias=bias,
        o_bias=bias,
        sinks=True,
        windows=windows if any(windows) else None,
        moe=moe,
        norm_scale_f32=True,
    )


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    refuse(cfg, qk_norm=False, o_bias=cfg.qkv_bias, mlp_bias=False, sinks=True, norm_scale_f32=True)
    windows, moe = cfg.windows or (None,) * cfg.n_layers, cfg.moe
    sizes = {w for w in windows if w is not None}
    if moe is None or not moe.bias or moe.clamp is None or not moe.norm_topk or moe.dense_layers or len(sizes) > 1:
        raise UnsupportedConfig(f"a {cfg.family} config cannot express {moe} with windows {cfg.windows}")
    if moe.d_ff != cfg.d_ff:
        raise UnsupportedConfig(f"a {cfg.family} config has one feed-forward width, not {cfg.d_ff} and {moe.d_ff}")
    common = common_to_hf(cfg, FAMILY.architecture)
    return {
        **common,
        # Without a word about it readers would take it for yarn.
        "rope_scaling": common["rope_scaling"] or {"rope_type": cfg.rope.kind},
        "attention_bias": cfg.qkv_bias,
        "sliding_window": sizes.pop() if sizes else None,
        "layer_types": [KINDS[w is not None] for w in windows],
        "num_local_experts": moe.n_experts,
        "num_experts_per_tok": moe.top_k,
        "swiglu_limit": moe.clamp,
        "swiglu_alpha": moe.alpha,
        **aux_to_hf(moe),
        **({"quantization_config": QUANTISATION} if cfg.quantised else {}),
    }


FAMILY = Family(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    from_hf=from_hf,
    to_hf=to_hf,
    names={
        **NAMES,
        **QKV_BIAS_NAMES,
        **O_BIAS_NAMES,
        "layers.attn.sink_n": "model.layers.{i}.self_attn.sinks",
        "layers.moe.router_ed": MLP + "router.weight",
        "layers.moe.router_bias_e": MLP + "router.bias",
        **joined(MLP, alternating=True, transposed=True),
        **kept_packed(PACKED),
        "layers.moe.gate_bias_ef": Form(BIAS, half=0, alternating=True),
        "layers.moe.up_bias_ef": Form(BIAS, half=1, alternating=True),
        "layers.moe.down_bias_ed": MLP + "experts.down_proj_bias",
    },
    also_read=(PACKED,),
    quantised=("mxfp4",),
)
