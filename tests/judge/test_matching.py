import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.judge.matching import Match, equals, facts, match_facts, match_tokens, states, tokens

ENDS = (" .", "\n")
SENTENCES = (". ", "! ", "? ", "\n")
DID = ("did", "it")


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("Paris", "the PARIS.", True),
        ("**7,874**", "7874", True),
        ("39.50", "39.5", True),
        ("five", "5", True),
        ("Curaçao", "curacao", True),
        ("-5", "−5", True),
        ("-5", "minus five", True),
        ("$-5.00", "-$5", True),
        ("3-5", "3–5", True),
        ("-5", "5", False),
        ("f(-2)", "f(2)", False),
        (".5", "5", False),
        (".5", "0.50", True),
        ("1e-5", "1e5", False),
        ("∅", "∅ ", True),
        ("∅", "∞", False),
        ("", "", True),
        ("Paris, France", "Paris", False),
    ],
)
def test_equal_answers(left: str, right: str, same: bool) -> None:
    assert equals(left, right) is same
    assert equals(right, left) is same


@pytest.mark.parametrize(
    ("candidate", "gold", "found"),
    [
        ("It is Paris.", "Paris", True),
        ("It is not Paris.", "Paris", False),
        ("There are 10 of them", "10", True),
        ("There are not 10", "10", False),
        ("10 or 11", "10", False),
        ("It fell to -10 degrees", "-10", True),
        ("It fell to -10 degrees", "10", False),
        ("10 and -10", "10", False),
        ("It rose to 10 degrees", "-10", False),
        ("In May 1932, at -3 degrees", "May 1932", True),
        ("yes, it is", "yes", True),
        ("not enough information", "Insufficient information.", True),
    ],
)
def test_stated_answers(candidate: str, gold: str, found: bool) -> None:
    assert states(candidate, gold) is found


@pytest.mark.parametrize(
    ("text", "ends", "found"),
    [
        ("anna code 7 . bob code 3 .", ENDS, {("anna", "code", "7"), ("bob", "code", "3")}),
        ("anna code 7\nbob code 3", ENDS, {("anna", "code", "7"), ("bob", "code", "3")}),
        ("Anna CODE 07 .\n\n . anna code 7.", ENDS, {("anna", "code", "7")}),
        ("weight .5 kg . -3 at night", ENDS, {("weight", "0.5", "kg"), ("minus", "3", "at", "night")}),
        (
            "It is 3.5 m. It grew!  Did it? Yes.",
            SENTENCES,
            {("it", "is", "3.5", "m"), ("it", "grew"), DID, ("yes",)},
        ),
        ("", ENDS, set()),
        (" . \n. !", ENDS, set()),
    ],
)
def test_facts(text: str, ends: tuple[str, ...], found: set[tuple[str, ...]]) -> None:
    assert facts(text, ends) == found


Q = "is anna code or bob code larger ?"
GOLD = "anna code 7 . bob code 3 ."


@pytest.mark.parametrize(
    ("question", "gold", "candidate", "match"),
    [
        (Q, GOLD, GOLD, Match(2, 2, 2)),
        (Q, GOLD, "anna code 7 .", Match(1, 2, 1)),
        (Q, GOLD, "anna code 3 . bob code 7 .", Match(0, 2, 2)),
        (Q, GOLD, GOLD + " cid code 1 .", Match(2, 2, 3)),
        # what the question says counts on neither side
        (Q, GOLD + " anna larger .", GOLD, Match(2, 2, 2)),
        (Q, GOLD, GOLD + f" {Q}\nbob larger", Match(2, 2, 2)),
        # unless the gold reference says nothing else
        ("Is Bonn or Ulm older ?", "Ulm older .", "Ulm older .", Match(1, 1, 1)),
        ("Is Bonn or Ulm older ?", "Ulm older .", "Bonn older . Ulm older .", Match(1, 1, 2)),
        ("Is Bonn or Ulm older ?", "Ulm older .", "Is Bonn or Ulm older ?", Match(0, 1, 1)),
        (Q, "", GOLD, Match(0, 0, 2)),
        (Q, GOLD, "", Match(0, 2, 0)),
    ],
)
def test_matched_facts(question: str, gold: str, candidate: str, match: Match) -> None:
    assert match_facts(question, gold, candidate, ENDS) == match


def test_unmasked_the_question_counts() -> None:
    assert match_facts(Q, GOLD, f"{GOLD} {Q}", ENDS, mask=False) == Match(2, 2, 3)
    assert match_tokens(Q, GOLD, Q, mask=False) == Match(4, 6, 7)  # anna, code, bob, code


@pytest.mark.parametrize(
    ("gold", "candidate", "match"),
    [
        (GOLD, GOLD, Match(2, 2, 2)),
        (GOLD, Q, Match(0, 2, 0)),
        (GOLD, "7 7 7", Match(1, 2, 3)),
        (GOLD, "7 4", Match(1, 2, 2)),
        ("anna larger", "bob larger", Match(1, 2, 2)),
    ],
)
def test_matched_tokens(gold: str, candidate: str, match: Match) -> None:
    assert match_tokens(Q, gold, candidate) == match


@pytest.mark.parametrize(
    ("match", "f1", "recall"),
    [(Match(2, 2, 2), 1.0, 1.0), (Match(1, 2, 1), 2 / 3, 0.5), (Match(2, 2, 6), 0.5, 1.0), (Match(0, 0, 0), 0.0, 0.0)],
)
def test_grades(match: Match, f1: float, recall: float) -> None:
    assert (match.f1, match.recall) == (pytest.approx(f1), pytest.approx(recall))


FACT = st.tuples(
    st.sampled_from(["anna", "bob", "cid"]), st.sampled_from(["code", "age"]), st.integers(0, 9).map(str)
).map(" ".join)
FACTS = st.lists(FACT, min_size=1, max_size=8)


def grade(gold: list[str], candidate: list[str]) -> float:
    return match_facts(Q, " . ".join(gold), "\n".join(candidate), ENDS).f1


@given(FACTS, st.randoms(use_true_random=False))
def test_order_and_repetition_never_count(gold: list[str], random) -> None:
    again = gold * 2
    random.shuffle(again)
    assert grade(gold, again) == 1.0


@given(FACTS, FACTS)
def test_only_equal_sets_have_the_full_grade_and_a_fact_too_many_lowers_it(gold: list[str], other: list[str]) -> None:
    value = grade(gold, other)
    assert value == pytest.approx(2 * len({*gold} & {*other}) / (len({*gold}) + len({*other})))
    assert (value == 1.0) is ({*gold} == {*other})
    assert grade(gold, [*gold, "dan code 1"]) < 1.0
    assert value == 0 or grade(gold, [*other, "dan code 1"]) < value


@given(st.text(), st.text(), st.text())
def test_any_text_can_be_matched(question: str, gold: str, candidate: str) -> None:
    match = match_facts(question, gold, candidate, ENDS)
    assert 0 <= match.f1 <= 1
    assert match_tokens(question, gold, gold).f1 == (1.0 if tokens(gold) else 0.0)
    assert match_facts(question, gold, gold, ENDS).f1 == (1.0 if tokens(gold) else 0.0)
    assert equals(gold, gold)
