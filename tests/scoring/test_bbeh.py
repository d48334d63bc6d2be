"""The official BBEH rules, their oddities, and what the flexible reading forgives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.scoring.bbeh import flexible_answer, matches, official_answer, prefixed


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("The answer is: (B)", "(b)"),
        ("The final answer is: 12.", "12"),
        ("The answer is 12.\nBecause", "12"),
        ("The final answer is 7. No. The final answer is 8.", "8"),
        ("The answer is: $\\boxed{yes, no}$", "yes,no"),
        ("The answer is: \\text{Ann}", "ann"),
        ("The answer is: \\texttt{Ann}", "ann"),
        ("The answer is: **Ann**.", "ann"),
        ("Ann\nand more", "ann"),
        ("", ""),
        # Official oddities, kept: case of the prefix, markup before the answer, a box that does not end the text.
        ("the answer is: 12", "the answer is: 12"),
        ("**The answer is:** Ann", " ann"),
        ("The answer is: \\boxed{3} apples", "\\boxed{3} apples"),
    ],
)
def test_official_answer(response, expected):
    assert official_answer(response) == expected


@pytest.mark.parametrize(
    ("prediction", "target", "right"),
    [
        ("(b)", "B", True),
        ("b", "(B)", True),
        ("(b)", "(B)", True),
        ("(c)", "(B)", False),
        ("12.0", "12", True),
        ("1e2", "100", True),
        ("nan", "nan.", False),
        ("dont", "don't", True),
        ("[x,y]", "x, y", True),
        ("x,y", "[x, y]", True),
        ("[]", "[]", True),
        ("who?", "who", True),
        ("who", "who?", False),
        ("yes,no", "Yes, No", True),
        ("yes, no", "Yes, No", False),
        ("yes", "no", False),
        ("", "a", False),
    ],
)
def test_matches(prediction, target, right):
    assert matches(prediction, target) is right


@pytest.mark.parametrize(
    ("response", "target"),
    [
        ("**The answer is:** Ann", "Ann"),
        ("so the answer is: 12", "12"),
        ("Therefore \\boxed{3} apples are left", "3"),
        ("The answer is: \\boxed{\\text{yes, no}}.", "yes, no"),
        ("Final answer: **(B)**", "(B)"),
        ("The answer is: yes ,no", "yes, no"),
        ("<answer>B</answer>", "(B)"),
        ("The answer is:\n\n42\n", "42"),
        ("Ann", "Ann"),
    ],
)
def test_flexible_forgives_markup(response, target):
    assert matches(flexible_answer(response), target)


def test_prefixed():
    assert prefixed("no prefix") is None
    assert prefixed("The answer is: a The answer is b") == "b"


@given(st.text())
def test_never_raises(text):
    assert official_answer(text) == official_answer(f"\n {text} ")
    matches(flexible_answer(text), official_answer(text))
    matches(official_answer("The answer is: " + text), text)
