import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.chat.thoughts import FAMILIES, ThoughtState, family_of, opens_thought, split, split_ids

NONE, CLOSED, OPEN = ThoughtState.NONE, ThoughtState.CLOSED, ThoughtState.OPEN

TABLE = [
    # the shapes of the module's table
    ("pair", "<think>a</think>b", False, "a", "b", CLOSED),
    ("pair with lines", "<think>\na\n\nb\n</think>\n\n4", False, "\na\n\nb\n", "\n\n4", CLOSED),
    ("close only", "2+2.</think>4", True, "2+2.", "4", CLOSED),
    ("close only, opener unknown", "2+2.</think>4", False, "2+2.", "4", CLOSED),
    ("open only", "<think>The answer is B", False, "The answer is B", None, OPEN),
    ("cut, opener in prompt", "The answer is B", True, "The answer is B", None, OPEN),
    ("cut and empty", "", True, "", None, OPEN),
    ("two blocks", "<think>a</think>b<think>c</think>d", False, "abc", "d", CLOSED),
    ("second block cut", "<think>a</think>b\n<think>c", False, "ab\nc", None, OPEN),
    ("nested", "<think>a<think>b</think>c</think>d", False, "abc", "d", CLOSED),
    ("opener repeated", "<think>a <think> tag.</think>4", False, "a  tag.", "4", CLOSED),
    ("opener in prompt and again", "<think>a</think>4", True, "a", "4", CLOSED),
    ("opener mentioned", "<think>a</think>the <think> tag", False, "a", "the <think> tag", CLOSED),
    ("closed twice", "a</think>b</think>c", True, "ab", "c", CLOSED),
    ("nothing after the close", "<think>a</think>", False, "a", "", CLOSED),
    ("empty thought", "<think>\n\n</think>\n\n4", False, "\n\n", "\n\n4", CLOSED),
    ("none", "b", False, "", "b", NONE),
    ("empty", "", False, "", "", NONE),
    # tags that are quoted
    ("inline code", "write `</think>` here", False, "", "write `</think>` here", NONE),
    ("double ticks", "write `` </think> ` `` here", False, "", "write `` </think> ` `` here", NONE),
    (
        "code fence",
        "so:\n```html\n<think>x</think>\n```\nend",
        False,
        "",
        "so:\n```html\n<think>x</think>\n```\nend",
        NONE,
    ),
    ("tilde fence", "~~~\n</think>\n~~~", False, "", "~~~\n</think>\n~~~", NONE),
    ("fence in the answer", "a</think>b\n```\n</think>\n```\nc", True, "a", "b\n```\n</think>\n```\nc", CLOSED),
    ("fence left open in a thought", "<think>```py\nx = 1\n</think>4", False, "```py\nx = 1\n", "4", CLOSED),
    ("whole fence in a thought hides no close", "<think>\n```\n</think>\n4", False, "\n```\n", "\n4", CLOSED),
    ("tick without its partner", "it`s</think>4", False, "it`s", "4", CLOSED),
    ("fence never closed", "```\n</think>4", False, "```\n", "4", CLOSED),
]


@pytest.mark.parametrize(
    ("text", "opened", "thought", "answer", "state"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE]
)
def test_table(text, opened, thought, answer, state):
    got = split(text, opened)
    assert (got.thought, got.answer, got.state) == (thought, answer, state)
    assert got.closed is (state is not OPEN)


def test_a_cut_thought_has_no_answer_even_if_it_names_one():
    """Grading the words of a thought that was cut is the fault; an empty answer would be another."""
    got = split("<think>So the answer is \\boxed{7}", False)
    assert got.answer is None


SHARDS = st.lists(
    st.sampled_from(["<think>", "</think>", "a", "B ", "\n", "```\n", "`", "~~~\n", "</thi", "nk>", "<think", "é"]),
    max_size=14,
).map("".join)


@given(text=SHARDS, opened=st.booleans())
def test_nothing_is_lost_but_tags(text, opened):
    got = split(text, opened)
    answer = got.answer or ""
    assert text.endswith(answer)
    assert got.thought == re.sub("</?think>", "", text[: len(text) - len(answer)])


