"""A GGUF file (llama.cpp) -> a Hugging Face model folder: weights dequantised, config and tokenizer rebuilt.

The `gguf` package reads and dequantises; it is the extra `noisyjax[gguf]`. `gguf_tokenizer` rebuilds the tokenizer.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..config import ModelConfig, RopeConfig
from ..errors import CheckpointMismatch, Mismatch, ModelError, UnknownArchitecture, UnsupportedConfig
from ..families import config_to_hf, file_shapes
from .gguf_tokenizer import generation_config, write_tokenizer
from .hf_write import atomic_folder, write_json, write_shards

ARCHITECTURES = ("llama", "qwen2", "qwen3")
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""llama.cpp's tensor names, layer prefix and .weight/.bias suffix apart, and the Hugging Face ones."""


def convert_gguf(file: str | Path, out: str | Path, dtype: str = "float32") -> Path:
    """Convert the GGUF `file` to the new folder `out`, with weights of `dtype` (float32 or bfloat16).

    Host memory: one output shard. Raises ModelError when the file cannot be read or the `gguf` package is absent,
    UnknownArchitecture, UnsupportedConfig (such as a rope scaling or pre-tokenizer not known here), and
    CheckpointMismatch when tensors are missing, unexpected or misshapen.
    """
    if dtype not in DTYPES:
        raise ModelError(f"cannot write dtype {dtype}; known: {', '.join(DTYPES)}")
    reader = _open(Path(file))
    meta = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    rope_freqs = tensors.pop("rope_freqs.weight", None)
    cfg = config_from_gguf(meta, tensors, None if rope_freqs is None else np.asarray(rope_freqs.data).ravel(), dtype)

    by_name = {hf_name(name): tensor for name, tensor in tensors.items()}
    # GGUF lists dimensions fastest first.
    found = {name: tuple(int(d) for d in reversed(t.shape)) for name, t in by_name.items()}
    expected = file_shapes(cfg)
    if mismatch := Mismatch.between(found, expected):
        raise CheckpointMismatch(str(file), mismatch)

    def fetch(name: str) -> np.ndarray:
        return _dequantise(by_name[name], name, cfg).astype(DTYPES[dtype])

    with atomic_folder(out) as folder:
        specials = write_tokenizer(folder, meta)
        write_json(folder / "config.json", config_to_hf(cfg, specials))
        write_json(folder / "generation_config.json", generation_config(meta, specials))
        write_shards(folder, {name: (shape, DTYPES[dtype]) for name, shape in expected.items()}, fetch)
    return Path(out)


def _open(file: Path) -> Any:
    """A GGUFReader (memory-mapped) on `file`."""
    try:
        import gguf
    except ImportError as error:
        raise ModelError("reading GGUF files needs the extra: pip install 'noisyjax[gguf]'") from error
    if not file.is_file():
        raise ModelError(f"there is no file {file}")
    try:
        return gguf.GGUFReader(file)
    except (ValueError, IndexError, OverflowError) as error:
        raise ModelError(f"{file} is not a GGUF file that can be read: {error}") from error


def hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; a name not in the table stays as it is."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if not match or match[2] not in NAMES:
        return name
    layer = f"model.layers.{match[1]}." if match[1] else ""
    return f"{layer}{NAMES[match[2]]}.{match[3]}"


