"""Judges over an endpoint that fails now and then, over the local engine, with prompts that a tokenizer renders."""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from noisyjax.chat import ChatTokenizer
from noisyjax.engine.local import LocalConfig, LocalEngine
from noisyjax.engine.remote import RemoteConfig, RemoteEngine
from noisyjax.engine.server import Chat, FaultPlan, Reply
from noisyjax.engine.server.app import ChatApp, running
from noisyjax.judge import EngineJudge, JudgeConfig, OutcomeItem, RationaleItem, judge_outcomes
from noisyjax.judge.rationale import INSTRUCTION
from noisyjax.models import ModelConfig, RopeConfig, init_params
from noisyjax.models.decoder import Decoder
from noisyjax.records import Completion, Finish, Request

ITEMS = [OutcomeItem(f"Question {i}?", (f"town {i}",), f"town {i if i % 3 else 0}") for i in range(1, 31)]
EXPECTED = [bool(i % 3) for i in range(1, 31)]


class JudgeResponder:
    """Correct when the accepted answer is the candidate, thoughts in a field of their own."""

    model = "judge"

    async def answer(self, chat: Chat) -> list[Reply]:
        prompt = chat.messages[-1].content
        accepted, candidate = re.findall(r"(?:accepted answers\]\n- |candidate answer\]\n)(town \d+)\n", prompt)
        word = "CORRECT" if accepted == candidate else "INCORRECT"
        return [Reply(f"Compared.\nVERDICT: {word}", "stop", 10, 5, reasoning="VERDICT: CORRECT?")]

    def close(self) -> None:
        pass


def test_verdicts_survive_a_faulty_endpoint() -> None:
    app = ChatApp(JudgeResponder(), FaultPlan(rate=0.3, retry_after_s=0.01))
    with (
        running(app) as url,
        closing(RemoteEngine(RemoteConfig(base_url=url, model="judge", backoff_s=0.01, timeout_s=1.0), {})) as engine,
    ):
        verdicts = judge_outcomes(engine, ITEMS)
    assert [v.value for v in verdicts] == EXPECTED
    assert app.counts.faults


@pytest.fixture(scope="module")
def thinking_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """Bytes as tokens; its template ends inside a thought and knows no system role."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    made.add_tokens(["<think>", "</think>"])
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ m.content + '<|end|>' }}{% endfor %}<think>\n"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", chat_template=template).save_pretrained(folder)
    return ChatTokenizer.load(folder)


@pytest.mark.parametrize(
    ("text", "value"), [("hm</think>VERDICT: CORRECT", True), ("VERDICT: CORRECT", None), ("</think>VERDICT: X", None)]
)
def test_a_thought_that_the_template_opened_is_no_verdict(
    text: str, value: bool | None, thinking_tokenizer: ChatTokenizer
) -> None:
    class Engine:
        name = "local"

        def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
            for r in requests:
                assert "Question 1?" in thinking_tokenizer.decode_raw(r.prompt.ids)
                yield Completion(r.id, 0, text, Finish.STOP)

        def close(self) -> None:
            pass

    (verdict,) = judge_outcomes(Engine(), ITEMS[:1], tokenizer=thinking_tokenizer)
    assert verdict.value is value


def test_the_local_engine_answers_all_at_once_behind_one_instruction(thinking_tokenizer: ChatTokenizer) -> None:
    """A random model gives no verdict that could be read; what is shown is how it is asked."""
    rope = RopeConfig(theta=1e4)
    cfg = ModelConfig(
        family="qwen3", vocab_size=260, d_model=32, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=16, d_ff=32,
        rope=rope, norm_eps=1e-6, tie_embeddings=True, qk_norm=True, max_positions=4096,
    )  # fmt: skip
    engine = LocalEngine(
        LocalConfig(model=Path("tiny"), slots=16),
        model=Decoder(cfg, init_params(cfg, 0), stacked=False),
        tokenizer=thinking_tokenizer,
    )
    items = [RationaleItem(f"Question {i}?", f"Gold {i}.", f"Candidate {i}.") for i in range(12)]
    verdicts = EngineJudge(engine, thinking_tokenizer, config=JudgeConfig(max_tokens=16)).rationales(items)
    assert [v.value for v in verdicts] == [None] * 12
    assert {v.reason for v in verdicts} <= {"the judge was cut before it had finished", "the thought was never closed"}
    stats = engine.stats
    assert stats.completion_tokens <= 2 * 12 * 16
    # Two rounds; in each the instruction is computed once, and what is left of an item's prompt is its own.
    shared = len(INSTRUCTION.encode()) // 64 * 64
    assert stats.prompt_tokens - stats.prefilled_tokens >= 2 * 11 * shared
