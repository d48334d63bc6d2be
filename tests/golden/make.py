"""Make the golden logits beside this file: what transformers computes for models that a seed makes.

    python tests/golden/make.py            (needs the `parity` extra; writes tests/golden/*.npz)

Each .npz describes itself: the config.json (text), the seed and spreads of `init_params`, the token ids [B, T] and the
float32 logits of the last K positions [B, K, V]. No weights are stored. `tests/models/test_golden.py` needs no torch.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from noisyjax.models import config_from_hf, init_params, save

SPREAD = {"stddev": 0.15, "norm_stddev": 0.15}
BASE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
QWEN3_MOE = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}
GPT_OSS = {"sliding_window": 8, "swiglu_limit": 1.0}
CASES: dict[str, tuple[int, int, dict[str, Any]]] = {  # name -> tokens, positions kept, config
    "qwen3": (32, 32, {"model_type": "qwen3", "rope_theta": 1e6}),
    "qwen3_tied": (32, 32, {"model_type": "qwen3", "tie_word_embeddings": True}),
    "qwen2_tied": (32, 32, {"model_type": "qwen2", "tie_word_embeddings": True, "head_dim": 8}),
    "llama_biases": (32, 32, {"model_type": "llama", "attention_bias": True, "mlp_bias": True}),
    "qwen3_moe": (32, 32, {"model_type": "qwen3_moe", **QWEN3_MOE}),
    "gpt_oss": (48, 32, {"model_type": "gpt_oss", "num_local_experts": 6, "num_experts_per_tok": 3, **GPT_OSS}),
    "llama3_long": (8_300, 32, {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": LLAMA3}),
}


def make(name: str, tokens: int, keep: int, config: dict[str, Any]) -> None:
    hf = {**BASE, **config}
    seed = len(name)
    cfg = config_from_hf(hf)
    ids = np.random.RandomState(seed).randint(0, cfg.vocab_size, (1 if tokens > 1000 else 2, tokens)).astype(np.int32)
    with tempfile.TemporaryDirectory() as folder:
        save(init_params(cfg, seed, **SPREAD), cfg, Path(folder) / "m")
        model = AutoModelForCausalLM.from_pretrained(Path(folder) / "m", dtype=torch.float32).eval()
        with torch.inference_mode():
            logits = model(torch.tensor(ids, dtype=torch.long), logits_to_keep=keep).logits.numpy()
    target = Path(__file__).parent / f"{name}.npz"
    np.savez_compressed(target, config=json.dumps(hf), seed=seed, ids=ids, logits=logits, **SPREAD)
    print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB, logits within ±{np.abs(logits).max():.2f}")


if __name__ == "__main__":
    for name, (tokens, keep, config) in CASES.items():
        make(name, tokens, keep, config)
