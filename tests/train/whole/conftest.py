"""A tiny random model folder, a handful of records, and configs that train on them in seconds."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from noisyjax.models import ModelConfig, RopeConfig, init_params, save
from noisyjax.train.config import GrpoConfig, SftConfig

REPO = Path(__file__).resolve().parents[3]
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
COMPOSITIONS = ("A|Q", "A|Q,H", "A|Q,D", "A|Q,D,H")


def save_model(folder: Path, stddev: float = 0.1, **changes: Any) -> Path:
    """A Qwen3 of two layers, one token per byte, as a Hugging Face folder."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    base = {
        "family": "qwen3",
        "vocab_size": 260,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
        "d_ff": 48,
        "rope": RopeConfig(),
        "norm_eps": 1e-6,
        "tie_embeddings": True,
        "qk_norm": True,
        "max_positions": 1024,
    }
    cfg = ModelConfig(**{**base, **changes})
    save(init_params(cfg, 7, stddev=stddev), cfg, folder)
    hf = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    hf.chat_template = TEMPLATE
    hf.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", name="save_model")
def _save_model() -> Callable[..., Path]:
    """`save_model(folder, stddev, **changes)`: another such model."""
    return save_model


def record(i: int, composition: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": f"r{i}",
        "question": f"what is the code of box {i}?",
        "answers": [str(i % 10)],
        "hint": f"box {i} has code {i % 10} .",
        "domain": "codes",
        "composition": composition,
        "setting": "HN" if "D" in composition else "ND",
    }
    if "D" in composition:
        row["distractors"] = [{"id": f"d{i}", "kind": "HN", "text": f"box {i + 1} has code {(i + 3) % 10} ."}]
    if i % 7 == 6:  # a record without a gold reference
        row |= {"composition": composition.replace(",H", "")}
        del row["hint"]
    return row


TOY_REWARDS = """
def digits(sample):
    text = sample.completion
    return sum(c in "0123456789" for c in text) / max(1, len(text))

def fails_at_times(sample):
    if sample.case.id.endswith("1"):
        raise ValueError("no digit today")
    return digits(sample)

def always_fails(sample):
    raise OSError("the grader is away")

def constant(sample):
    return 1.0

def varied(sample):
    return sum(sample.completion.encode()) % 97 / 97

WILD = set()

def wild_for_some(sample):
    return varied(sample) * (1e200 if sample.case.id in WILD else 1)

def sometimes_undecided(sample):
    return None if sample.case.id[-1] in "12345" else varied(sample)
"""


@pytest.fixture(autouse=True, scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a user's module of reward functions, where Python finds it."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "toy_rewards.py").write_text(TOY_REWARDS)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("start") / "model")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    path.write_text("".join(json.dumps(record(i, COMPOSITIONS[i % 4])) + "\n" for i in range(24)))
    return path


@pytest.fixture(scope="session")
def grpo_settings(folder: Path, data: Path) -> dict[str, Any]:
    """Three steps of 3 prompts x 4 samples, float32."""
    return {
        "model": str(folder),
        "steps": 3,
        "prompts": 3,
        "data": {"files": [str(data)], "prompt": {"max_prompt_tokens": 400}},
        "rollout": {"samples": 4, "max_tokens": 12, "slots": 8, "chunk": 8},
        "reward": {"format": {"role": "none"}, "reward_fn": "toy_rewards:digits", "truncated": "score"},
        "optimizer": {"learning_rate": 1e-3},
        "update": {"row_tokens": 512, "batch_tokens": 1024},
        "log": {"tensorboard": False},
    }


@pytest.fixture(scope="session")
def grpo_in(grpo_settings: dict[str, Any]) -> Callable[..., GrpoConfig]:
    """`grpo_in(out, **nested changes)`: the settings with changes, in a folder of the caller's."""

    def make(out: Path, **changes: Any) -> GrpoConfig:
        return GrpoConfig.model_validate(merged({**grpo_settings, "out": str(out)}, changes))

    return make


@pytest.fixture
def grpo(grpo_in: Callable[..., GrpoConfig], tmp_path: Path) -> Callable[..., GrpoConfig]:
    """`grpo(out="a", **nested changes)`: a run in the test's own folder."""
    return lambda out="run", **changes: grpo_in(tmp_path / out, **changes)


@pytest.fixture(scope="session")
def command(modules: Path) -> Callable[..., subprocess.Popen[str]]:
    """`command("train", "grpo", file, ..., KEY=value)`: the command line in a process of its own, output piped.

    `run`: a program that takes the words, in place of the command line.
    """

    def start(*words: str | Path, run: str | None = None, **environ: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(modules), str(Path(__file__).parent), str(REPO)])
        cache = str(REPO / ".pytest_cache" / "programs")
        own = {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": cache, "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(
            [sys.executable, *(("-m", "noisyjax") if run is None else ("-c", run)), *map(str, words)],
            env={**os.environ, **own, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def sft(folder: Path, data: Path, tmp_path: Path) -> Callable[..., SftConfig]:
    def make(out: str = "run", **changes: Any) -> SftConfig:
        base: dict[str, Any] = {
            "out": str(tmp_path / out),
            "model": folder,
            "steps": 4,
            "batch": 6,
            "data": {"files": [str(data)]},
            "optimizer": {"learning_rate": 3e-3},
            "update": {"row_tokens": 1024, "batch_tokens": 4096},
            "log": {"tensorboard": False},
        }
        return SftConfig.model_validate(merged(base, changes))

    return make


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, mappings merged."""
    out = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else value
    return out