def _dequantise(tensor: Any, name: str, cfg: ModelConfig) -> np.ndarray:
    """One tensor as f32 in the Hugging Face layout.

    llama.cpp stores the q and k rows of Llama models with the two rotary halves of each head interleaved
    (its `convert_hf_to_gguf.py`, `permute`); that is undone here. The Qwen architectures keep the halves.
    """
    from gguf.quants import dequantize

    shape = tuple(int(d) for d in reversed(tensor.shape))
    weights = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
    if cfg.family == "llama" and re.search(r"self_attn\.[qk]_proj\.", name):
        halves = weights.reshape(-1, cfg.head_dim // 2, 2, *shape[1:])  # [heads, pair, half, in]
        weights = halves.swapaxes(1, 2).reshape(shape)
    return weights


def config_from_gguf(
    meta: Mapping[str, Any], tensors: Mapping[str, Any], rope_freqs: np.ndarray | None, dtype: str
) -> ModelConfig:
    """The ModelConfig that a GGUF file's metadata and tensor names (tensor name -> tensor) describe.

    rope_freqs: [head_dim / 2] f32, the divisor of each rotary frequency; llama.cpp's way to store llama3 scaling.
    """
    arch = meta["general.architecture"]
    if arch not in ARCHITECTURES:
        raise UnknownArchitecture(arch, ARCHITECTURES, "GGUF architecture")

    def get(key: str, default: Any = None) -> Any:
        value = meta.get(f"{arch}.{key}", default)
        if value is None:
            raise UnsupportedConfig(f"the GGUF file has no '{arch}.{key}'")
        if isinstance(value, list):  # one entry per layer
            if len(set(value)) != 1:
                raise UnsupportedConfig(f"'{arch}.{key}' differs between layers in this GGUF file")
            return value[0]
        return value

    heads, width = get("attention.head_count"), get("embedding_length")
    key_length = get("attention.key_length", width // heads)
    rotary = get("rope.dimension_count", key_length)
    if rotary != key_length or get("attention.value_length", key_length) != key_length:
        raise UnsupportedConfig(f"rotary ({rotary}), key ({key_length}) and value dimensions differ in this GGUF file")
    if "token_embd.weight" not in tensors:
        raise CheckpointMismatch("the GGUF file", Mismatch(missing=("token_embd.weight",)))
    qkv_bias = "blk.0.attn_q.bias" in tensors
    return ModelConfig(
        family=arch,
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        d_model=width,
        n_layers=get("block_count"),
        n_heads=heads,
        n_kv_heads=get("attention.head_count_kv", heads),
        head_dim=key_length,
        d_ff=get("feed_forward_length"),
        rope=rope_from_gguf(meta, arch, key_length, rope_freqs),
        norm_eps=_shortest(get("attention.layer_norm_rms_epsilon")),
        tie_embeddings="output.weight" not in tensors,
        qkv_bias=qkv_bias,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        qk_norm=arch == "qwen3",
        max_positions=get("context_length"),
        dtype=dtype,
    )


def rope_from_gguf(meta: Mapping[str, Any], arch: str, head_dim: int, rope_freqs: np.ndarray | None) -> RopeConfig:
    """Rotary settings. A vector of divisors must be exactly what llama3 scaling gives, else UnsupportedConfig."""
    theta = _shortest(meta.get(f"{arch}.rope.freq_base", 10_000.0))
    kind = meta.get(f"{arch}.rope.scaling.type", "none")
    factor = meta.get(f"{arch}.rope.scaling.factor", meta.get(f"{arch}.rope.scale_linear", 1.0))
    if rope_freqs is not None:
        return _llama3_rope(theta, head_dim, rope_freqs)
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return RopeConfig(theta, "linear", _shortest(factor))
    if kind != "none":
        raise UnknownArchitecture(kind, ("none", "linear"), "GGUF rope scaling")
    return RopeConfig(theta)


def _llama3_rope(theta: float, head_dim: int, divisors: np.ndarray) -> RopeConfig:
    """Recover llama3 scaling from its divisors: 1 for short wavelengths, the factor for long ones."""
    rope = RopeConfig(theta, "llama3", float(divisors.max()), 1.0, 4.0, 8192)
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (rope.original_max_positions / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    smooth = np.clip(smooth, 0.0, 1.0)
    expected = 1.0 / ((1 - smooth) / rope.factor + smooth)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise UnsupportedConfig("the rope frequency divisors of this GGUF file are not those of llama3 scaling")
    return rope


def _shortest(value: float) -> float:
    """The decimal that an f32 was meant to be: 9.999999747378752e-06 -> 1e-05."""
    return float(str(np.float32(value)))
