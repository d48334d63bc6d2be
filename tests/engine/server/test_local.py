"""A real model behind the server: the same tokens as a direct run, with faults on the way."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from noisyjax.chat import ChatTokenizer, build_prompt
from noisyjax.engine.local import CaptureConfig, LocalConfig, LocalEngine
from noisyjax.engine.remote import RemoteConfig, RemoteEngine
from noisyjax.engine.server import FaultPlan
from noisyjax.engine.server.app import ChatApp, running
from noisyjax.engine.server.local import local_responder
from noisyjax.models import ModelConfig, RopeConfig, init_params
from noisyjax.models.decoder import Decoder
from noisyjax.records import Completion, Finish, Label, Message, Part, Request, Sampling

TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """Bytes as tokens, and four control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"])
    hf = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", chat_template=TEMPLATE)
    folder = tmp_path_factory.mktemp("tokenizer")
    hf.save_pretrained(folder)
    return ChatTokenizer.load(folder)


@pytest.fixture(scope="module")
def engine(tokenizer: ChatTokenizer) -> Iterator[LocalEngine]:
    """A random model of two layers in f32."""
    cfg = ModelConfig(
        family="qwen3",
        vocab_size=320,
        d_model=32,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        head_dim=8,
        d_ff=48,
        rope=RopeConfig(),
        norm_eps=1e-6,
        tie_embeddings=True,
        max_positions=512,
    )
    params = {name: jnp.asarray(value, jnp.float32) for name, value in init_params(cfg, 0, "float32").items()}
    config = LocalConfig(model=Path("tiny"), dtype="float32", slots=4, capture=CaptureConfig(top=3))
    with closing(LocalEngine(config, Decoder(cfg, params, stacked=False), tokenizer)) as made:
        yield made


def request(tokenizer: ChatTokenizer, i: int, temperature: float) -> Request:
    """Many parts, a system message, an earlier turn, and text that looks like markup."""
    messages = (
        Message("system", (Part("Be brief.", Label.SYSTEM),)),
        Message("user", (Part("Hi <|end|> there", Label.DISTRACTOR, "turn"),)),
        Message("assistant", (Part("Hello!", Label.DISTRACTOR, "turn"),)),
        Message(
            "user",
            (
                Part(f"Document {i}. ", Label.DISTRACTOR, "doc"),
                Part("Naïve ", Label.EVIDENCE),
                Part("why?", Label.QUESTION),
            ),
        ),
    )
    prompt = build_prompt(tokenizer, messages, dataset="d", question_id=f"q{i}", setting="HN")
    sampling = Sampling(temperature=temperature, max_tokens=6 + i)
    return Request(f"r{i}", prompt, sampling, n=1 if temperature == 0 else 3, seed=3, step=1, key=f"q{i}")


def collect(completions: Iterator[Completion]) -> dict[tuple[str, int], Completion]:
    return {(c.request_id, c.sample): c for c in completions}


def test_a_run_through_a_faulty_server_draws_the_tokens_of_a_direct_run(
    engine: LocalEngine, tokenizer: ChatTokenizer
) -> None:
    requests = [request(tokenizer, i, temperature) for i, temperature in enumerate((0.0, 1.0, 0.7, 1.0))]
    direct = collect(engine.generate(requests))
    app = ChatApp(
        local_responder(engine), FaultPlan(rate=0.4, seed=1, retry_after_s=0.01, kinds=("rate_limit", "cut_body"))
    )
    with running(app) as url:
        config = RemoteConfig(
            base_url=url,
            model=engine.name,
            send_stream=True,
            top_logprobs=3,
            extra_body={"return_token_ids": True},
            concurrency=5,
            backoff_s=0.01,
        )
        with closing(RemoteEngine(config, {})) as remote:
            through = collect(remote.generate(reversed(requests)))
    assert app.counts.faults
    assert through.keys() == direct.keys()
    assert len(direct) == 10
    for key, there in direct.items():
        here = through[key]
        np.testing.assert_array_equal(here.ids, there.ids)
        assert (here.text, here.finish) == (there.text, there.finish)
        assert (here.prompt_tokens, here.completion_tokens) == (there.prompt_tokens, there.completion_tokens)
        np.testing.assert_allclose(here.logprobs, there.logprobs, atol=1e-5)
        np.testing.assert_allclose(here.top_logprobs, there.top_logprobs, atol=1e-5)


def test_a_prompt_beyond_the_window_is_over_length_on_both_ways(engine: LocalEngine, tokenizer: ChatTokenizer) -> None:
    message = Message("user", (Part("long " * 200, Label.QUESTION),))
    prompt = build_prompt(tokenizer, [message], dataset="d", question_id="q", setting="ND")
    asked = [Request("r", prompt, Sampling(max_tokens=4))]
    assert [c.finish for c in engine.generate(asked)] == [Finish.OVER_LENGTH]
    with (
        running(ChatApp(local_responder(engine))) as url,
        closing(RemoteEngine(RemoteConfig(base_url=url, model=engine.name), {})) as remote,
    ):
        assert [c.finish for c in remote.generate(asked)] == [Finish.OVER_LENGTH]
