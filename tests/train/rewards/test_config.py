import pytest

from noisyjax.config import validate
from noisyjax.errors import UsageError
from noisyjax.train.rewards.config import RewardConfig


def test_the_default_is_the_papers_form():
    config = RewardConfig()
    assert (config.combination, config.rationale, config.format.role) == ("additive", "binary", "gate")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"outcome_weight": 2}, "outcome_weight is read by combination: weighted only; got combination: additive"),
        ({"combination": "gated", "rationale_weight": 1}, "rationale_weight is read by"),
        ({"format": {"weight": 0.1}}, "format.weight is read by format.role: added only; got format.role: gate"),
        ({"combination": "rationale_only", "reward_fn": "a:b"}, "does not use"),
        ({"combination": "aditive"}, "did you mean 'additive'"),
        ({"truncated": "soft"}, "expected one of zero, score, mask"),
        ({"guards": {"token_ratio": {"limits": 1}}}, "did you mean 'limit'"),
        ({"distraction": {"tau": 0}}, "greater than 0"),
        ({"max_failed": 1.5}, "less than or equal to 1"),
    ],
)
def test_what_cannot_work_is_refused(data, says):
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        validate(RewardConfig, data, "reward")


@pytest.mark.parametrize(
    ("combination", "outcome", "rationale"),
    [
        ("outcome", True, False),
        ("additive", True, True),
        ("weighted", True, True),
        ("gated", True, True),
        ("gated_soft", True, True),
        ("rationale_only", False, True),
    ],
)
def test_what_is_asked_for(combination, outcome, rationale):
    config = RewardConfig(combination=combination)
    assert (config.asks_outcome, config.asks_rationale) == (outcome, rationale)
    watched = RewardConfig(combination=combination, observe=True)
    assert watched.asks_outcome
    assert watched.asks_rationale


def test_a_function_may_be_watched_beside_the_rationale_alone():
    assert RewardConfig(combination="rationale_only", reward_fn="a:b", observe=True).asks_outcome
