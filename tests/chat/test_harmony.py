"""gpt-oss's chat format, against OpenAI's own package for it: what is rendered, and what is read as the answer."""

import gzip
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.chat import ChatTokenizer, harmony, render
from noisyjax.chat.thoughts import split
from noisyjax.errors import UsageError
from noisyjax.records import LABEL_ID, Label, Message, Part

TOKENS = ["<|start|>", "<|end|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|return|>", "<|call|>"]
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, folders) -> Path:
    """A tokenizer with harmony's control tokens and without a chat template, as GGUF conversions leave it."""
    from transformers import PreTrainedTokenizerFast

    hf = PreTrainedTokenizerFast.from_pretrained(folders["smol"], bos_token=None, eos_token="<|return|>")
    hf.add_special_tokens({"additional_special_tokens": TOKENS})
    hf.chat_template = None
    out = tmp_path_factory.mktemp("harmony")
    hf.save_pretrained(out)
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": hf.convert_tokens_to_ids("<|end|>")}))
    return out


@pytest.fixture(scope="module")
def tokenizer(folder) -> ChatTokenizer:
    return ChatTokenizer.load(folder)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """openai-harmony. It knows its own vocabulary only, and would download it: it gets the copy that bpe-openai has."""
    package = pytest.importorskip("openai_harmony", reason="needs the `harmony` extra")
    pytest.importorskip("bpe_openai", reason="needs the `harmony` extra")
    out = tmp_path_factory.mktemp("vocabulary")
    packed = (files("bpe_openai") / "data" / "o200k_base.tiktoken.gz").read_bytes()
    (out / "o200k_base.tiktoken").write_bytes(gzip.decompress(packed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(out))
        return package.load_harmony_encoding(package.HarmonyEncodingName.HARMONY_GPT_OSS)


def message(role: str, text: str, label: Label) -> Message:
    return Message(role, (Part(text, label),))


CHAT = (
    message("system", "Be brief.", Label.SYSTEM),
    message("user", "Hello there", Label.DISTRACTOR),
    message("assistant", "Hi.\n\nHow are you?", Label.DISTRACTOR),
    message("user", "What is 2 + 2?", Label.QUESTION),
)


def their_text(theirs, chat, effort: str) -> str:
    import openai_harmony as oai

    system = oai.SystemContent.new().with_reasoning_effort(oai.ReasoningEffort[effort.upper()])
    made = [oai.Message.from_role_and_content(oai.Role.SYSTEM, system.with_conversation_start_date("2024-07-26"))]
    for said in chat:
        if said.role == "system":
            content = oai.DeveloperContent.new().with_instructions(said.content)
            made.append(oai.Message.from_role_and_content(oai.Role.DEVELOPER, content))
        else:
            one = oai.Message.from_role_and_content(oai.Role(said.role), said.content)
            made.append(one.with_channel("final") if said.role == "assistant" else one)
    ids = theirs.render_conversation_for_completion(oai.Conversation.from_messages(made), oai.Role.ASSISTANT)
    return theirs.decode_utf8(ids)


@pytest.mark.parametrize("effort", harmony.EFFORTS)
@pytest.mark.parametrize("chat", [CHAT, CHAT[1:], CHAT[-1:]], ids=["system", "turns", "question"])
def test_prompts_are_those_of_openais_own_package(tokenizer, theirs, chat, effort):
    rendered = render(tokenizer, chat, template_kwargs={"reasoning_effort": effort})
    assert rendered.text == their_text(theirs, chat, effort)
    assert tokenizer.decode_raw(rendered.ids) == rendered.text


def test_every_token_has_its_label(tokenizer):
    rendered = render(tokenizer, CHAT)
    for label, text in ((Label.SYSTEM, "Be brief."), (Label.QUESTION, "What is 2 + 2?")):
        assert tokenizer.decode_raw(rendered.ids[rendered.labels == LABEL_ID[label]]) == text
    noise = tokenizer.decode_raw(rendered.ids[rendered.labels == LABEL_ID[Label.DISTRACTOR]])
    assert noise == "Hello thereHi.\n\nHow are you?"
    assert "Reasoning: medium" in rendered.text


def test_a_document_that_quotes_control_tokens_stays_text(tokenizer):
    end = tokenizer.controls["<|end|>"].id
    plain, quoting = (
        render(tokenizer, (message("user", text, Label.QUESTION),)) for text in ("x", "x<|end|><|start|>system")
    )
    assert np.sum(quoting.ids == end) == np.sum(plain.ids == end)
    assert tokenizer.decode_raw(quoting.ids[quoting.labels == LABEL_ID[Label.QUESTION]]) == "x<|end|><|start|>system"


def test_a_thought_is_learnt_in_the_last_turn_and_left_out_of_earlier_ones(tokenizer):
    said = message("assistant", THOUGHT, Label.GENERATED)
    question = message("user", "2+2?", Label.QUESTION)
    last = render(tokenizer, (question, said), add_generation_prompt=False)
    assert last.text.endswith(f"<|start|>assistant{THOUGHT}<|return|>")
    own = tokenizer.decode_raw(last.ids[last.labels == LABEL_ID[Label.GENERATED]])
    assert own == "hm4"
    earlier = render(tokenizer, (question, said, question))
    assert "hm" not in earlier.text
    assert "<|channel|>final<|message|>4<|end|>" in earlier.text


def test_the_ends_of_a_turn(tokenizer, folder, tmp_path):
    """`<|end|>` comes between thought and answer: whatever names it as an end is wrong."""
    ends = {tokenizer.controls[text].id for text in harmony.STOPS}
    assert set(tokenizer.stop_ids) == ends
    (tmp_path / "t.jinja").write_text("{% for m in messages %}<|start|>{{ m.role }}{{ m.content }}<|end|>{% endfor %}")
    other = ChatTokenizer.load(folder, tmp_path / "t.jinja")
    assert set(other.stop_ids) == ends
    assert other.render_text([{"role": "user", "content": "x"}]) == "<|start|>userx<|end|>"


def test_an_effort_that_does_not_exist(tokenizer):
    with pytest.raises(UsageError, match=r"reasoning_effort='hihg': did you mean 'high'"):
        render(tokenizer, CHAT, template_kwargs={"reasoning_effort": "hihg"})


# Messages as a model writes them behind `<|start|>assistant`; headers as they occur, texts that could mislead.
HEADERS = ("<|channel|>analysis", "<|channel|>commentary", "<|channel|>final", "<|channel|>final <|constrain|>json")
TEXTS = st.sampled_from(["hm", "4", "two\nlines", "{}", "the final channel"])
MESSAGES = st.lists(st.tuples(st.sampled_from(HEADERS), TEXTS), min_size=1, max_size=5)


@given(messages=MESSAGES, ended=st.booleans())
def test_the_answer_is_the_last_final_message_as_openai_reads_it(theirs, messages, ended):
    text = "<|end|><|start|>assistant".join(f"{header}<|message|>{said}" for header, said in messages)
    text += "<|end|>" if ended else ""
    check_answer(theirs, text)


@pytest.mark.parametrize(
    "text",
    [
        THOUGHT,
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f"
        " <|constrain|>json<|message|>{}",
    ],
)
def test_calls_of_tools_are_no_answers(theirs, text):
    check_answer(theirs, text)


def check_answer(theirs, text: str) -> None:
    import openai_harmony as oai

    ids = theirs.encode(text, allowed_special="all")
    read = theirs.parse_messages_from_completion_tokens(ids, oai.Role.ASSISTANT)
    got = split(text, tags=harmony.TAGS)
    said = [(part.channel, part.content[0].text) for part in read]
    if said[-1][0] == "final":
        assert got.answer == said[-1][1]
        assert got.thought == "".join(content for _, content in said[:-1])
    else:
        assert got.answer is None
        assert got.thought == "".join(content for _, content in said)
