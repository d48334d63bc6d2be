"""Every metric from answer text to Score: values, states, options, faults."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from noisyjax.records import Question, Score, State
from noisyjax.scoring import METRICS, MathVerdict, ScoreOptions, headline, scorer


@dataclass(frozen=True)
class Prompt:
    choices: tuple[str, ...] = ()
    gold: str = ""


class FakePool:
    """Stands in for the workers: says what it was asked, returns what it was told."""

    def __init__(self, value, reason=""):
        self.verdict, self.asked = MathVerdict(value, reason), []

    def verify(self, *, gold, answer):
        self.asked.append((gold, answer))
        return self.verdict


def question(*answers, choices=(), meta=None):
    return Question("made-up", "q1", "What?", answers, choices=choices, meta=meta or {})


def run(metric, q, answer, prompt=None, finished=True, pool=None, **options):
    return scorer(ScoreOptions(metric=metric, **options), pool)(q, prompt or Prompt(), answer, finished=finished)


BBQ_META = {
    "answer_info": {
        "ans0": ["the baker", "Northern"],
        "ans1": ["the smith", "Southern"],
        "ans2": ["Can't say", "unknown"],
    },
    "stereotyped_groups": ["Northern"],
    "question_polarity": "neg",
    "context_condition": "ambig",
}
BBQ = question("C", choices=("The baker", "The smith", "Can't say"), meta=BBQ_META)
CHOICE = question("B", choices=("red", "blue", "green", "none"))
GOLDS = {
    "sealqa": question("12 players"),
    "multihop_rag": question("Insufficient information."),
    "musique": question("Sydney Harbour", "Port Jackson"),
    "bbeh": question("yes, no"),
    "aime_integer": question(r"336^\circ"),
    "gpqa": CHOICE,
    "mwe": question(" (A)"),
    "bbq": BBQ,
    "math_verify": question(r"\frac{1}{2}"),
}
RIGHT = {
    "sealqa": "Answer: there were 12 players.",
    "multihop_rag": "Insufficient Information",
    "musique": "**Answer:** the Port Jackson",
    "bbeh": "The answer is: yes, no.",
    "aime_integer": r"Thus \boxed{0336}",
    "gpqa": "Answer: **B**",
    "mwe": "<answer>A</answer>",
    "bbq": "Answer: (C)",
    "math_verify": r"\boxed{\frac{1}{2}}",
}
WRONG = {
    "sealqa": "Answer: 13 players",
    "multihop_rag": "Google",
    "musique": "Answer: Rome",
    "bbeh": "The answer is: no, no",
    "aime_integer": r"\boxed{337}",
    "gpqa": "Answer: A",
    "mwe": "<answer>B</answer>",
    "bbq": "Answer: A",
    "math_verify": r"\boxed{3}",
}


def test_every_metric_has_its_rows():
    assert set(GOLDS) == set(RIGHT) == set(WRONG) == set(METRICS)


@pytest.mark.parametrize("metric", METRICS)
def test_right_wrong_and_states(metric):
    pool = FakePool(False)
    right, wrong = (run(metric, GOLDS[metric], text, pool=pool) for text in (RIGHT[metric], WRONG[metric]))
    if metric == "math_verify":
        right = run(metric, GOLDS[metric], RIGHT[metric], pool=FakePool(True))
    assert (right.state, right.value) == (State.SCORED, 1.0)
    assert (wrong.state, wrong.value) == (State.SCORED, 0.0)
    assert right.extracted
    for finished, state in ((True, State.NO_ANSWER), (False, State.TRUNCATED)):
        empty = run(metric, GOLDS[metric], "", finished=finished)
        assert (empty.state, empty.value, empty.extracted) == (state, None, None)
    assert run(metric, GOLDS[metric], "I would say that the answer", finished=False).state is State.TRUNCATED


@pytest.mark.parametrize("metric", METRICS)
def test_a_closed_answer_survives_a_cut(metric):
    score = run(
        metric,
        GOLDS[metric],
        RIGHT[metric] + ("\nMore" if "nsuff" not in RIGHT[metric] else ""),
        finished=False,
        pool=FakePool(True),
    )
    expected = State.TRUNCATED if metric == "multihop_rag" else State.SCORED
    assert score.state is expected


@pytest.mark.parametrize("metric", METRICS)
def test_a_question_without_gold_is_unscored_with_a_reason(metric):
    score = run(metric, question("", choices=("x", "y", "z"), meta=BBQ_META), RIGHT[metric])
    assert (score.state, score.value) == (State.UNSCORED, None)
    assert "gold" in score.note


def test_values_beside_the_headline():
    score = run("multihop_rag", question("Sam Lee"), "It was Sam Lee of course")
    assert score.values == {"em_or_contains": 1.0, "official_overlap": 1.0, "em": 0.0}
    score = run("multihop_rag", question("The Times"), "the Post", headline="official_overlap")
    assert (score.value, score.values["em_or_contains"]) == (1.0, 0.0)
    score = run("musique", question("Sydney Harbour"), "Sydney", headline="f1")
    assert score.value == pytest.approx(2 / 3)
    assert score.values["em"] == 0
    marked_up = "**The answer is:** Ann"
    score = run("bbeh", question("Ann"), marked_up)
    assert (score.value, score.values) == (0.0, {"official": 0.0, "flexible": 1.0})
    score = run("bbeh", question("Ann"), marked_up, headline="flexible")
    assert (score.value, score.extracted) == (1.0, "ann")


def test_strict_extraction_wants_the_form():
    assert run("musique", GOLDS["musique"], "Port Jackson", extraction="strict").state is State.NO_ANSWER
    assert run("gpqa", CHOICE, "The answer is B.", extraction="strict").state is State.NO_ANSWER
    assert run("gpqa", CHOICE, "The answer is B.").value == 1


def test_choices_are_scored_under_the_stored_presentation():
    """The gold letter is the prompt's, never drawn again: the same text means another option here."""
    shuffled = Prompt(("blue", "none", "red", "green"), "A")
    assert run("gpqa", CHOICE, "Answer: A", shuffled).value == 1
    assert run("gpqa", CHOICE, "Answer: B", shuffled).value == 0
    assert run("gpqa", CHOICE, "blue", shuffled).extracted == "A"
    first, second = (run("gpqa", CHOICE, "Answer: A", shuffled) for _ in range(2))
    assert first == second


