"""A tiny random model, a tokenizer made on the spot, and engines on them.

Logits differ by several units (weights are drawn wider than usual), so that greedy choices are no coin flips.
Legend: R response tokens, T whole sequence, V vocabulary.
"""

import dataclasses
import functools
import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from noisyjax.chat import ChatTokenizer
from noisyjax.engine import sample
from noisyjax.engine.config import MeshConfig
from noisyjax.engine.local import LocalConfig, LocalEngine
from noisyjax.engine.mesh import open_layout
from noisyjax.models import ModelConfig, RopeConfig, init_params
from noisyjax.models.decoder import Decoder, forward
from noisyjax.models.sharding import SERVING
from noisyjax.records import LABELS, Completion, NoisyPrompt, Request, Sampling

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|return|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB = 288
"""Rows of the model: 256 bytes, four control tokens and 28 rows that stand for nothing."""
PLAIN_STOP = 33
"""A stop id that is an ordinary token (the byte of some letter), as generation configs may have it."""


def save_tokenizer(folder: Path) -> Path:
    """One token per byte. Stop ids of four kinds: eos (also pad), end of turn, generation config, a plain token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    hf = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIALS[0], pad_token=SPECIALS[0])
    hf.chat_template = TEMPLATE
    hf.save_pretrained(folder)
    eos = [tokenizer.token_to_id("<|return|>"), PLAIN_STOP]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return folder


@pytest.fixture(scope="module", autouse=True)
def programs_of_one_module() -> Iterator[None]:
    """Every engine has programs of its own; a module's are dropped with it, or they would add up to gigabytes."""
    yield
    gc.collect()
    jax.clear_caches()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> ChatTokenizer:
    return ChatTokenizer.load(folder)


@pytest.fixture(scope="session")
def cfg() -> ModelConfig:
    """Two layers of width 32; eight heads, which can be cut eightfold, over two kv heads, which cannot."""
    return ModelConfig(
        family="qwen3",
        vocab_size=VOCAB,
        d_model=32,
        n_layers=2,
        n_heads=8,
        n_kv_heads=2,
        head_dim=8,
        d_ff=48,
        rope=RopeConfig(),
        norm_eps=1e-6,
        tie_embeddings=False,
        qk_norm=True,
        max_positions=2048,
    )


MakeModel = Callable[..., Decoder]


@pytest.fixture(scope="session")
def make_model(cfg: ModelConfig) -> MakeModel:
    """`make_model(stacked=, mesh=, change=, **cfg changes)`; `change(params)` may rig the weights."""

    def make(
        stacked: bool = False, mesh: MeshConfig | None = None, change: Callable | None = None, **changes: Any
    ) -> Decoder:
        mine = dataclasses.replace(cfg, **changes)
        layout = open_layout(mesh or MeshConfig(), mine, SERVING)
        where = {"mesh": layout.mesh, "rules": layout.rules} if layout else {}
        params = init_params(mine, 5, stddev=0.3, norm_stddev=0.2, **where)
        return Decoder(mine, params if change is None else change(params), stacked=stacked, layout=layout)

    return make


@pytest.fixture(scope="session")
def make_engine(folder: Path, tokenizer: ChatTokenizer, make_model: MakeModel) -> Callable[..., LocalEngine]:
    """`make_engine(model=, stacked=, **LocalConfig fields)`: the tiny model unless another is handed in."""

    def make(model: Decoder | None = None, stacked: bool = False, **fields: Any) -> LocalEngine:
        config = LocalConfig.model_validate({"model": folder, "slots": 4, "chunk": 8, **fields})
        return LocalEngine(config, model or make_model(stacked, config.mesh), tokenizer)

    return make


def random_ids(length: int, seed: int = 0) -> np.ndarray:
    """Ids of plain bytes; the same seed gives the same beginning at every length."""
    return np.random.default_rng(seed).integers(34, 256, 8192)[:length].astype(np.int32)


@pytest.fixture(scope="session")
def make_request() -> Callable[..., Request]:
    """`make_request(name, ids or length, seed of the ids=, labels=, n=, first_sample=, **Sampling fields)`."""

    def make(name: str, ids: Sequence[int] | int, seed: int = 0, labels: Sequence[int] | None = None, n: int = 1,
             first_sample: int = 0, **how: Any) -> Request:  # fmt: skip
        array = random_ids(ids, seed) if isinstance(ids, int) else np.asarray(ids, np.int32)
        spread = np.arange(len(array)) // 7 % (len(LABELS) - 2) if labels is None else labels
        prompt = NoisyPrompt("toy", name, "ND", (), array, np.asarray(spread, np.uint8))
        how = {"max_tokens": 8, "ignore_eos": True, **how}
        return Request(name, prompt, Sampling(**how), n, first_sample, seed=11, step=0, key=name)

    return make


