import sys
from fractions import Fraction

import numpy as np
import pytest

from noisyjax.errors import RunError, UsageError
from noisyjax.records import Finish
from noisyjax.train.rewards.custom import call_reward_fn, load_reward_fn


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module `my_rewards` and takes it away again."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> None:
        (tmp_path / "my_rewards.py").write_text(text)

    yield write
    sys.modules.pop("my_rewards", None)


def test_found_by_name_and_called_per_sample(module, sample):
    module("def score(sample):\n    return float(sample.answer in sample.case.answers)\n")
    function = load_reward_fn("my_rewards:score")
    good, bad = sample(answers=("4",)), sample(answers=("5",))
    assert call_reward_fn(function, [good, bad], 0).value_n.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my_rewards", "expected package.module:function"),
        (":score", "expected package.module:function"),
        ("my_rewards:", "expected package.module:function"),
        ("my_reward:score", "there is no module 'my_reward'; put its folder on PYTHONPATH"),
        ("my_rewards.sub:score", "there is no module 'my_rewards.sub'"),
        ("my_rewards:scores", "has no 'scores'; did you mean 'score'?"),
        ("my_rewards:LIMIT", "LIMIT is a int, not a function"),
    ],
)
def test_names_that_lead_nowhere(module, name, says):
    module("LIMIT = 3\ndef score(sample):\n    return 1\n")
    with pytest.raises(UsageError, match=r"reward_fn '.*': .*" + says.replace("?", r"\?")):
        load_reward_fn(name)


def test_a_module_that_needs_another_one(module):
    module("import not_installed_anywhere\n")
    with pytest.raises(UsageError, match=r"my_rewards needs a module that is missing: .*not_installed_anywhere"):
        load_reward_fn("my_rewards:score")


def test_a_module_that_is_broken(module):
    module("1 / 0\n")
    with pytest.raises(UsageError, match="my_rewards cannot be imported: ZeroDivisionError"):
        load_reward_fn("my_rewards:score")


def test_one_that_raises_is_unscored_and_the_others_go_on(sample):
    def fragile(s) -> float:
        if s.case.id == "bad":
            raise KeyError("units")
        if s.case.id == "worse":
            raise ValueError("no number in it")
        return 0.5

    samples = [sample(id=i) for i in ("a", "bad", "b", "bad", "worse")]
    got = call_reward_fn(fragile, samples, max_failed=0.6)
    assert np.array_equal(got.value_n, [0.5, np.nan, 0.5, np.nan, np.nan], equal_nan=True)
    assert got.failures == {"KeyError": 2, "ValueError": 1}
    assert str(got) == (
        "reward_fn failed on 3 of 5 samples (2 KeyError, 1 ValueError); the first: KeyError: 'units' (sample of bad)"
    )
    with pytest.raises(RunError, match=r"failed on 3 of 5 .*That is more than max_failed = 0.5 allows"):
        call_reward_fn(fragile, samples, max_failed=0.5)


def test_the_share_itself_is_still_allowed(sample):
    def half(s) -> float:
        return 1 / (s.case.id == "good")

    assert call_reward_fn(half, [sample(id="good"), sample()], 0.5).failed == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", [1], np.ones(1), 1j])
def test_what_is_no_finite_number_is_a_failure(sample, value):
    got = call_reward_fn(lambda s: value, [sample()], 1)
    assert np.isnan(got.value_n).all()
    assert got.failed == 1
    assert "returned" in got.first


@pytest.mark.parametrize("value", [True, 1, 1.0, np.float32(1), np.array(1), Fraction(1)])
def test_numbers(sample, value):
    assert call_reward_fn(lambda s: value, [sample()], 0).value_n.tolist() == [1.0]


def test_none_is_an_abstention(sample):
    got = call_reward_fn(lambda s: None, [sample()] * 3, 0)
    assert np.isnan(got.value_n).all()
    assert (got.abstained, got.failed, str(got)) == (3, 0, "")


def test_nothing_generated_is_not_asked_about(sample):
    got = call_reward_fn(lambda s: 1 / 0, [sample("", Finish.ERROR)] * 3, 0)
    assert (got.asked, got.failed) == (0, 0)
    with pytest.raises(RunError, match="1 of 1"):
        call_reward_fn(lambda s: 1 / 0, [sample("", Finish.ERROR), sample()], 0.5)


def test_interrupts_are_not_swallowed(sample):
    def interrupted(s) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_reward_fn(interrupted, [sample()], 1)
