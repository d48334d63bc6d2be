import numpy as np
import pytest

from noisyjax.train.objective.metrics import reduce
from noisyjax.train.rewards.config import GuardsConfig
from noisyjax.train.rewards.guards import measure_guards

NAN = float("nan")
PROMPT = "one two three four five six seven eight nine ten"  # ten words, eight 3-grams
CONFIG = GuardsConfig(ngram=3)
FIGURES = ("prompt_copied_n", "token_ratio_n", "from_distractor_n", "from_relevant_n")


def thought(*spans: str) -> str:
    return "<think>" + " ".join(f"<reference>{s}</reference>" for s in spans) + "</think>4"


@pytest.fixture(scope="session")
def noisy(sample):
    """A sample of a case with known texts; the arguments are its references."""

    def make(*spans: str, **parts):
        known = {
            "prompt": PROMPT,
            "question": "who is the tall man",
            "hint": "mara is the tall man here",
            "evidence": ("the key lies under stones",),
            "distractors": ("old mara sang for the tall man", "the cat sat on the mat"),
        }
        return sample(thought(*spans), **(known | parts))

    return make


@pytest.mark.parametrize(
    ("spans", "figures"),
    [
        # prompt copied, token ratio, from a distractor, from relevant texts
        (["one two three four"], [2 / 8, 0.4, 0, 0]),
        (["One, two\nthree FOUR."], [2 / 8, 0.4, 0, 0]),
        ([PROMPT], [1, 1, 0, 0]),
        (["one two", "three four"], [0, 0.4, NAN, NAN]),  # no run crosses from span to span
        (["one two"], [0, 0.2, NAN, NAN]),
        (["one two three", "nine ten"], [1 / 8, 0.5, 0, 0]),
        (["the cat sat on the mat"], [0, 0.6, 1, 0]),
        (["the cat sat under stones"], [0, 0.5, 1 / 3, 0]),
        (["key lies under stones"], [0, 0.4, 0, 1]),
        (["mara is the tall man"], [0, 0.5, 0, 1]),  # "the tall man" is a distractor's as well, and so not its own
        (["for the tall man"], [0, 0.4, 0.5, 0.5]),
        (["man the cat"], [0, 0.3, 0, 0]),  # no run crosses from distractor to distractor
        (["man the key"], [0, 0.3, 0, 0]),  # nor between the others
        ([], [NAN] * 4),
        ([" "], [NAN] * 4),
    ],
)
def test_figures(noisy, spans, figures):
    guards = measure_guards([noisy(*spans)], CONFIG)
    got = [getattr(guards, name)[0] for name in FIGURES]
    np.testing.assert_allclose(got, figures)


def test_repeats_in_the_prompt_count_as_often_as_they_stand_there(noisy):
    guards = measure_guards([noisy("a b c", prompt="a b c x a b c y")], CONFIG)
    assert guards.prompt_copied_n.tolist() == [2 / 6]


def test_what_is_not_there_is_undefined_not_zero(noisy):
    spans = ["one two three"]
    samples = [noisy(*spans, distractors=(" ",)), noisy(*spans, prompt="", id="a"), noisy(*spans, prompt="x y", id="b")]
    guards = measure_guards(samples, CONFIG)
    assert np.isnan(guards.from_distractor_n).tolist() == [True, False, False]
    assert np.isnan(guards.prompt_copied_n).tolist() == [False, True, True]
    assert np.isnan(guards.token_ratio_n).tolist() == [False, True, False]


def test_tokens_are_counted_with_the_given_counter(noisy):
    guards = measure_guards([noisy("abc", prompt="abcdef")], CONFIG, count=len)
    assert guards.token_ratio_n.tolist() == [0.5]


def test_identical_references(noisy):
    samples = [
        noisy("a b", id="x"),
        noisy("A b.", id="x"),
        noisy("c", id="x"),
        noisy(id="x"),
        noisy("a b", id="y"),  # its group's only reference; another group's does not count
        noisy(id="y"),
        noisy("a", "b", id="z"),
        noisy("a b", id="z"),
        noisy("b a", id="w"),
        noisy("a b", id="w"),
    ]
    expected = [1, 1, 0, NAN, NAN, NAN, 1, 1, 0, 0]
    assert np.array_equal(measure_guards(samples, CONFIG).identical_n, expected, equal_nan=True)


def test_each_case_is_held_against_its_own_texts(noisy):
    samples = [noisy("a b c", prompt="a b c", id="1"), noisy("a b c", prompt="d e f", id="2")]
    assert measure_guards(samples, CONFIG).prompt_copied_n.tolist() == [1, 0]
    assert measure_guards(samples[::-1], CONFIG).prompt_copied_n.tolist() == [0, 1]


def test_penalties_are_off_until_asked_for(noisy):
    guards = measure_guards([noisy(PROMPT), noisy("one two three four five"), noisy()], CONFIG)
    assert guards.penalties(CONFIG) == {}
    asked = GuardsConfig(
        ngram=3, prompt_copied={"limit": 0.3, "penalty": 0.25}, token_ratio={"limit": 0.5, "penalty": 1}
    )
    got = {name: values.tolist() for name, values in guards.penalties(asked).items()}
    assert got == {"prompt_copied": [-0.25, -0.25, 0], "token_ratio": [-1, 0, 0]}, "at the limit is within it"
    flagged = {name: values.tolist() for name, values in guards.flagged(asked).items()}
    assert flagged["token_ratio"] == [True, False, False]
    assert flagged["prompt_copied"] == [True, True, False]


def test_every_guard_can_punish(noisy):
    punish = {"limit": 0.0, "penalty": 1.0}
    names = ("prompt_copied", "token_ratio", "from_distractor", "identical")
    config = GuardsConfig(ngram=3, **dict.fromkeys(names, punish))
    samples = [noisy("the cat sat", prompt="the cat sat down")] * 2
    penalties = measure_guards(samples, config).penalties(config)
    assert {name: values.tolist() for name, values in penalties.items()} == {name: [-1.0, -1.0] for name in names}


def test_metrics(noisy):
    samples = [noisy(PROMPT), noisy("the cat sat on the mat"), noisy()]
    figures = reduce(measure_guards(samples, CONFIG).metrics(CONFIG))
    assert figures == pytest.approx(
        {
            "guard/prompt_copied": 0.5,
            "guard/token_ratio": 0.8,
            "guard/from_distractor": 0.5,
            "guard/from_relevant": 0,
            "guard/identical": 0,
            "guard/prompt_copied_flagged": 0.5,
            "guard/token_ratio_flagged": 1,
            "guard/from_distractor_flagged": 0.5,
            "guard/identical_flagged": 0,
        }
    )
    assert set(reduce(measure_guards([], CONFIG).metrics(CONFIG)).values()) == {None}
