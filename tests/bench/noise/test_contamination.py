"""The per-pair check, by a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.bench.noise.contamination import Checker, normal_form
from noisyjax.records import Question, Unit

FREE = [
    ("Manchester United", "He joined manchester united's youth side.", True),
    ("Manchester United", "Manchester was united.", False),
    ("The Beatles", "beatles", True),
    ("Café Müller", "the cafe muller", True),
    ("Stan", "Stanley lives here", False),
    ("Bankman-Fried", "Bankman-Fried's lawyers", True),
    ("7,874", "a sum of 7,874 pounds", True),
    ("7874", "number 17874", False),
    ("1998", "in 1998.", True),
    ("70", "70 men", False),
    ("pen", "a pen", False),
    ("Yes", "Yes it is yes", False),
    ("Insufficient information.", "there was insufficient information", False),
    ("", "anything", False),
    ("的答案在这里", "他说 的答案在这里 。", True),
]


@pytest.mark.parametrize(("answer", "text", "held"), FREE)
def test_free_answers(answer, text, held):
    checker = Checker()
    terms = checker.terms(Question("d", "1", "?", (answer,)))
    assert (checker.found(terms, Unit("u", "RD", text)) is not None) == held


def test_any_alias_counts():
    checker = Checker()
    terms = checker.terms(Question("d", "1", "?", ("USA", "United States")))
    assert checker.found(terms, Unit("u", "RD", "the United States of old")) == "united states"


@pytest.mark.parametrize(
    ("option", "looked_for"),
    [
        ("The grandfather", False),
        ("Can't say", False),
        ("a clear gas that smells of rain", True),
        ("12 kg", False),
    ],
)
def test_options_are_looked_for_when_they_say_something(option, looked_for):
    question = Question("d", "1", "?", ("B",), choices=("other", option))
    assert bool(Checker().terms(question)) == looked_for


def test_the_limits_are_options():
    question = Question("d", "1", "?", ("70",))
    assert Checker().terms(question) == ()
    assert Checker(min_chars=2).terms(question) == ("70",)


@given(st.text())
def test_normal_form_is_stable(text):
    once = normal_form(text)
    assert normal_form(once) == once
    assert once == once.strip()


@given(st.text(alphabet="abcd ", min_size=4).filter(lambda t: len(normal_form(t)) >= 4), st.text(), st.text())
def test_an_answer_set_between_blanks_is_found(answer, before, after):
    checker = Checker()
    terms = checker.terms(Question("d", "1", "?", (answer,)))
    assert checker.found(terms, Unit("u", "RD", f"{before} . {answer} . {after}")) is not None