@pytest.fixture(scope="session")
def answers() -> Callable[[LocalEngine, Iterable[Request]], dict[tuple[str, int], Completion]]:
    """`answers(engine, requests)`: completions by (request id, sample); no key may come twice."""

    def collect(engine: LocalEngine, requests: Iterable[Request]) -> dict[tuple[str, int], Completion]:
        done: dict[tuple[str, int], Completion] = {}
        for completion in engine.generate(requests):
            key = completion.request_id, completion.sample
            assert key not in done
            done[key] = completion
        return done

    return collect


@functools.partial(jax.jit, static_argnums=0)
def _logits(graph: nnx.GraphDef, state: nnx.State, ids_bt: jax.Array) -> jax.Array:
    return forward(nnx.merge(graph, state), ids_bt)


@jax.jit
def _with_noise(logp_rv: jax.Array, rows: sample.Draw, key_2: jax.Array) -> jax.Array:
    key = jax.random.wrap_key_data(key_2, impl="threefry2x32")
    steps = jnp.arange(logp_rv.shape[0])
    noise = jax.vmap(lambda i: jax.random.gumbel(jax.random.fold_in(key, i), logp_rv.shape[1:]))(steps)
    return sample.truncate(logp_rv, rows) + noise


class Oracle:
    """What a sampler should have done, from one full forward pass over prompt and completion: no cache, no slots."""

    NEAR = 1e-4
    """Scores closer than this may be told apart either way by float32."""

    def __init__(self, model: Decoder, valid_v: np.ndarray) -> None:
        self.graph, self.state = nnx.split(model)
        self.valid_v = valid_v

    def logp(self, request: Request, ids: np.ndarray) -> np.ndarray:
        """Log-probabilities [R, V] of the positions that made `ids`, at the request's temperature."""
        whole = np.concatenate([request.prompt.ids, ids])
        padded = np.zeros(next(n for n in (96, 640, 1280, 2048) if n >= len(whole)), np.int32)
        padded[: len(whole)] = whole
        first = len(request.prompt.ids) - 1
        logits = np.asarray(_logits(self.graph, self.state, padded[None]))[0, first : first + len(ids)]
        return np.asarray(sample.distribution(logits, self.valid_v, np.float32([request.sampling.temperature])))

    def scores(self, request: Request, number: int, ids: np.ndarray) -> np.ndarray:
        """What the sampler takes the argmax of [R, V]: truncated log-probabilities, plus noise unless greedy."""
        how, logp = request.sampling, self.logp(request, ids)
        if how.temperature == 0:
            return logp
        rows = sample.Draw.idle(len(ids))
        for row in range(len(ids)):
            rows.set(row, how)
        key_2 = sample.row_key(request.seed, request.step, request.key, number)
        return np.asarray(_with_noise(logp, rows, key_2))

    def check(self, request: Request, done: Completion) -> int:
        """Fail unless each token is the right choice given those before it; the number of near ties, each printed."""
        assert done.ids is not None
        scores, near = self.scores(request, done.sample, done.ids), 0
        for i, token in enumerate(done.ids):
            gap = float(scores[i].max() - scores[i, token])
            if gap > 0:
                print(f"near tie: {request.id} sample {done.sample} token {i}, top-2 gap {gap:.2e}")
                near += 1
            assert gap < self.NEAR, (request.id, done.sample, i, int(token), int(scores[i].argmax()), gap)
        logp = self.logp(request, done.ids)
        if done.logprobs is not None:
            np.testing.assert_allclose(done.logprobs, logp[np.arange(len(done.ids)), done.ids], atol=1e-4)
        if done.entropy is not None:
            p = np.exp(logp.astype(np.float64))
            np.testing.assert_allclose(done.entropy, -(p * np.where(p > 0, logp, 0)).sum(-1), atol=5e-4)
        return near


@pytest.fixture(scope="session")
def oracle() -> Callable[[LocalEngine], Oracle]:
    return lambda engine: Oracle(engine.model, engine.valid_v)
