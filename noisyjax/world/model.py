"""The tiny world's model: a Qwen3 of a third of a million parameters, as a Hugging Face folder."""

import json
from pathlib import Path

import jax

from noisyjax.errors import UsageError, nearest
from noisyjax.models import ModelConfig, RopeConfig, init_params, save
from noisyjax.world.tokenizer import END, make_tokenizer
from noisyjax.world.words import VOCABULARY

WINDOW = 192
"""Tokens of prompt and completion that the model is meant for; the longest prompt and answer take about 150."""

STARTS = ("sparse", "strong")


def start_model(name: str) -> Path:
    """The folder of a trained start that comes with the package.

    sparse: right without noise, now and then under noise. strong: it has seen a little noise, too. How each was made
    is in configs/train/world_<name>.yaml. Raises UsageError for another name.
    """
    if name not in STARTS:
        raise UsageError(f"the tiny world has no start {name!r}: {nearest(name, STARTS)}")
    return Path(__file__).parent / "starts" / name


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
        rope=RopeConfig(theta=100.0),  # texts are short: most of the frequencies tell neighbours apart
        norm_eps=1e-6,
        tie_embeddings=True,
        qk_norm=True,
        max_positions=WINDOW,
    )


def start_params(seed: int) -> dict[str, jax.Array]:
    """Random parameters. Query and key scales begin at 2, so that attention can be sharp from the start: looking a fact
    up by its key is the step that takes longest to learn."""
    config = model_config()
    params = init_params(config, seed=seed, stddev=config.d_model**-0.5)
    return {path: 2 * x if "q_norm" in path or "k_norm" in path else x for path, x in params.items()}


def write_model(folder: Path, seed: int = 0) -> Path:
    """An untrained model with its tokenizer in `folder`, the same for the same seed."""
    save(start_params(seed), model_config(), folder)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    generation = {"eos_token_id": tokenizer.convert_tokens_to_ids(END)}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    return folder
