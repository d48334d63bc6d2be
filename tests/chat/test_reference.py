import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.chat import reference
from noisyjax.chat.reference import clip_tokens, clip_words, parse_references

R, E = "<reference>", "</reference>"
INSTRUCTION = f"Write what helps inside {R} and {E} tags, e.g. {R}helpful information{E}, before you answer."


def texts(completion: str, **how) -> list[str]:
    return [s.text for s in parse_references(completion, **how).spans]


@pytest.mark.parametrize(
    ("completion", "strict", "lenient"),
    [
        (f"{R}a{E}", ["a"], ["a"]),
        (
            "<reference>a</reference> x <Reference >b</ REFERENCE>< reference >c< / reference >",
            ["a", "b", "c"],
            ["a", "b", "c"],
        ),
        (f"{R}a{R}b{E}c{E}", ["abc"], ["abc"]),
        (f"a{E} x {R}b{E}", ["b"], ["b"]),
        (f"{R}a", [], ["a"]),
        (f"{R}a {R}b{E}", ["b"], ["a", "b"]),
        (f"{R}a {R}b{E} {R}c{E} x", ["b", "c"], ["a", "b", "c"]),
        (f"{R}a{E} {R} a\n{E}", ["a"], ["a"]),
        (f"{R} \n{E}{R}{E}", [], []),
        (f"{R}a<answer>4</answer>", [], ["a"]),
        (f"<think>{R}a</think>4 {R}b{E}", ["b"], ["a", "b"]),
        (f"<think>{R}a</think>4{E}", [], ["a"]),  # a span does not cross from thought to answer
        (f"{R}a<refer{R}ence>b{E}{E}", ["ab"], ["ab"]),  # a tag that the removal of another one makes
        ("no tags", [], []),
        ("", [], []),
        (f"{E}{E}{R}", [], []),
    ],
)
def test_table(completion, strict, lenient):
    assert texts(completion) == strict
    assert texts(completion, mode="lenient") == lenient


def test_location_scope_and_a_missing_think_opener():
    completion = f"hm {R}a{E}</think>so {R}b{E}"
    both = parse_references(completion, opened_by_prompt=True)
    assert [(s.text, s.location, s.closed) for s in both.spans] == [("a", "think", True), ("b", "answer", True)]
    assert both.text == "a\nb"
    assert texts(completion, opened_by_prompt=True, scope="think") == ["a"]
    assert texts(completion, opened_by_prompt=True, scope="answer") == ["b"]
    assert texts(f"{R}a{E} and on", opened_by_prompt=True, scope="think") == ["a"], "a cut thought is thought"


def test_absent_is_not_empty():
    none = parse_references("4")
    assert none.text is None
    assert (none.unclosed, none.truncated) == (0, False)
    assert parse_references(f"{R}a", mode="strict").unclosed == 1


@pytest.mark.parametrize(
    "echo",
    [
        f"I must use {R}helpful information{E} first.",
        f"The user says: {INSTRUCTION}",
        f"```\n{R}helpful information{E}\n```",
        f"inside {R} and {E} tags",
    ],
)
def test_an_echo_of_the_instruction_is_no_reference(echo):
    assert texts(echo, instruction=INSTRUCTION) == []
    assert texts(f"{echo}\n{R}Mara crossed.{E}", instruction=INSTRUCTION) == ["Mara crossed."]
    assert texts(f"{echo}\n{R}Mara crossed.{E}") != ["Mara crossed."], "it is the instruction that tells them apart"


def test_caps():
    many = "".join(f"{R}s{i}{E}" for i in range(9))
    got = parse_references(many)
    assert len(got.spans) == reference.MAX_SPANS
    assert got.truncated
    assert not parse_references("".join(f"{R}s{i}{E}" for i in range(8))).truncated
    long = parse_references(f"{R}{'w ' * 1000}{E}{R}{'v ' * 1000}{E}{R}late{E}")
    assert len(long.text.split()) == reference.MAX_TOKENS
    assert long.truncated
    assert [s.text.split()[0] for s in long.spans] == ["w", "v"]
    unclosed = parse_references(f"{R}{'w ' * 1000}", mode="lenient")
    assert len(unclosed.text.split()) == reference.MAX_UNCLOSED_TOKENS
    assert unclosed.truncated


def test_tokens_of_a_tokenizer(tokenizers):
    clip = clip_tokens(tokenizers["qwen3"])
    text = "the quick brown fox jumps over the lazy dog, 日本 " * 400
    got = parse_references(f"{R}{text}{E}", clip=clip)
    assert got.truncated
    assert tokenizers["qwen3"].count_tokens(got.text) <= reference.MAX_TOKENS
    assert text.startswith(got.text)
    assert clip("fox", 0) == ""
    assert clip_words("a  b c", 2) == "a  b"
    assert clip_words("a", 0) == ""


SHARDS = st.lists(
    st.sampled_from([R, E, "<think>", "</think>", "<answer>", "a", " ", "\n", "B", "<refer", "ence>"]), max_size=16
)


@given(
    words=SHARDS,
    mode=st.sampled_from(["strict", "lenient"]),
    scope=st.sampled_from(["think", "answer", "both"]),
    opened=st.booleans(),
)
def test_any_text_is_parsed(words, mode, scope, opened):
    completion = "".join(words)
    got = parse_references(completion, mode=mode, scope=scope, opened_by_prompt=opened)
    for span in got.spans:
        assert span.text
        assert span.text == span.text.strip()
        assert not reference._TAG.search(span.text)
        assert scope in (span.location, "both")
        assert span.closed or mode == "lenient"
    assert len({s.text for s in got.spans}) == len(got.spans) <= reference.MAX_SPANS


@given(spans=st.lists(st.text("ab c\n", max_size=6), max_size=7), between=st.text("xy z", max_size=4))
def test_what_is_written_is_read(spans, between):
    completion = between.join(f"{R}{s}{E}" for s in spans)
    assert texts(completion) == list(dict.fromkeys(t for s in spans if (t := s.strip())))
