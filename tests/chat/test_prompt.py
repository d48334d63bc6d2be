import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisyjax.chat import ChatTokenizer, build_prompt, estimate_tokens
from noisyjax.records import LABELS, Label, Message, NoisyPrompt, Part

QUESTION = "Question: what is the answer to 12 + 30? Answer with one word."


def conversation(docs: int, turns: int, question: str = QUESTION) -> list[Message]:
    """System, `turns` chat exchanges (units c0..), then documents (units d0..), a hint and the question."""
    messages = [Message("system", (Part("Be brief.", Label.SYSTEM),))]
    for i in range(turns):
        messages.append(Message("user", (Part(f"tell me about the fox {i}", Label.DISTRACTOR, f"c{i}"),)))
        messages.append(Message("assistant", (Part("the fox is quick", Label.DISTRACTOR, f"c{i}"),)))
    documents = [
        Part(f"Document {i}: {'a tale of two rivers ' * (i + 1)}\n\n", Label.DISTRACTOR, f"d{i}") for i in range(docs)
    ]
    end = (Part("Hint: add them.\n", Label.HINT, "h"), Part(question, Label.QUESTION))
    return [*messages, Message("user", (*documents, *end))]


def build(tokenizer: ChatTokenizer | None, messages: list[Message], **kwargs) -> NoisyPrompt:
    return build_prompt(tokenizer, messages, dataset="x", question_id="q1", setting="RD", **kwargs)


def test_without_a_limit_everything_stays(tokenizer):
    prompt = build(tokenizer, conversation(3, 1), dropped=("d9",), choices=("a", "b"), gold="A")
    assert prompt.units == ("c0", "d0", "d1", "d2")
    assert prompt.dropped == ("d9",)
    assert (prompt.choices, prompt.gold, prompt.over_length) == (("a", "b"), "A", False)
    assert (prompt.dataset, prompt.question_id, prompt.setting) == ("x", "q1", "RD")


def test_units_go_whole_and_from_the_end(tokenizer):
    everything = build(tokenizer, conversation(4, 1))
    prompt = build(tokenizer, conversation(4, 1), limit=len(everything.ids) - 1)
    assert (prompt.units, prompt.dropped) == (("c0", "d0", "d1", "d2"), ("d3",))
    assert len(prompt.ids) < len(everything.ids)
    text = "".join(m.content for m in prompt.messages)
    assert "Document 2" in text
    assert "Document 3" not in text


def test_chat_turns_go_with_their_messages(tokenizers):
    tokenizer = tokenizers["qwen3"]
    bare = build(tokenizer, conversation(0, 0))
    prompt = build(tokenizer, conversation(0, 5), limit=len(bare.ids) + 2)
    assert prompt.messages == bare.messages
    assert prompt.ids.tolist() == bare.ids.tolist()
    assert prompt.dropped == ("c0", "c1", "c2", "c3", "c4")
    one_more = build(tokenizer, conversation(0, 1))
    assert build(tokenizer, conversation(0, 5), limit=len(one_more.ids)).units == ("c0",)


def test_template_tokens_survive_a_tight_limit(tokenizer):
    """One token less than the whole conversation: the first and last ids are the template's, as before."""
    everything = build(tokenizer, conversation(2, 1))
    tight = build(tokenizer, conversation(2, 1), limit=len(everything.ids) - 1)
    assert tight.ids[:4].tolist() == everything.ids[:4].tolist()
    assert tight.ids[-4:].tolist() == everything.ids[-4:].tolist()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    docs=st.integers(0, 6),
    turns=st.integers(0, 3),
    limit=st.integers(1, 400),
    style=st.sampled_from(["qwen3", "llama3", "smol"]),
)
def test_the_question_is_whole_or_the_item_is_flagged(tokenizers, docs, turns, limit, style):
    tokenizer = tokenizers[style]
    prompt = build(tokenizer, conversation(docs, turns), limit=limit)
    text = tokenizer.decode_raw(prompt.ids)
    assert QUESTION in text, "never cut, flagged or not"
    assert "Hint: add them." in text
    assert "Be brief." in text
    assert prompt.over_length is (len(prompt.ids) > limit)
    if prompt.over_length:
        assert prompt.units == ()
    assert [*prompt.units, *prompt.dropped] == [*(f"c{i}" for i in range(turns)), *(f"d{i}" for i in range(docs))]
    if prompt.dropped and not prompt.over_length:
        count = len(prompt.units) + 1
        more = conversation(max(0, count - turns), min(turns, count))
        assert len(build(tokenizer, more).ids) > limit, "one more unit would not have fitted"


def test_documents_around_the_question_are_dropped_too(tokenizers):
    tokenizer = tokenizers["qwen3"]
    message = Message(
        "user",
        (
            Part("Document 0\n", Label.DISTRACTOR, "d0"),
            Part("Document 1\n", Label.EVIDENCE, "e1"),
            Part(QUESTION, Label.QUESTION),
            Part("\nDocument 2", Label.DISTRACTOR, "d2"),
        ),
    )
    full = build(tokenizer, [message])
    prompt = build(tokenizer, [message], limit=len(full.ids) - 1)
    assert prompt.units == ("d0",)
    assert build(tokenizer, [message], limit=5).over_length
    assert "Document 1" in tokenizer.decode_raw(build(tokenizer, [message], limit=5).ids), "evidence is never dropped"


def test_labels_travel_with_the_ids(tokenizers):
    prompt = build(tokenizers["qwen3"], conversation(2, 0), template_kwargs={"enable_thinking": False})
    assert prompt.ids.shape == prompt.labels.shape
    assert {LABELS[x] for x in prompt.labels} == {
        Label.TEMPLATE,
        Label.SYSTEM,
        Label.DISTRACTOR,
        Label.HINT,
        Label.QUESTION,
    }
    assert tokenizers["qwen3"].decode_raw(prompt.ids).endswith("</think>\n\n")


def test_without_a_tokenizer_lengths_are_estimated(tokenizers):
    messages = conversation(4, 1)
    prompt = build(None, messages)
    assert (prompt.ids.size, prompt.labels.size) == (0, 0)
    assert (prompt.ids.dtype, prompt.labels.dtype) == (np.int32, np.uint8)
    assert prompt.messages == tuple(messages)
    cut = build(None, messages, limit=90)
    assert cut.units
    assert cut.dropped
    assert build(None, messages, limit=5).over_length
    counted = build(None, messages, limit=90, count=tokenizers["qwen3"].count_tokens)
    assert len(counted.units) != len(cut.units), "this small vocabulary needs more tokens than the rule thinks"


def test_the_estimate():
    assert estimate_tokens("") == 0
    assert estimate_tokens("a" * 7) == 2
    assert estimate_tokens("a" * 8) == 3
    assert estimate_tokens("日本語") == 3
