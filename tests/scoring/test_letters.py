"""Option letters: every usual way to state one, and what must not be read as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.scoring.letters import choose, letter_strict, option_by_text, option_letter

FOUR = ("red ball", "blue ball", "green ball", "no ball")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: B", "B"),
        ("answer: b", "B"),
        ("Answer: (B) blue ball", "B"),
        ("Answer: B. blue ball", "B"),
        ("Answer: B) blue", "B"),
        ("Answer: B blue ball", "B"),
        ("**Answer:** B", "B"),
        ("**Answer: B**", "B"),
        ("**Answer**: (B)", "B"),
        ("Final Answer: option B", "B"),
        ("The correct answer is: **B**", "B"),
        (r"Answer: \boxed{B}", "B"),
        (r"Answer: $\text{B}$", "B"),
        (r"Answer: $\boxed{\text{B}}$", "B"),
        ("Answer:\nB", "B"),
        ("Answer: A, because of that", "A"),
        ("Answer: A\nOn reflection.\nAnswer: B", "B"),
        ("<answer>B</answer>", "B"),
        ("<answer> (B) </answer> I hope", "B"),
        ("<answer>A</answer> hm <answer>B</answer>", "B"),
        (r"\boxed{A} no \boxed{B}", "B"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{B: blue}", "B"),
        ("Answer: B\n\\boxed{A}", "B"),  # the answer line goes before the box
        ("Answer: A man", None),
        ("Answer: I think so", None),
        ("Answer: A and B", None),
        ("Answer: (A), (C)", None),
        ("Answer: A/B", None),
        ("Answer: both", None),
        (r"\boxed{A man}", None),
        (r"\boxed{b^2}", None),
        ("(B)", None),
        ("The answer is B.", None),
        ("", None),
    ],
)
def test_strict(text, letter):
    found = letter_strict(text)
    assert (found.text if found else None) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is B.", "B"),
        ("The answer is (B) since it is blue", "B"),
        ("The correct option is B, as said", "B"),
        ("B", "B"),
        ("(B)", "B"),
        ("B. The blue one; (A) is wrong", "B"),
        ("**B) blue ball**", "B"),
        ("A) is wrong.\nB) is right.\nSo (B)", "B"),
        ("A) is wrong.\nB) is right.", None),
        ("I weigh (A) against (B).", "B"),
        ("Either (A) or (B)", None),
        ("Answer: (A), (C)", None),
        ("blue ball", "B"),
        ("Answer: the blue ball.", "B"),
        ("It must be the Blue Ball, I am sure.", "B"),
        ("It is not the blue ball", None),
        ("red ball or blue ball", None),
        ("Answer: E", None),  # four options only
        ("Answer: B\nAnswer: E", None),  # the last word was no option
        ("A man walks in.", None),
        ("The answer is e.g. a ball", None),
        ("The answer is a matter of taste", None),
    ],
)
def test_flexible(text, letter):
    assert choose(text, FOUR, "flexible", finished=True)[0] == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: B", None),  # "Both" or "B and C" may have been coming
        ("Answer: B.", "B"),
        ("Answer: B\nThis", "B"),
        ("B) The blue", "B"),
        ("So (A) is wrong and (B)", None),
        ("<answer>B</answer>", "B"),
        ("<answer>B", None),
        ("It is the blue ball", None),
    ],
)
def test_cut_text(text, letter):
    assert choose(text + ("" if letter is None else " and then"), FOUR, "flexible", finished=False)[0] == letter


@pytest.mark.parametrize(
    ("label", "letter"),
    [
        (" (A)", "A"),
        ("(h)", "H"),
        ("B", "B"),
        ("**C**", "C"),
        ("D.", "D"),
        ("(B) No", "B"),
        ("Yes", None),
        ("", None),
        ("AB", None),
    ],
)
def test_option_letter(label, letter):
    assert option_letter(label) == letter


def test_option_by_text_with_nested_and_equal_options():
    assert option_by_text("the dog", ("dog", "the hot dog")) == 0
    assert option_by_text("a hot dog, surely", ("dog", "hot dog")) == 1
    assert option_by_text("same", ("same", "same", "other")) is None
    assert option_by_text("I have no opinion", ("Yes", "No")) is None
    assert option_by_text("No, never", ("Yes", "No")) == 1
    assert option_by_text("It is unknown.", ("Ann", "Bob", "Unknown")) == 2
    assert option_by_text("+", ("-", "+")) == 1
    assert option_by_text("Cannot be determined.", ("Ann", "Bob", "Cannot be determined")) == 2


def test_eight_options_are_read_when_none_are_listed():
    assert choose("Answer: H", (), "strict", finished=True)[0] == "H"
    assert choose("Answer: J", (), "strict", finished=True)[0] is None


PIECES = [
    "Answer:",
    "answer is",
    " ",
    "\n",
    "(A)",
    "B",
    "c",
    ")",
    "**",
    "\\boxed{",
    "}",
    "<answer>",
    "</answer>",
    ",",
    "and",
    "red ball",
]


@given(st.one_of(st.lists(st.sampled_from(PIECES), max_size=20).map("".join), st.text()), st.booleans())
def test_never_raises_and_outer_blanks_do_not_matter(text, finished):
    for extraction in ("strict", "flexible"):
        letter, note = choose(text, FOUR, extraction, finished=finished)
        assert letter is None or letter in "ABCD"
        assert note
        assert choose("\n  " + text, FOUR, extraction, finished=finished)[0] == letter
        if finished:
            assert choose(text + " \n", FOUR, extraction, finished=True)[0] == letter
