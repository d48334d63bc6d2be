"""Tiny models of each family, made from a seed."""

from collections.abc import Callable
from typing import Any

import pytest

from noisyjax.models import ModelConfig, MoeConfig, RopeConfig, init_params

FLAGS: dict[str, dict[str, Any]] = {
    "qwen3": {"qk_norm": True},
    "qwen2": {"qkv_bias": True},
    "llama": {},
    "qwen3_moe": {"qk_norm": True, "moe": MoeConfig(n_experts=4, top_k=2, d_ff=16, norm_topk=True)},
    "gpt_oss": {
        "qkv_bias": True,
        "o_bias": True,
        "sinks": True,
        "norm_scale_f32": True,
        "windows": (6, None),
        "moe": MoeConfig(n_experts=4, top_k=2, d_ff=40, norm_topk=True, bias=True, clamp=7.0),
    },
}


@pytest.fixture
def tiny() -> Callable[..., ModelConfig]:
    """`tiny(family, **changes)`: two layers, 4 heads over 2 key-value heads, a head_dim that is not width / heads."""

    def make(family: str = "qwen3", **changes: Any) -> ModelConfig:
        base = {
            "family": family,
            "vocab_size": 64,
            "d_model": 24,
            "n_layers": 2,
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 8,
            "d_ff": 40,
            "rope": RopeConfig(),
            "norm_eps": 1e-6,
            "tie_embeddings": False,
            "max_positions": 512,
        }
        return ModelConfig(**{**base, **FLAGS[family], **changes})

    return make


@pytest.fixture
def random_params() -> Callable[..., dict[str, Any]]:
    """`random_params(cfg, seed)`: as `init_params`, and the norm scales are not all one either."""

    return lambda cfg, seed=0: init_params(cfg, seed, norm_stddev=0.2)
