"""Llama 1 to 3 and everything of that shape (SmolLM2, TinyLlama, the R1 distillations of Llama)."""

from typing import Any

from ..config import ModelConfig
from .dense import NAMES, O_BIAS_NAMES, QKV_BIAS_NAMES, Family, Json, common_fields, common_to_hf, refuse

MLP_BIAS_NAMES = {
    "layers.mlp.gate_bias_f": "model.layers.{i}.mlp.gate_proj.bias",
    "layers.mlp.up_bias_f": "model.layers.{i}.mlp.up_proj.bias",
    "layers.mlp.down_bias_d": "model.layers.{i}.mlp.down_proj.bias",
}


def from_hf(hf: Json) -> ModelConfig:
    """`attention_bias` puts a bias on all four projections, `mlp_bias` on all three of the feed-forward."""
    bias = bool(hf.get("attention_bias", False))
    return ModelConfig(**common_fields(hf), qkv_bias=bias, o_bias=bias, mlp_bias=bool(hf.get("mlp_bias", False)))


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    refuse(cfg, qk_norm=False, o_bias=cfg.qkv_bias, windows=None, sinks=False, moe=None, norm_scale_f32=False)
    biases = {"attention_bias": cfg.qkv_bias, "mlp_bias": cfg.mlp_bias}
    return {**common_to_hf(cfg, FAMILY.architecture), **biases}


FAMILY = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    from_hf=from_hf,
    to_hf=to_hf,
    names={**NAMES, **QKV_BIAS_NAMES, **O_BIAS_NAMES, **MLP_BIAS_NAMES},
)
