from hypothesis import given
from hypothesis import strategies as st

from noisyjax.train.rewards.ngrams import gram_set, grams, share_within, words


def test_words():
    assert words("Éva's  CODE:\n7_8, x² 東京abcか 한국어") == [
        *("éva", "s", "code", "7", "8", "x2", "東", "京", "abc", "か", "한국어")
    ]
    assert words(" .,! ") == []


def test_runs():
    assert grams("a b, a b", 2) == [("a", "b"), ("b", "a"), ("a", "b")]
    assert grams("a b", 3) == []
    assert gram_set(["a b", "c d"], 2) == {("a", "b"), ("c", "d")}, "no run crosses from text to text"
    known = gram_set(["a b c"], 2)
    assert share_within(grams("a b x b c", 2), known) == 0.5
    assert share_within(grams("a b x b c", 2), known, but_not=gram_set(["b c"], 2)) == 0.25


@given(text=st.text(max_size=40), n=st.integers(1, 4))
def test_any_text(text, n):
    found = words(text)
    assert len(grams(text, n)) == max(len(found) - n + 1, 0)
    assert all(word == word.casefold() and word.isalnum() for word in found if word.isascii())
    if len(found) >= n:
        assert share_within(grams(text, n), gram_set([text], n)) == 1
