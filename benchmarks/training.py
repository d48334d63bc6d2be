"""GRPO steps against TRL and tunix, and what a step costs as prompts grow."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.line import Line
from benchmarks.peers import toy
from noisyjax.errors import UsageError
from noisyjax.models import ModelConfig, RopeConfig

PEERS = Path(__file__).parent / "peers"
INTERPRETERS = {"trl": "NOISYJAX_TRL_PYTHON", "tunix": "NOISYJAX_TUNIX_PYTHON"}
"""Variables that name a Python with the peer installed; `make peers` makes both."""
CASES = ((128, 1.4), (1024, 3.0))
"""(prompt tokens, least ratio); 128 new tokens each."""


def grpo() -> Iterator[Line]:
    """Warm GRPO steps of 4 prompts x 8 samples on a random 4-layer model, beside TRL and tunix."""
    for prompt, least in CASES:
        seconds = {name: _seconds(name, prompt) for name in ("noisyjax", *INTERPRETERS)}
        mine = seconds.pop("noisyjax")
        yield Line(
            f"GRPO step, {prompt:,} + 128 tokens",
            "speed over the faster of TRL and tunix",
            min(seconds.values()) / mine,
            least=least,
            detail={"noisyjax s": mine} | {f"{name} s": s for name, s in seconds.items()},
        )


def _seconds(name: str, prompt: int) -> float:
    """Median seconds of a warm step, in a process of its own."""
    python = sys.executable if name == "noisyjax" else os.environ.get(INTERPRETERS[name], "")
    if not python:
        raise UsageError(f"set {INTERPRETERS[name]} to a Python that has {name}: `make peers` makes one")
    script = ["-m", "benchmarks.training"] if name == "noisyjax" else [str(PEERS / f"{name}_grpo.py")]
    env = {**os.environ, "PROMPT_TOKENS": str(prompt), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([python, *script], env=env, capture_output=True, text=True)
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if done.returncode or not found:
        raise UsageError(f"{name} did not finish: {done.stderr.strip()[-500:]}")
    return float(found[0][2])


def toy_config() -> ModelConfig:
    """The model of all trainers that are compared: `peers/toy.py`."""
    return ModelConfig(
        family="qwen3",
        vocab_size=toy.VOCABULARY,
        d_model=toy.WIDTH,
        n_layers=toy.LAYERS,
        n_heads=toy.HEADS,
        n_kv_heads=toy.KV_HEADS,
        head_dim=toy.HEAD_DIM,
        d_ff=toy.FFN,
        rope=RopeConfig(theta=1e6),
        norm_eps=1e-6,
        tie_embeddings=True,
        qk_norm=True,
        max_positions=16_384,
    )


def run_ours() -> None:
    """The same work as the peers', by `noisyjax train grpo`: model folder, records, user's reward, metrics.jsonl."""
    sys.path.insert(0, str(PEERS))  # where the reward finds `toy`
    from noisyjax.train import GrpoConfig, train_grpo
    from noisyjax.train.watch.log import read_metrics

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _write_model(folder / "model")
        rows = [
            {
                "id": f"{step}-{i}",
                "question": text,
                "answers": ["-"],
                "domain": "toy",
                "composition": "A|Q",
                "setting": "ND",
            }
            for step in range(toy.STEPS)
            for i, text in enumerate(toy.prompts(step))
        ]
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "toy_reward.py").write_text(
            "import toy\ndef reward(sample):\n    return toy.reward(sample.completion)\n"
        )
        sys.path.insert(0, scratch)
        # As the peers are set: room for these prompts and no longer ones, no gradient checkpointing.
        prompt = {"ask_reference": False, "max_prompt_tokens": toy.PROMPT_TOKENS}
        row = toy.PROMPT_TOKENS + toy.SAMPLES * toy.NEW_TOKENS
        config = GrpoConfig.model_validate(
            {
                "out": str(folder / "run"),
                "model": folder / "model",
                "steps": toy.STEPS,
                "prompts": toy.PROMPTS,
                "data": {"files": [str(folder / "data.jsonl")], "shuffle": False, "prompt": prompt},
                "rollout": {"samples": toy.SAMPLES, "max_tokens": toy.NEW_TOKENS, "slots": 32, "ignore_eos": True},
                "reward": {
                    "combination": "outcome",
                    "reward_fn": "toy_reward:reward",
                    "truncated": "score",
                    "format": {"role": "none"},
                },
                "loss": {"beta": toy.BETA},
                "optimizer": {"learning_rate": toy.LEARNING_RATE},
                "update": {"dtype": "float32", "remat": "none", "row_tokens": row, "batch_tokens": toy.PROMPTS * row},
                "log": {"tensorboard": False, "samples_every": 0},
            }
        )
        train_grpo(config)
        toy.say("noisyjax", [line["seconds"] for line in read_metrics(config.out)])


def _write_model(folder: Path) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from noisyjax.models import init_params, save

    cfg = toy_config()
    save(init_params(cfg, 0), cfg, folder)
    names = {toy.PAD: "<pad>", toy.EOS: "<eos>", toy.BOS: "<bos>"}
    vocabulary = {names.get(i, c): i for i, c in enumerate(toy.letters())}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    hf = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<pad>")
    hf.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    hf.save_pretrained(folder)


if __name__ == "__main__":
    run_ours()
