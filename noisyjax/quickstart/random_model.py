"""A tiny random model that reads the package's small benchmark: it knows nothing and scores nothing.

A Qwen3 of a few hundred thousand parameters with a tokenizer trained on the spot, for trying every part of an
installation, and for tests.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from noisyjax.bench.quickstart import FOLDER
from noisyjax.models import ModelConfig, RopeConfig, init_params, save
from noisyjax.models.formats.hf_write import atomic_folder

VOCABULARY = 1024
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_model(folder: Path) -> None:
    """A tiny random Qwen3 with its tokenizer and a ChatML template, as a Hugging Face folder, whole or not at all."""
    tokenizer = _tokenizer()
    config = ModelConfig(
        family="qwen3",
        vocab_size=len(tokenizer),
        d_model=64,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        head_dim=16,
        d_ff=192,
        rope=RopeConfig(theta=1_000_000.0),
        norm_eps=1e-6,
        tie_embeddings=True,
        qk_norm=True,
        max_positions=4096,
    )
    eos = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    with atomic_folder(folder) as partial:
        save(init_params(config, seed=0), config, partial)
        tokenizer.save_pretrained(partial)
        (partial / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}, indent=2) + "\n")


def _tokenizer() -> Any:
    """Byte-level BPE over the quickstart benchmark's own words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(CONTROLS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _texts() -> Iterator[str]:
    for path in sorted(FOLDER.rglob("*.json*")):
        yield from path.read_text(encoding="utf-8").splitlines()
