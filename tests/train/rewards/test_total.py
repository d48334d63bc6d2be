"""From verdicts to rewards: the combinations, what is undefined or absent, the terms, and their metrics."""

import numpy as np
import pytest
from totals import FORMS, NAN, config_of, same, totals

from noisyjax.records import Finish, Verdict
from noisyjax.train.objective.advantages import advantages
from noisyjax.train.objective.config import AdvantageConfig
from noisyjax.train.objective.metrics import reduce
from noisyjax.train.rewards.config import RewardConfig
from noisyjax.train.rewards.total import combine, reward_metrics, verdict_values


@pytest.mark.parametrize(
    ("combination", "total"),
    [
        # (O, R):          11   10   01   00   1,.5  .5,.5
        ("outcome", [1.0, 1.0, 0.0, 0.0, 1.0, 0.5]),
        ("additive", [2.0, 1.0, 1.0, 0.0, 1.5, 1.0]),
        ("weighted", [2.5, 2.0, 0.5, 0.0, 2.25, 1.25]),
        ("gated", [1.0, 0.0, 0.0, 0.0, 0.5, 0.25]),
        ("gated_soft", [1.0, 0.5, 0.0, 0.0, 0.75, 0.375]),
        ("rationale_only", [1.0, 0.0, 1.0, 0.0, 0.5, 0.5]),
    ],
)
def test_combinations(sample, combination, total):
    outcome, rationale = [1, 1, 0, 0, 1, 0.5], [1, 0, 1, 0, 0.5, 0.5]
    assert totals([sample()] * 6, outcome, rationale, config_of(combination)) == total


@pytest.mark.parametrize(
    ("combination", "total"),
    [
        # (O, R):         n1   n0   1n   0n   nn
        ("outcome", [NAN, NAN, 1, 0, NAN]),
        ("additive", [NAN, NAN, NAN, NAN, NAN]),
        ("weighted", [NAN, NAN, NAN, NAN, NAN]),
        ("gated", [NAN, 0, NAN, 0, NAN]),
        ("gated_soft", [NAN, NAN, NAN, 0, NAN]),
        ("rationale_only", [1, 0, NAN, NAN, NAN]),
    ],
)
def test_an_undefined_verdict_is_never_a_default(sample, combination, total):
    outcome, rationale = [NAN, NAN, 1, 0, NAN], [1, 0, NAN, NAN, NAN]
    assert same(totals([sample()] * 5, outcome, rationale, config_of(combination)), total)


@pytest.mark.parametrize("hint", [None, "", " \n"])
@pytest.mark.parametrize(
    ("combination", "total"),
    [
        ("outcome", [1, 0, NAN]),
        ("additive", [1, 0, NAN]),
        ("weighted", [2, 0, NAN]),
        ("gated", [1, 0, NAN]),
        ("gated_soft", [1, 0, NAN]),
        ("rationale_only", [NAN, NAN, NAN]),
    ],
)
def test_without_a_gold_reference_the_term_is_absent(sample, hint, combination, total):
    samples = [sample(hint=hint)] * 3
    assert same(totals(samples, [1, 0, NAN], [1, 1, 1], config_of(combination)), total)
    assert same(totals(samples, [1, 0, NAN], [NAN] * 3, config_of(combination)), total)


def test_a_group_without_gold_has_the_advantages_of_the_outcome_alone(sample):
    """Beside a group that has it. A missing term must not act as a baseline, nor as a reward of 0."""
    without, beside = {"hint": None, "id": "w"}, {"id": "b"}
    no_reference = FORMS["no reference"]
    config = RewardConfig(format={"role": "none"})
    samples = [sample(**without), sample(no_reference, **without), sample(**without), *[sample(**beside)] * 3]
    rewards = combine(samples, np.array([1, 0, 0, 1, 1, 0]), np.array([NAN, NAN, NAN, 1, 0, 0]), config)
    assert rewards.names == ("outcome", "rationale")
    assert rewards.applies_nc.tolist() == [[True, False]] * 3 + [[True, True]] * 3
    got = advantages(
        rewards.reward_nc,
        [s.case.id for s in samples],
        AdvantageConfig(),
        weight_c=rewards.weight_c,
        applies_nc=rewards.applies_nc,
    )
    np.testing.assert_allclose(got.advantage_n, [1.1547, -0.57735, -0.57735, 1, 0, -1], atol=1e-4)


