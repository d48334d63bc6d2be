"""Qwen3 with mixtures of experts: attention as in Qwen3, the feed-forward of most or all layers spread over experts.

Files on the hub hold a tensor per expert; transformers 5 keeps all experts in one and may save them so too.
"""

from typing import Any

from ..config import ModelConfig, MoeConfig
from ..errors import UnsupportedConfig
from .dense import Family, Json, aux_from_hf, aux_to_hf, common_fields, common_to_hf, refuse, require
from .forms import joined, per_expert
from .qwen3 import FAMILY as QWEN3

MLP = "model.layers.{i}.mlp."


def from_hf(hf: Json) -> ModelConfig:
    """A layer is dense if `mlp_only_layers` names it or `decoder_sparse_step` does not divide its number, from 1 on.

    Unlike in Qwen3, head_dim is hidden_size // heads when absent, and a sliding window is one for all layers.
    """
    fields = common_fields(hf)
    layers, bias = fields["n_layers"], bool(hf.get("attention_bias", False))
    only, step = hf.get("mlp_only_layers") or (), hf.get("decoder_sparse_step", 1)
    if not isinstance(step, int) or step < 1:
        raise UnsupportedConfig(f"decoder_sparse_step {step!r} is no positive whole number")
    window = hf.get("sliding_window") if hf.get("use_sliding_window", False) else None
    moe = MoeConfig(
        n_experts=require(hf, "num_local_experts" if "num_local_experts" in hf else "num_experts"),
        top_k=require(hf, "num_experts_per_tok"),
        d_ff=require(hf, "moe_intermediate_size"),
        norm_topk=bool(hf.get("norm_topk_prob", False)),
        dense_layers=tuple(i for i in range(layers) if i in only or (i + 1) % step),
        aux_coefficient=aux_from_hf(hf, 0.001),
    )
    windows = None if window is None else (window,) * layers
    return ModelConfig(**fields, qkv_bias=bias, o_bias=bias, qk_norm=True, windows=windows, moe=moe)


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    refuse(cfg, qk_norm=True, o_bias=cfg.qkv_bias, mlp_bias=False, sinks=False, norm_scale_f32=False)
    windows, moe = set(cfg.windows or (None,)), cfg.moe
    if moe is None or moe.bias or moe.clamp is not None or len(windows) > 1:
        raise UnsupportedConfig(f"a {cfg.family} config cannot express {moe} with windows {cfg.windows}")
    window = windows.pop()
    return {
        **common_to_hf(cfg, FAMILY.architecture),
        "attention_bias": cfg.qkv_bias,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "num_experts": moe.n_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.d_ff,
        "norm_topk_prob": moe.norm_topk,
        "mlp_only_layers": list(moe.dense_layers),
        "decoder_sparse_step": 1,
        **aux_to_hf(moe),
    }


FAMILY = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    from_hf=from_hf,
    to_hf=to_hf,
    names={**QWEN3.names, "layers.moe.router_ed": MLP + "gate.weight", **per_expert(MLP)},
    also_read=(joined(MLP),),
)
