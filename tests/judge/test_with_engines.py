"""The judge over an endpoint that fails now and then, and with prompts that a tokenizer renders."""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from noisyjax.chat import ChatTokenizer
from noisyjax.engine.remote import RemoteConfig, RemoteEngine
from noisyjax.engine.server import Chat, FaultPlan, Reply
from noisyjax.engine.server.app import ChatApp, running
from noisyjax.judge import OutcomeItem, judge_outcomes
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
