"""Qwen2 and Qwen2.5: biases on q, k and v, none on o; sliding windows on the upper layers when switched on."""

from typing import Any

from ..config import ModelConfig
from .dense import (
    NAMES,
    QKV_BIAS_NAMES,
    Family,
    Json,
    common_fields,
    common_to_hf,
    refuse,
    windows_from_hf,
    windows_to_hf,
)


def from_hf(hf: Json) -> ModelConfig:
    return ModelConfig(**common_fields(hf), qkv_bias=True, windows=windows_from_hf(hf))


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    refuse(cfg, qkv_bias=True, o_bias=False, mlp_bias=False, qk_norm=False, sinks=False, moe=None, norm_scale_f32=False)
    return {**common_to_hf(cfg, FAMILY.architecture), **windows_to_hf(cfg)}


FAMILY = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    from_hf=from_hf,
    to_hf=to_hf,
    names={**NAMES, **QKV_BIAS_NAMES},
)
