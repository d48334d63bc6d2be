"""Qwen3 (dense): per-head RMS norms on queries and keys before rotary embedding; an explicit head_dim."""

from typing import Any

from ..config import ModelConfig
from .dense import (
    NAMES,
    O_BIAS_NAMES,
    QKV_BIAS_NAMES,
    Family,
    Json,
    common_fields,
    common_to_hf,
    refuse,
    windows_from_hf,
    windows_to_hf,
)

Q_K_NORM_NAMES = {
    "layers.attn.q_norm.scale_h": "model.layers.{i}.self_attn.q_norm.weight",
    "layers.attn.k_norm.scale_h": "model.layers.{i}.self_attn.k_norm.weight",
}


def from_hf(hf: Json) -> ModelConfig:
    """`attention_bias` puts a bias on all four projections. The upstream class's head_dim is 128 when it is absent."""
    bias = bool(hf.get("attention_bias", False))
    fields = {**common_fields(hf), "head_dim": hf.get("head_dim") or 128}
    return ModelConfig(**fields, qkv_bias=bias, o_bias=bias, qk_norm=True, windows=windows_from_hf(hf))


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    refuse(cfg, qk_norm=True, o_bias=cfg.qkv_bias, mlp_bias=False, sinks=False, moe=None, norm_scale_f32=False)
    return {**common_to_hf(cfg, FAMILY.architecture), "attention_bias": cfg.qkv_bias, **windows_to_hf(cfg)}


FAMILY = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    from_hf=from_hf,
    to_hf=to_hf,
    names={**NAMES, **QKV_BIAS_NAMES, **O_BIAS_NAMES, **Q_K_NORM_NAMES},
)
