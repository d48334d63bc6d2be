"""What the form of a completion decides before any judge is asked: broken, cut, empty, or never generated."""

import numpy as np
import pytest
from totals import COMBINATIONS, FORMS, NAN, config_of, same, totals

from noisyjax.records import Finish
from noisyjax.train.rewards.config import RewardConfig
from noisyjax.train.rewards.total import combine, wants_outcome, wants_rationale


@pytest.mark.parametrize(
    ("form", "role", "outcome", "total"),
    [
        ("good", "gate", 1, 2),
        ("leak", "gate", 1, 1),  # O = 0, R is what it is
        ("leak", "none", 1, 2),
        ("leak", "added", 1, 2),
        ("good", "added", 1, 2.25),
        ("good", "added", 0, 1.25),
        ("no reference", "gate", 1, 0),
        ("no reference", "none", 1, 1),
        ("no answer", "none", 1, 1),  # nothing that could be right
        ("no close", "none", 1, 2),
        ("leak", "gate", NAN, 1),  # the form decides, so no verdict is missing
        ("no answer", "none", NAN, 1),
        ("good", "gate", NAN, NAN),
    ],
)
def test_the_part_of_the_format(sample, form, role, outcome, total):
    config = RewardConfig(format={"role": role, "weight": 0.25 if role == "added" else None})
    rationale = NAN if form == "no reference" else 1
    assert same(totals([sample(FORMS[form])], [outcome], [rationale], config), [total])


def test_the_added_format_term_weighs_one_unless_told(sample):
    samples = [sample(), sample(FORMS["leak"])]
    assert totals(samples, [0, 0], [0, 0], RewardConfig(format={"role": "added"})) == [1, 0]


@pytest.mark.parametrize(
    ("truncated", "total", "masked"),
    [("zero", 0, False), ("score", 2, False), ("mask", NAN, True)],
)
def test_a_truncated_completion(sample, truncated, total, masked):
    config = RewardConfig(truncated=truncated)
    rewards = combine([sample(finish=Finish.LENGTH), sample()], np.ones(2), np.ones(2), config)
    assert same(rewards.total_n, [total, 2])
    assert rewards.masked_n.tolist() == [masked, False]


def test_a_truncated_completion_has_no_format_term_but_feels_penalties(sample):
    """Otherwise a completion just under the limit would be worse off than one beyond it."""
    config = RewardConfig(format={"role": "added"})
    samples = [sample(finish=Finish.LENGTH), sample()]
    overlong = {"overlong": np.array([-1.0, -0.9])}
    assert totals(samples, [1, 1], [1, 1], config, overlong) == pytest.approx([-1.0, 2.1])
    masked = config.model_copy(update={"truncated": "mask"})
    assert same(totals(samples, [1, 1], [1, 1], masked, {"overlong": np.array([-1.0, 0.0])}), [NAN, 3])


@pytest.mark.parametrize(
    ("form", "finish", "hint", "more", "outcome", "rationale"),
    [
        ("good", Finish.STOP, "b", {}, True, True),
        ("leak", Finish.STOP, "b", {}, False, True),
        ("leak", Finish.STOP, "b", {"format": {"role": "none"}}, True, True),
        ("no reference", Finish.STOP, "b", {"format": {"role": "none"}}, True, False),
        ("good", Finish.STOP, None, {}, True, False),
        ("good", Finish.LENGTH, "b", {}, False, False),
        ("good", Finish.LENGTH, "b", {"truncated": "mask"}, False, False),
        ("good", Finish.LENGTH, "b", {"truncated": "score"}, True, True),
        ("good", Finish.ERROR, "b", {}, False, False),
        ("good", Finish.OVER_LENGTH, "b", {}, False, False),
        ("good", Finish.STOP, "b", {"combination": "outcome"}, True, False),
        ("good", Finish.STOP, "b", {"combination": "rationale_only"}, False, True),
        ("good", Finish.STOP, "b", {"combination": "rationale_only", "observe": True}, True, True),
    ],
)
def test_which_judges_are_asked(sample, form, finish, hint, more, outcome, rationale):
    config = RewardConfig(**more)
    asked = sample(FORMS[form], finish, config, hint=hint)
    assert (wants_outcome(asked, config), wants_rationale(asked, config)) == (outcome, rationale)


def test_a_truncated_completion_does_not_bring_an_absent_term_back(sample):
    config = RewardConfig(combination="rationale_only")
    assert same(totals([sample(finish=Finish.LENGTH, hint=None)], [NAN], [NAN], config), [NAN])


@pytest.mark.parametrize("finish", [Finish.ERROR, Finish.OVER_LENGTH])
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_where_nothing_was_generated_there_is_no_reward(sample, finish, combination):
    config = config_of(combination, format={"role": "added"})
    assert same(totals([sample("", finish)], [0], [0], config, {"p": np.array([-1.0])}), [NAN])


def test_a_users_outcome_may_be_any_number_and_needs_no_answer(sample):
    config = RewardConfig(reward_fn="a:b", format={"role": "none"})
    no_answer = sample(FORMS["no answer"])
    assert totals([no_answer], [-3.5], [1], config) == [-2.5]
    assert wants_outcome(no_answer, config)
    assert not wants_outcome(no_answer, RewardConfig(format={"role": "none"}))
    with pytest.raises(ValueError, match="outcome: expected values that are finite or nan; got inf"):
        combine([no_answer], np.array([np.inf]), np.array([1]), config)
