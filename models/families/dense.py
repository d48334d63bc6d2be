"""What the dense families share: the common keys of a Hugging Face config, and the common tensor names."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config import DTYPES, ROPE_KINDS, ModelConfig, MoeConfig, RopeConfig
from ..errors import UnknownArchitecture, UnsupportedConfig
from .forms import Form

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """One architecture: its config mapping and its tensor names, both ways.

    names: parameter path -> tensor name in a file, or its form; `{i}` stands for the layer. Optional parameters
    (biases, q/k norms, head) are in the table too; `params.param_specs` says which of them a given config has.
    also_read: tables that take the place of entries of `names` in files that have such tensors; never written.
    quantised: values of `quantization_config.quant_method` that `also_read` can read, and `names` keep packed.
    """

    model_type: str
    architecture: str
    from_hf: Callable[[Json], ModelConfig]
    to_hf: Callable[[ModelConfig], dict[str, Any]]
    names: Mapping[str, str | Form]
    also_read: tuple[Mapping[str, Form], ...] = ()
    quantised: tuple[str, ...] = ()


NAMES = {
    "embed.w_vd": "model.embed_tokens.weight",
    "layers.attn_norm.scale_d": "model.layers.{i}.input_layernorm.weight",
    "layers.attn.q_nhd": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.attn.k_khd": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.attn.v_khd": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.attn.o_dnh": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.mlp_norm.scale_d": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.mlp.gate_fd": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.mlp.up_fd": "model.layers.{i}.mlp.up_proj.weight",
    "layers.mlp.down_df": "model.layers.{i}.mlp.down_proj.weight",
    "final_norm.scale_d": "model.norm.weight",
    "head.w_vd": "lm_head.weight",
}
QKV_BIAS_NAMES = {
    "layers.attn.q_bias_nh": "model.layers.{i}.self_attn.q_proj.bias",
    "layers.attn.k_bias_kh": "model.layers.{i}.self_attn.k_proj.bias",
    "layers.attn.v_bias_kh": "model.layers.{i}.self_attn.v_proj.bias",
}
O_BIAS_NAMES = {"layers.attn.o_bias_d": "model.layers.{i}.self_attn.o_proj.bias"}


def require(hf: Json, key: str) -> Any:
    """`hf[key]`, or an error that names the key and the model type."""
    if hf.get(key) is None:
        raise UnsupportedConfig(f"the {hf.get('model_type', 'model')} config has no '{key}'")
    return hf[key]


def common_fields(hf: Json) -> dict[str, Any]:
    """The ModelConfig fields that every family reads the same way.

    `head_dim` defaults to hidden_size // heads and `num_key_value_heads` to the heads, as the upstream classes do.
    """
    if (act := hf.get("hidden_act", "silu")) != "silu":
        raise UnsupportedConfig(f"hidden_act '{act}' is not implemented; known: silu")
    heads, width = require(hf, "num_attention_heads"), require(hf, "hidden_size")
    return {
        "family": require(hf, "model_type"),
        "vocab_size": require(hf, "vocab_size"),
        "d_model": width,
        "n_layers": require(hf, "num_hidden_layers"),
        "n_heads": heads,
        "n_kv_heads": hf.get("num_key_value_heads") or heads,
        "head_dim": hf.get("head_dim") or width // heads,
        "d_ff": require(hf, "intermediate_size"),
        "rope": rope_from_hf(hf),
        "norm_eps": float(hf.get("rms_norm_eps", 1e-6)),
        "tie_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "max_positions": require(hf, "max_position_embeddings"),
        "dtype": dtype_from_hf(hf),
    }


def dtype_from_hf(hf: Json) -> str:
    """`dtype` (transformers 5) or `torch_dtype` (before it); float32 when neither is given."""
    name = str(hf.get("dtype") or hf.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise UnknownArchitecture(name, DTYPES, "weight dtype")
    return name


def rope_from_hf(hf: Json) -> RopeConfig:
    """Rotary settings from `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before it).

    The kind may be spelt `rope_type` or, in older files, `type`. Raises UnknownArchitecture for kinds that are not
    implemented: running such a model without its scaling looks right on short prompts and is wrong on long ones.
    """
    new, old = hf.get("rope_parameters") or {}, hf.get("rope_scaling") or {}
    given = {**old, **new}
    if any(isinstance(value, Mapping) for value in given.values()):
        raise UnsupportedConfig("rope parameters that differ between layer types are not implemented")
    partial = given.get("partial_rotary_factor", hf.get("partial_rotary_factor")) or 1.0
    if float(partial) != 1.0:
        raise UnsupportedConfig(f"partial_rotary_factor {partial} is not implemented; only 1.0 is")
    kind = given.get("rope_type") or given.get("type") or "default"
    theta = float(given.get("rope_theta") or hf.get("rope_theta") or 10_000.0)
    if kind not in ROPE_KINDS:
        raise UnknownArchitecture(str(kind), ROPE_KINDS, "rope type")
    if kind == "default":
        return RopeConfig(theta=theta)
    needs = ("factor", "low_freq_factor", "high_freq_factor") if kind == "llama3" else ("factor",)
    if missing := [key for key in needs if given.get(key) is None]:
        raise UnsupportedConfig(f"rope type {kind} lacks {', '.join(missing)}")
    scaled = RopeConfig(theta, kind, float(given["factor"]))
    if kind == "linear":
        return scaled
    original = given.get("original_max_position_embeddings") or hf.get("original_max_position_embeddings")
    if original is None:
        raise UnsupportedConfig(f"rope type {kind} lacks original_max_position_embeddings")
    if kind == "yarn":
        return _yarn_from_hf(given, replace(scaled, original_max_positions=int(original)))
    low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
    return RopeConfig(theta, kind, scaled.factor, low, high, int(original))


def _yarn_from_hf(given: Json, rope: RopeConfig) -> RopeConfig:
    """yarn's own keys. `mscale` with `mscale_all_dim` is DeepSeek's way to give the attention factor."""
    attention_factor = given.get("attention_factor")
    if attention_factor is None and given.get("mscale") and given.get("mscale_all_dim"):
        above, below = (0.1 * float(given[key]) * math.log(rope.factor) + 1.0 for key in ("mscale", "mscale_all_dim"))
        attention_factor = above / below if rope.factor > 1 else 1.0
    return replace(
        rope,
        beta_fast=float(given.get("beta_fast") or 32),
        beta_slow=float(given.get("beta_slow") or 1),
        truncate=bool(given.get("truncate", True)),
        attention_factor=None if attention_factor is None else float(attention_factor),
    )


def rope_to_hf(rope: RopeConfig) -> dict[str, Any]:
    """The `rope_theta` + `rope_scaling` spelling, which every loader reads, old or new."""
    if rope.kind == "default":
        return {"rope_theta": rope.theta, "rope_scaling": None}
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_positions,
        }
    if rope.kind == "yarn":
        scaling |= {
            "original_max_position_embeddings": rope.original_max_positions,
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "truncate": rope.truncate,
            **({} if rope.attention_factor is None else {"attention_factor": rope.attention_factor}),
        }
    return {"rope_theta": rope.theta, "rope_scaling": scaling}


def common_to_hf(cfg: ModelConfig, architecture: str) -> dict[str, Any]:
    """The config.json keys that every dense family writes the same way."""
    return {
        "architectures": [architecture],
        "model_type": cfg.family,
        "hidden_act": "silu",
        "vocab_size": cfg.vocab_size,
        "hidden_size": cfg.d_model,
        "intermediate_size": cfg.d_ff,
        "num_hidden_layers": cfg.n_layers,
        "num_attention_heads": cfg.n_heads,
        "num_key_value_heads": cfg.n_kv_heads,
        "head_dim": cfg.head_dim,
        "max_position_embeddings": cfg.max_positions,
        "rms_norm_eps": cfg.norm_eps,
        **rope_to_hf(cfg.rope),
        "tie_word_embeddings": cfg.tie_embeddings,
        "attention_dropout": 0.0,
        "use_cache": True,
        "torch_dtype": cfg.dtype,
    }


def aux_from_hf(hf: Json, default: float) -> float:
    """Weight of the router's auxiliary loss. As upstream, it counts only where the config also switches it on."""
    if not hf.get("output_router_logits", False):
        return 0.0
    given = hf.get("router_aux_loss_coef")
    return default if given is None else float(given)


def aux_to_hf(moe: MoeConfig) -> dict[str, Any]:
    """The two keys of `aux_from_hf`; none for a model that asks for no such loss."""
    if not moe.aux_coefficient:
        return {}
    return {"output_router_logits": True, "router_aux_loss_coef": moe.aux_coefficient}


def windows_from_hf(hf: Json) -> tuple[int | None, ...] | None:
    """Per-layer sliding windows of the Qwen families, or None when no layer has one.

    Only with `use_sliding_window`: the layers that `layer_types` marks as sliding, or, in configs older than that
    key, those from `max_window_layers` on. A window counts the token itself.
    """
    window = hf.get("sliding_window")
    if not hf.get("use_sliding_window", False) or window is None:
        return None
    layers = require(hf, "num_hidden_layers")
    types = hf.get("layer_types")
    if types is None:
        sliding = [i >= hf.get("max_window_layers", 28) for i in range(layers)]
    else:
        if unknown := set(types) - {"full_attention", "sliding_attention"}:
            raise UnknownArchitecture(sorted(unknown)[0], ("full_attention", "sliding_attention"), "layer type")
        sliding = [kind == "sliding_attention" for kind in types]
    return tuple(window if s else None for s in sliding) if any(sliding) else None


def windows_to_hf(cfg: ModelConfig) -> dict[str, Any]:
    """The Qwen keys for `cfg.windows`. Raises UnsupportedConfig when layers have different windows."""
    windows = cfg.windows or (None,) * cfg.n_layers
    sizes = {w for w in windows if w is not None}
    if len(sizes) > 1:
        raise UnsupportedConfig(f"{cfg.family} has one window size for all its sliding layers, not {sorted(sizes)}")
    return {
        "use_sliding_window": bool(sizes),
        "sliding_window": sizes.pop() if sizes else None,
        "max_window_layers": next((i for i, w in enumerate(windows) if w is not None), cfg.n_layers),
        "layer_types": ["full_attention" if w is None else "sliding_attention" for w in windows],
    }


def refuse(cfg: ModelConfig, **wanted: Any) -> None:
    """Raise UnsupportedConfig for each field of `cfg` that differs from the only value its family can express."""
    wrong = [f"{key}={getattr(cfg, key)!r}" for key, value in wanted.items() if getattr(cfg, key) != value]
    if wrong:
        raise UnsupportedConfig(f"a {cfg.family} config cannot express {', '.join(wrong)}")