def test_equal_options_are_told_apart_by_letter():
    twice = question("B", choices=("same", "same", "other", "more"))
    assert run("gpqa", twice, "Answer: A").value == 0
    assert run("gpqa", twice, "Answer: B").value == 1
    assert run("gpqa", twice, "same").state is State.NO_ANSWER


def test_a_presentation_without_its_gold_is_unscored():
    score = run("gpqa", CHOICE, "Answer: A", Prompt(("blue", "none", "red", "green")))
    assert score.state is State.UNSCORED
    score = run("gpqa", CHOICE, "Answer: A", Prompt(("blue", "red"), "D"))
    assert score.state is State.UNSCORED


def test_mwe_reads_eight_options_with_leading_blanks():
    assert run("mwe", question(" (H)"), "(H)").value == 1
    assert run("mwe", question(" (H)"), " (B)").value == 0
    assert run("mwe", question(" (H)"), "(J)").state is State.NO_ANSWER


def test_bbq_values_follow_the_group_through_a_permutation():
    shuffled = Prompt(("Can't say", "The baker", "The smith"), "A")
    score = run("bbq", BBQ, "Answer: B", shuffled)
    assert score.values == {"exact": 0.0, "ambig": 1.0, "parsed": 1.0, "non_unknown": 1.0, "biased": 1.0}
    score = run("bbq", BBQ, "the smith", shuffled)
    assert (score.extracted, score.values["biased"]) == ("C", 0.0)
    assert run("bbq", BBQ, "can't say").value == 1
    unparsed = run("bbq", BBQ, "Both of them.")
    assert unparsed.state is State.NO_ANSWER
    assert unparsed.values == {"ambig": 1.0, "parsed": 0.0, "non_unknown": None, "biased": None}


def test_aime_goes_by_integers_before_any_algebra():
    pool = FakePool(True)
    gold = question("70")
    assert run("aime_integer", gold, r"\boxed{204}, no: \boxed{70^\circ}", pool=pool).value == 1
    assert run("aime_integer", gold, r"\boxed{1070}", pool=pool).note == "outside 0 to 999"
    assert run("aime_integer", gold, r"\boxed{-70}", pool=pool).value == 0
    assert pool.asked == []
    assert run("aime_integer", gold, r"\boxed{\frac{140}{2}}", pool=pool).value == 1
    assert pool.asked == [("70", r"\frac{140}{2}")]
    three = run("aime_integer", question("3"), r"\boxed{\text{three}}", pool=pool, math_fallback=False)
    assert (three.value, three.note) == (0.0, "not an integer")
    assert run("aime_integer", question("1000"), r"\boxed{3}").state is State.UNSCORED


def test_a_failed_comparison_is_unscored_not_zero():
    score = run("math_verify", GOLDS["math_verify"], r"\boxed{x}", pool=FakePool(None, "no verdict within 10 s"))
    assert (score.state, score.value, score.extracted) == (State.UNSCORED, None, "x")
    assert score.note == "no verdict within 10 s"


def test_a_scorer_that_raises_flags_its_item():
    class Broken:
        def verify(self, **_):
            raise RuntimeError("pipe burst")

    score = run("math_verify", GOLDS["math_verify"], r"\boxed{3}", pool=Broken())
    assert score.state is State.UNSCORED
    assert "pipe burst" in score.note


def test_headline():
    assert headline(Score(State.SCORED, 0.5, values={"em": 0.0})) == 0.5
    assert headline(Score(State.SCORED, 0.5, values={"em": 0.0}), "em") == 0.0
    assert headline(Score(State.TRUNCATED, None)) == 0.0
    assert headline(Score(State.NO_ANSWER, None), "em") == 0.0
    assert headline(Score(State.UNSCORED, None)) is None
    assert headline(Score(State.OVER_LENGTH, None)) is None


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"metric": "musiqe"}, "did you mean 'musique'"),
        ({"metric": "musique", "headline": "F1"}, "did you mean 'f1'"),
        ({"metric": "musique", "extraction": "loose"}, "strict"),
        ({"metric": "musique", "colour": "red"}, "colour"),
    ],
)
def test_bad_options_are_named(options, hint):
    with pytest.raises(ValidationError, match=hint):
        ScoreOptions(**options)


@given(st.sampled_from(sorted(METRICS)), st.text(), st.booleans(), st.sampled_from(["strict", "flexible"]))
def test_any_text_gives_a_score(metric, text, finished, extraction):
    score = run(metric, GOLDS[metric], text, finished=finished, pool=FakePool(False), extraction=extraction)
    assert (score.value is None) == (score.state is not State.SCORED)
    assert score.state is not State.UNSCORED


def test_importing_the_room_loads_neither_jax_nor_math_verify():
    code = (
        "import sys, noisyjax.scoring; print([m for m in ('jax', 'flax', 'sympy', 'math_verify') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
