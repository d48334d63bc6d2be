import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisyjax.chat.stops import StopFinder


def run(tokenizer, text: str, stop, opened=False):
    """Feed a text's tokens one by one: (finder, ids, tokens kept)."""
    ids = tokenizer.encode_plain(text).tolist()
    finder, kept = StopFinder(tokenizer, stop, opened), None
    for token in ids:
        kept = finder.push([token])
        if kept is not None:
            break
    return finder, ids, kept


def test_stop_is_found_across_tokens(tokenizer):
    finder, ids, kept = run(tokenizer, "the fox jumps over. Question: what next", ("Question:", "zzz"))
    assert finder.text == "the fox jumps over. "
    assert finder.finish() == "the fox jumps over. "
    assert 0 < kept < len(ids)
    assert "Question:" in tokenizer.decode(ids[:kept])
    assert "Question:" not in tokenizer.decode(ids[: kept - 1])


def test_the_earliest_stop_binds_and_nothing_after_it_is_read(tokenizers):
    tokenizer = tokenizers["qwen3"]
    ids = tokenizer.encode_plain("one. two. three").tolist()
    finder = StopFinder(tokenizer, ("three", "two"))
    kept = finder.push(ids)
    assert finder.text == "one. "
    assert finder.push([5, 6]) == kept


def test_no_stop(tokenizer):
    finder, _, kept = run(tokenizer, "the quick brown fox", ("zzz", ""))
    assert kept is None
    assert not finder.stopped
    assert finder.finish() == "the quick brown fox"
    assert run(tokenizer, "the fox", ())[2] is None


def test_a_stop_inside_a_thought_does_not_count(tokenizers):
    tokenizer = tokenizers["qwen3"]
    finder, _, kept = run(tokenizer, "<think>a\n\nb</think>4\n\nmore", ("\n\n",))
    assert kept is not None
    assert finder.text == "<think>a\n\nb</think>4"
    finder, _, kept = run(tokenizer, "a\n\nb</think>4\n\nmore", ("\n\n",), opened=True)
    assert finder.text == "a\n\nb</think>4"
    assert run(tokenizer, "a\n\nb", ("\n\n",), opened=True)[2] is None


def test_half_characters_are_held_back_and_never_lost(tokenizers):
    tokenizer = tokenizers["qwen3"]
    ids = tokenizer.encode_plain("a日é").tolist()
    finder = StopFinder(tokenizer, ())
    seen = []
    for token in ids:
        finder.push([token])
        seen.append(finder.text)
    assert "�" not in "".join(seen)
    assert seen[-1] == "a日é"
    finder = StopFinder(tokenizer, ())
    finder.push(ids[:2])  # cut inside the second character
    assert finder.text == "a"
    assert finder.finish() == tokenizer.decode(ids[:2])


def test_bytes_that_never_make_a_character_do_not_stall(tokenizers):
    tokenizer = tokenizers["qwen3"]
    lone = tokenizer.encode_plain("日").tolist()[1]  # a continuation byte
    finder = StopFinder(tokenizer, ("fox",))
    finder.push([lone] * 40)
    assert finder.push(tokenizer.encode_plain(" the fox jumps").tolist()) is not None


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.sampled_from(["the", " fox", "日", "é", "\n", "12", "'s ", "END"]), max_size=12),
    step=st.integers(1, 5),
)
def test_streamed_text_is_the_decoded_text(tokenizers, words, step):
    """For every way of cutting the stream, and equal to cutting the whole text."""
    text = "".join(words)
    for style in ("qwen3", "llama3", "smol"):
        tokenizer = tokenizers[style]
        ids = tokenizer.encode_plain(text).tolist()
        finder = StopFinder(tokenizer, ("END", "12\n"))
        for i in range(0, len(ids), step):
            finder.push(ids[i : i + step])
        assert finder.finish() == re.split("END|12\n", text, maxsplit=1)[0]
