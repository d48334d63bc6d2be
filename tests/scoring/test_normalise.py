"""Normal forms of short answers: SQuAD's, the stricter containment, MultiHop-RAG's official overlap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.scoring.multihop import official_answer, official_overlap
from noisyjax.scoring.normalise import answer_tokens, em_or_contains, same_text, squad_em, squad_f1, squad_normalise


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Hateful Eight!", "hateful eight"),
        ("A.P.J.", "apj"),
        ("an apple a day", "apple day"),
        ("The", ""),
        ("theatre", "theatre"),
    ],
)
def test_squad_normalise(text, normal):
    assert squad_normalise(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "f1"),
    [
        ("the Port Jackson", ["Sydney Harbour", "Port Jackson"], 1, 1),
        ("Sydney", ["Sydney Harbour"], 0, 2 / 3),
        ("Harbour of Sydney", ["Sydney Harbour"], 0, 0.8),
        ("to be to", ["to to"], 0, 0.8),
        ("Rome", ["Paris"], 0, 0),
        ("the", ["a"], 1, 1),  # both empty
        ("the", ["Paris"], 0, 0),  # one empty
        ("Paris", ["..."], 0, 0),
        ("Paris", [], 0, 0),
    ],
)
def test_squad_em_and_f1(prediction, golds, em, f1):
    assert squad_em(prediction, golds) == em
    assert squad_f1(prediction, golds) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("prediction", "gold", "right"),
    [
        ("Yes", "yes", True),
        ("no.", "No", True),
        ("Yes, both agree", "Yes", True),
        ("Yes and no", "Yes", False),
        ("There is no doubt", "no", False),
        ("Insufficient Information", "Insufficient information.", True),
        ("The provided information is insufficient to say.", "Insufficient information.", True),
        ("Not enough information", "Insufficient information.", True),
        ("Yes", "Insufficient information.", False),
        ("Sportsbooks", "Sportsbooks.", True),
        ("It was the Blue Whale.", "Blue Whale", True),
        ("It was not Ann but Bob", "Ann", False),
        ("It was not Ann but Bob", "Bob", True),
        ("It isn't consistent", "Consistent", False),
        ("Inconsistent", "Consistent", False),
        ("Blue and Whale", "Blue Whale", False),
        ("14", "4", False),
        ("4 players", "4", True),
        ("4 of 14 players", "4", False),
        ("seven", "7", True),
        ("Seven", "seven", True),
        ("7,874 people", "7874", True),
        ("39.5%", "39.50%", True),
        ("395", "39.50", False),
        ("$14,746.00", "$14,746", True),
        ("Curacao", "Curaçao", True),
        ("women’s cup", "Women's Cup", True),
        ("word " * 60 + "Ann", "Ann", False),
        ("", "Ann", False),
        ("", "", False),
        ("The", "The", True),  # nothing but an article on both sides
        ("+", "+", True),
        ("-", "+", False),
    ],
)
def test_em_or_contains(prediction, gold, right):
    assert em_or_contains(prediction, gold) is right


def test_official_overlap_is_as_lenient_as_upstream():
    assert official_overlap("the dog", "The cat")  # any shared word
    assert not official_overlap("Sportsbooks", "Sportsbooks.")  # punctuation is not stripped
    assert official_overlap("Insufficient Information", "Insufficient information.")
    assert not official_overlap("", "Yes")
    assert (
        official_answer('Well. The answer to the question is "Ann Lee". The answer to the question is "Bob".')
        == "Ann Lee"
    )
    assert official_answer("Ann") == "Ann"


def test_same_text():
    assert same_text("The dog.", "dog")
    assert not same_text("dog", "cat")
    assert not same_text("<", ">")


@given(st.text(), st.text())
def test_never_raise_and_equal_texts_match(left, right):
    assert squad_f1(left, [left]) == 1
    assert 0 <= squad_f1(left, [right]) <= 1
    assert squad_f1(left, [right]) == pytest.approx(squad_f1(right, [left]))
    assert em_or_contains(left, left) is bool(left.strip())
    em_or_contains(left, right)
    assert answer_tokens(f" {left}\n") == answer_tokens(left)