def test_penalties_alone_do_not_bring_back_what_left(sample):
    """Of a group without gold, with the rationale alone rewarded, only penalties are left."""
    config = RewardConfig(combination="rationale_only", truncated="mask")
    samples = [sample(hint=None), sample(hint=None, finish=Finish.LENGTH), sample("", Finish.ERROR, hint=None)]
    assert same(totals(samples, [NAN] * 3, [NAN] * 3, config, {"p": np.array([-1.0] * 3)}), [-1, NAN, NAN])


def test_penalties_are_terms_of_their_own(sample):
    rewards = combine([sample()] * 2, np.ones(2), np.zeros(2), RewardConfig(), {"copied": np.array([0, -0.5])})
    assert rewards.names == ("outcome", "rationale", "copied")
    assert rewards.total_n.tolist() == [1, 0.5]
    assert rewards.weight_c.tolist() == [1, 1, 1]


def test_a_product_is_one_term(sample):
    rewards = combine([sample()], np.ones(1), np.full(1, 0.5), RewardConfig(combination="gated"))
    assert rewards.names == ("gated",)
    assert (rewards.outcome_n.tolist(), rewards.rationale_n.tolist()) == ([1], [0.5])


def test_weights_reach_the_advantages(sample):
    rewards = combine([sample()], np.ones(1), np.ones(1), config_of("weighted"))
    assert rewards.weight_c.tolist() == [2.0, 0.5]
    assert rewards.reward_nc.tolist() == [[1, 1]], "unweighted: per-component normalisation comes first"


def test_inputs_are_left_alone(sample):
    outcome, rationale = np.ones(1), np.ones(1)
    combine([sample("")], outcome, rationale, RewardConfig())
    assert (outcome.tolist(), rationale.tolist()) == ([1], [1])


def test_what_is_not_used_is_shown_only_when_watched(sample):
    values = np.ones(1), np.full(1, 0.5)
    assert np.isnan(combine([sample()], *values, RewardConfig(combination="outcome")).rationale_n).all()
    watched = combine([sample()], *values, RewardConfig(combination="outcome", observe=True))
    assert watched.rationale_n.tolist() == [0.5]
    assert watched.total_n.tolist() == [1]


@pytest.mark.parametrize(
    ("outcome", "rationale", "says"),
    [
        ([1.5], [0], r"outcome: expected values in \[0, 1\] or nan; got 1.5"),
        ([0], [-0.1], "rationale: .* got -0.1"),
        ([0], [np.inf], "rationale: .* got inf"),
        ([0, 1], [0], r"outcome: expected 1 values; got shape \(2,\)"),
    ],
)
def test_values_out_of_range(sample, outcome, rationale, says):
    with pytest.raises(ValueError, match=says):
        combine([sample()], np.array(outcome), np.array(rationale), RewardConfig())


def test_no_samples():
    rewards = combine([], np.zeros(0), np.zeros(0), RewardConfig())
    assert rewards.total_n.shape == (0,)
    assert reduce(reward_metrics([], rewards, RewardConfig()))["reward/total"] is None


def test_values_of_verdicts():
    verdicts = [Verdict(True, "j"), Verdict(False, "j", score=0.25), Verdict(None, "j"), None]
    assert same(verdict_values(verdicts), [1, 0, NAN, NAN])
    assert same(verdict_values(verdicts, graded=True), [NAN, 0.25, NAN, NAN]), "a yes is no grade"


def test_metrics_count_states(sample):
    config = RewardConfig()
    samples = [
        sample(),
        sample(),
        sample(FORMS["no reference"]),
        sample(FORMS["leak"]),
        sample(hint=None),
        sample(finish=Finish.LENGTH),
        sample("", Finish.ERROR),
    ]
    outcome = np.array([1, NAN, NAN, NAN, 0, NAN, NAN])
    rationale = np.array([NAN, 1, NAN, 1, NAN, NAN, NAN])
    figures = reduce(reward_metrics(samples, combine(samples, outcome, rationale, config), config))
    expected = {
        "reward/total": (0 + 1 + 0 + 0) / 4,  # no reference, leak, no gold, truncated; three undefined
        "reward/outcome": 1 / 5,
        "reward/rationale": 2 / 4,
        "judge/outcome_unscored": 1 / 3,
        "judge/rationale_unscored": 1 / 3,
        "reference/no_gold": 1 / 7,
        "reference/present": 5 / 6,
        "reference/clipped": 0,
        "format/ok": 4 / 6,
        "format/no_thought": 0,
        "format/several_closes": 0,
        "format/no_answer": 0,
        "format/no_reference": 1 / 6,
        "format/tag_in_answer": 1 / 6,
        "sample/truncated": 1 / 6,
        "sample/void": 1 / 7,
        "sample/masked": 0,
    }
    assert figures == pytest.approx(expected, abs=1e-6)