@given(text=SHARDS, opened=st.booleans())
def test_an_answer_is_an_answer(text, opened):
    """Splitting again changes nothing: what is left holds no close that counts."""
    got = split(text, opened)
    if got.answer is not None:
        assert split(got.answer, False).answer == got.answer
        assert split(got.answer, False).thought == ""


@given(text=SHARDS)
def test_a_thought_put_round_any_text_is_taken_off(text):
    """A real close always ends the thought, whatever fences the thought left open."""
    got = split(f"<think>{text}</think>\nyes", False)
    assert (got.answer, got.state) == ("\nyes", CLOSED)


@given(thought=st.text("ab \n", max_size=9), answer=st.text("cd \n", max_size=9))
def test_opener_in_prompt_or_in_completion_give_the_same(thought, answer):
    inside = split(f"<think>{thought}</think>{answer}", False)
    ahead = split(f"{thought}</think>{answer}", True)
    assert inside == ahead
    assert (inside.thought, inside.answer) == (thought, answer)


def test_families():
    mistral = FAMILIES["mistral"]
    assert split("[THINK]a[/THINK]b", False, mistral).answer == "b"
    assert split("[THINK]a", False, mistral).state is OPEN
    assert split("<think>a</think>b", False, mistral).state is NONE
    assert split("<seed:think>a</seed:think>b", False, FAMILIES["seed"]).thought == "a"
    assert family_of({"<|im_end|>", "<think>", "</think>"}) == "think"
    assert family_of({"[THINK]", "[/THINK]"}) == "mistral"
    assert family_of({"<|im_end|>"}) == "think"


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4", "hm", "4"),
        ("<|channel|>final<|message|>4", "", "4"),
        ("<|channel|>analysis<|message|>hm", "hm", None),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>x",
            "hmx",
            None,
        ),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{}",
            "hm",
            "{}",
        ),
        ("<|channel|>final<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b", "ab", None),
        ("<|channel|>final<|message|>a<|end|><|start|>assistant<|channel|>fin", "", "a"),
        ("a", "", "a"),
    ],
)
def test_harmony_channels(text, thought, answer):
    got = split(text, False, FAMILIES["harmony"])
    assert (got.thought, got.answer) == (thought, answer)


@pytest.mark.parametrize(
    ("ids", "opened", "index", "state"),
    [
        ([7, 1, 8, 9], False, 2, CLOSED),  # 0 opens, 1 closes
        ([0, 7, 1, 8], False, 3, CLOSED),
        ([7, 1, 8], True, 2, CLOSED),
        ([0, 7], False, 2, OPEN),
        ([7, 8], True, 2, OPEN),
        ([0, 7, 1, 8, 0, 9, 1, 5], False, 7, CLOSED),
        ([0, 7, 1, 8, 0, 9], False, 6, OPEN),
        ([0, 7, 0, 8, 1, 9, 1, 5], False, 7, CLOSED),
        ([7, 8], False, 0, NONE),
        ([], False, 0, NONE),
        ([0, 7, 1], False, 3, CLOSED),
    ],
)
def test_split_ids(ids, opened, index, state):
    assert split_ids(ids, {0}, {1}, opened) == (index, state)


@given(words=st.lists(st.sampled_from(["<think>", "</think>", "a", "b"]), max_size=10), opened=st.booleans())
def test_ids_and_text_agree(words, opened):
    """Where tags are control tokens and nothing is quoted, both give the same answer."""
    names = {"<think>": 0, "</think>": 1, "a": 2, "b": 3}
    index, state = split_ids([names[w] for w in words], {0}, {1}, opened)
    got = split("\n".join(words), opened)
    assert got.state is state
    if got.answer is not None:
        assert got.answer.split() == words[index:]


def test_opens_thought():
    assert opens_thought("<|im_start|>assistant\n<think>\n")
    assert not opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_thought("what does <think> mean?")
