"""The work that all trainers do: a random Qwen3 of four layers, one character per token, a reward that can be learned.

Imported by programs of three environments: only numpy and the standard library here.
"""

import os
from collections.abc import Sequence

import numpy as np

LAYERS, WIDTH, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4, 256, 768, 8, 4, 32, 2048
PAD, EOS, BOS = 0, 1, 2
SAMPLES, PROMPTS = 8, 4
PROMPT_TOKENS = int(os.environ.get("PROMPT_TOKENS", "128"))
NEW_TOKENS = int(os.environ.get("NEW_TOKENS", "128"))
STEPS = int(os.environ.get("STEPS", "11"))
WARM = 2
"""First steps that are not timed: they compile."""
BETA, LEARNING_RATE = 0.04, 3e-4


def letters() -> list[str]:
    """Token id -> its character; surrogates cannot be characters, but none is below 2,048."""
    return [chr(i) for i in range(VOCABULARY)]


def prompts(step: int) -> list[str]:
    """The prompts of one step, PROMPT_TOKENS characters each."""
    rng = np.random.default_rng(step)
    return ["".join(map(chr, rng.integers(33, VOCABULARY - 48, PROMPT_TOKENS))) for _ in range(PROMPTS)]


def reward(completion: str) -> float:
    """Share of the characters from the lower half of the vocabulary: about 0.5 at first."""
    return float(np.mean([ord(c) < VOCABULARY // 2 for c in completion])) if completion else 0.0


def say(name: str, seconds: Sequence[float]) -> None:
    """One line that the benchmark reads: the median of the warm steps."""
    warm = list(seconds)[WARM:]
    print(f"RESULT {name} {np.median(warm):.4f} s/step over {len(warm)} steps", flush=True)
