"""The whole story on one machine in two minutes: make a model, evaluate it in four settings, write the report.

Nothing is downloaded. The model is a Qwen3 of a few hundred thousand random parameters with a tokenizer trained on the
spot, so it knows nothing and scores nothing: what the run shows is every part at work, not a result.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from noisyjax.bench.quickstart import FOLDER
from noisyjax.config import load
from noisyjax.errors import UsageError
from noisyjax.evaluate import EvalConfig, evaluate
from noisyjax.models import ModelConfig, RopeConfig, init_params, save
from noisyjax.models.formats.hf_write import atomic_folder
from noisyjax.report import print_report, write_html
from noisyjax.store.folder import storing

VOCABULARY = 1024
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

WORDS = """\
The model of this run was made a minute ago from random numbers. It has learned nothing, so its answers are noise and
its scores are zero, or chance where there are options to choose from. What you see is that everything works here:
prompts with labelled noise, generation, attention capture, scoring, storage, statistics and the report.

Next: point the same commands at a model that can answer.
  noisyjax eval sweeps/quickstart engine.model=FOLDER out=runs/mine     a Hugging Face model folder
  noisyjax eval sweeps/endpoint engine.base_url=URL engine.model=NAME   an OpenAI-compatible endpoint
  noisyjax bench ls                                                     the datasets, and where their files go
"""


def run_quickstart(out: Path) -> None:
    """Make the model, run `sweeps/quickstart` on it and write the report, all inside `out`.

    Run again, it goes on where it was. Raises UsageError when `out` holds something else.
    """
    model = out / "model"
    if not (model / "config.json").is_file():
        if model.exists() and any(model.iterdir()):
            raise UsageError(f"{model} holds something that is no model; choose another --out")
        typer.echo(f"making a tiny random model in {model}")
        with storing(str(model)):
            make_model(model)
    config = load(EvalConfig, "sweeps/quickstart", [f"engine.model={json.dumps(str(model))}"])
    config = config.model_copy(update={"out": str(out / "run")})
    evaluate(config)
    print_report([config.out])
    page = write_html([config.out], out / "report.html")
    typer.echo(WORDS)
    typer.echo(f"the page with plots and failures: {page}")


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
