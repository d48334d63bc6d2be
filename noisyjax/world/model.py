"""The tiny world's model: a Qwen3 of a third of a million parameters, as a Hugging Face folder."""

import json
from pathlib import Path

from noisyjax.models import ModelConfig, RopeConfig, init_params, save
from noisyjax.world.tokenizer import END, make_tokenizer
from noisyjax.world.words import VOCABULARY

WINDOW = 192
"""Tokens of prompt and completion that the model is meant for; the longest prompt and answer take about 150."""


def model_config() -> ModelConfig:
    """Three layers of width 96: about 0.3 million parameters, 1.3 MB."""
    return ModelConfig(
        family="qwen3",
        vocab_size=len(VOCABULARY),
        d_model=96,
        n_layers=3,
        n_heads=4,
        n_kv_heads=2,
        head_dim=24,
        d_ff=256,
        rope=RopeConfig(theta=10_000.0),
        norm_eps=1e-6,
        tie_embeddings=True,
        qk_norm=True,
        max_positions=WINDOW,
    )


def write_model(folder: Path, seed: int = 0) -> Path:
    """An untrained model with its tokenizer in `folder`, the same for the same seed."""
    config = model_config()
    save(init_params(config, seed=seed, stddev=config.d_model**-0.5), config, folder)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    generation = {"eos_token_id": tokenizer.convert_tokens_to_ids(END)}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    return folder
