import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.chat import reference
from noisyjax.chat.reference import (
    clip_tokens,
    clip_words,
    has_tag,
    parse_references,
    without_references,
    without_tags,
)
from noisyjax.chat.thoughts import FAMILIES

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
        ("<\nreference\t>a< /\n reference >", ["a"], ["a"]),
        ('<reference id="1">a</reference> <references>b</references> <re ference>', [], []),  # other tags
        (f"{R}a\n\nb  c{E}", ["a\n\nb  c"], ["a\n\nb  c"]),  # what is inside stays as it was written
        (f"{R}a <answer>4</answer> b{E}", ["a <answer>4</answer> b"], ["a <answer>4</answer> b"]),  # closed: no end
        (f"{R}A{E}{R}a{E}", ["A", "a"], ["A", "a"]),  # only exact duplicates are one
        (f"{R}a{R}b{R}c{E}", ["c"], ["a", "b", "c"]),
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


def test_the_thought_marks_of_another_family():
    completion = f"{R}a{E}[/THINK]4 {R}b{E}</think>"
    got = parse_references(completion, opened_by_prompt=True, tags=FAMILIES["mistral"])
    assert [(s.text, s.location) for s in got.spans] == [("a", "think"), ("b", "answer")]
    cut = parse_references(f"{R}a[/THINK]4", opened_by_prompt=True, tags=FAMILIES["mistral"], mode="lenient")
    assert cut.text == "a", "an unclosed span ends with the thought, whatever closes it"


@pytest.mark.parametrize("blank", [" ", "\n", "\t "])
@pytest.mark.parametrize("before", ["<", "</", f"{R}<", f"{R}a<", "<reference"])
def test_endless_blanks_in_a_half_written_tag_take_no_time(before, blank):
    """Read again from every blank, these would take minutes."""
    assert texts(before + blank * 60_000, mode="lenient") in ([], ["<"], ["a<"])


def test_many_unclosed_openers_take_no_time():
    assert parse_references(R * 20_000, mode="lenient").unclosed == 20_000
    assert texts(f"{R}a{E}" * 20_000) == ["a"]


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        (f"4 {R}b{E} and {R}c{E}5", "4  and 5"),
        (f"{R}a{R}b{E}c{E}4", "4"),
        (f"4{E}{R}", f"4{E}{R}"),
        (f"{R}4{R}b{E}", f"{R}4"),
        ("4", "4"),
        (f"{R}{E}", ""),
    ],
)
def test_what_stands_outside_of_the_closed_spans(text, outside):
    assert without_references(text) == outside
    assert has_tag(outside) == (outside not in ("4  and 5", "4", ""))


def test_tags_replaced():
    assert without_tags(f"a{R}b{E}c") == "abc"
    assert without_tags(f"a{R}b< / Reference >c", "\n") == "a\nb\nc"
    assert not has_tag(without_tags(f"a<refer{R}ence>b"))


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
    eight = "".join(f"{R}s{i}{E}" for i in range(8))
    assert not parse_references(eight).truncated
    assert not parse_references(eight + eight).truncated, "what was said before does not count again"
    assert not parse_references(f"{R}{'w ' * reference.MAX_TOKENS}{E}").truncated
    assert parse_references(f"{R}{'w ' * reference.MAX_TOKENS}{E}{R}late{E}").truncated
    long = parse_references(f"{R}{'w ' * 1000}{E}{R}{'v ' * 1000}{E}{R}late{E}")
    assert len(long.text.split()) == reference.MAX_TOKENS
    assert long.truncated
    assert [s.text.split()[0] for s in long.spans] == ["w", "v"]
    unclosed = parse_references(f"{R}{'w ' * 1000}", mode="lenient")
    assert len(unclosed.text.split()) == reference.MAX_UNCLOSED_TOKENS
    assert unclosed.truncated
    closed = parse_references(f"{R}{'w ' * 1000}{E}", mode="lenient")
    assert not closed.truncated, "the lower cap is for unclosed spans"


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
