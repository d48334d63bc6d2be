r"""Boxes, tags and answer lines: what is read, which of several wins, and what a cut completion does not give."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.scoring.extract import (
    clean,
    free_text_flexible,
    free_text_strict,
    last_boxed,
    last_tag,
    math_flexible,
    math_strict,
    read,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{2} no, \boxed{3}", "3"),
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{204} and then \boxed{", "204"),
        (r"put it in \boxed{}: \boxed{7}, see \boxed{}", "7"),
        (r"{ \boxed{3}", "3"),
        (r"} \boxed{3}", "3"),
        (r"\boxed{3", None),
        (r"\boxed{{3}", None),
        ("boxed{3}", None),
        ("", None),
    ],
)
def test_last_balanced_box(text, expected):
    found = last_boxed(text)
    assert (found.text if found else None) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>A</answer> or rather <ANSWER> B </ANSWER>", "B"),
        ("<answer>A</answer><answer></answer>", "A"),
        ("<answer>x <answer>y</answer>", "y"),
        ("</answer>", None),
        ("<answer>Paris", "Paris"),
        ("İİ<answer>Paris</answer>", "Paris"),
    ],
)
def test_last_tag(text, expected):
    found = last_tag(text)
    assert (found.text if found else None) == expected


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("Answer: Paris", "Paris", "Paris"),
        ("**Answer:** Paris.", "Paris", "Paris"),
        ("**Answer: Paris**", "Paris", "Paris"),
        ("**Final Answer**: *Paris*", "Paris", "Paris"),
        ("### Answer\nSome text", None, "### Answer\nSome text"),
        ("Answer:\n\n**Paris**\n", "Paris", "Paris"),
        ("The answer is: Paris", "Paris", "Paris"),
        ('The answer to the question is: "Paris".', "Paris", "Paris"),
        ("I think the answer is Paris.", None, "Paris"),
        ("Answer: Rome\nNo.\nAnswer: Paris", "Paris", "Paris"),
        ("Answer: \\boxed{Paris}", "Paris", "Paris"),
        ("\\boxed{Rome}\nAnswer: Paris", "Paris", "Paris"),
        ("Answer: Rome <answer>Paris</answer>", "Paris", "Paris"),
        ("Paris", None, "Paris"),
        ("  \n", None, None),
        ("The answers: vary", None, "The answers: vary"),
    ],
)
def test_free_text_strict_and_flexible(text, strict, flexible):
    for rule, expected in ((free_text_strict, strict), (free_text_flexible, flexible)):
        found = read(text, rule, finished=True)
        assert (found.text if found else None) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answer: Par", None),  # may have gone on
        ("Answer: Paris\nBecause", "Paris"),
        (r"\boxed{12}", "12"),
        (r"\boxed{12} wait, \boxed{1", None),  # taken back
        (r"\boxed{1", None),
        ("<answer>12", None),
        ("<answer>12</answer>", "12"),
        ("<answer>12</answer> no: <answer>1", None),
        ("Answer: <answer>12</answer>\nso", "12"),
        ("Paris is the capital", None),
        ("the answer is Paris", None),
        ("", None),
    ],
)
def test_a_cut_completion_gives_only_closed_answers(text, expected):
    found = read(text, free_text_flexible, finished=False)
    assert (found.text if found else None) == expected


def test_math_prefers_the_box_and_strict_takes_nothing_else():
    text = "\\boxed{2}\nAnswer: 3"
    assert read(text, math_flexible, finished=True).text == "2"
    assert read("Answer: 3", math_flexible, finished=True).text == "3"
    assert read("Answer: 3", math_strict, finished=True) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" **$\\text{Paris}$.** ", "Paris"),
        ("“Paris”", "Paris"),
        ("$x$ and $y$", "$x$ and $y$"),
        (r"\text{a} and \text{b}", r"\text{a} and \text{b}"),
        ("**Paris", "Paris"),
        ("and so on...", "and so on..."),
        ("*", "*"),
        ("", ""),
    ],
)
def test_clean(text, expected):
    assert clean(text) == expected


PIECES = [
    "\\boxed{",
    "{",
    "}",
    "<answer>",
    "</answer>",
    "Answer:",
    "the answer is ",
    "\n",
    " ",
    "*",
    "$",
    "A",
    "(B)",
    "7",
    "\\",
    "İ",
]
markup = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@given(st.one_of(markup, st.text()), st.booleans())
def test_rules_never_raise_and_outer_blanks_do_not_matter(text, finished):
    for rule in (free_text_strict, free_text_flexible, math_strict, math_flexible):
        found = read(text, rule, finished=finished)
        padded = read(f"  \t{text}", rule, finished=finished)
        assert (found.text if found else None) == (padded.text if padded else None)
        if finished:
            padded = read(f"\n {text} \n\n", rule, finished=True)
            assert (found.text if found else None) == (padded.text if padded else None)


@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{",
        "{",
        "}",
        "<answer>",
        "</answer>",
        "answer",
        "answer: ",
        "answer is ",
        "\n",
        " ",
        "*",
        "$",
        "\\text{",
        "(A)",
        "A. \n",
    ],
)
def test_reading_is_linear_in_hostile_text(piece):
    from noisyjax.scoring.letters import choose

    text = piece * (200_000 // len(piece))
    begun = time.monotonic()
    read(text, free_text_flexible, finished=False)
    choose("answer" + text, ("x", "y"), "flexible", finished=True)
    assert time.monotonic() - begun < 5
