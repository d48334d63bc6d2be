"""A tiny model and made-up groups for the training tests."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from noisyjax.models import ModelConfig, RopeConfig
from noisyjax.train.step.rows import Group, Response


@pytest.fixture(scope="module", autouse=True)
def hardly_optimised() -> Iterator[None]:
    """Updates of tiny models are compiled for far longer than they run: here, and in the processes that are started,
    jax leaves most of the optimising out. The engine's tests and those of whole commands run what users run."""
    name = "jax_disable_most_optimizations"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name.upper(), "1")
        jax.config.update(name, True)
        yield
        jax.config.update(name, False)


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., ModelConfig]:
    """`tiny_config(**changes)`: a Qwen3 of two layers and width 24."""

    def make(**changes: Any) -> ModelConfig:
        base = {
            "family": "qwen3",
            "vocab_size": 64,
            "d_model": 24,
            "n_layers": 2,
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 8,
            "d_ff": 40,
            "rope": RopeConfig(),
            "norm_eps": 1e-6,
            "tie_embeddings": True,
            "qk_norm": True,
        }
        return ModelConfig(**{**base, **changes})

    return make


@pytest.fixture(scope="session")
def make_groups() -> Callable[..., list[Group]]:
    """`make_groups(n)`: prompts of 3 to 9 tokens, each with responses of 1 to 7 tokens and different first tokens."""

    def make(n: int = 3, responses: int = 3, seed: int = 0) -> list[Group]:
        rng = np.random.default_rng(seed)

        def response(first: int) -> Response:
            ids = [first, *rng.integers(0, 64, rng.integers(0, 7))]
            size = len(ids)
            return Response(ids, 1 / (n * responses * size), rng.normal(), *rng.normal(size=(3, size)))

        return [
            Group(
                f"q{i}", rng.integers(0, 64, rng.integers(3, 10)), tuple(response(10 * r + i) for r in range(responses))
            )
            for i in range(n)
        ]

    return make
