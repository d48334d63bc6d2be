"""Advantages by hand, undefined rewards, flat groups, components, and the overlong penalty."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from noisyjax.config import validate
from noisyjax.errors import UsageError
from noisyjax.train.objective.advantages import advantages, informative, overlong_penalty
from noisyjax.train.objective.config import AdvantageConfig
from noisyjax.train.objective.metrics import reduce

NAN = float("nan")
GRPO = AdvantageConfig()
DR_GRPO = AdvantageConfig(scale="none")
GDPO = AdvantageConfig(per_component=True)


def one_group(rewards, cfg=GRPO):
    return advantages(np.array(rewards, float), [7] * len(rewards), cfg)


@pytest.mark.parametrize(
    ("rewards", "expected", "state"),
    [
        ([1, 0, 0], [1.1547, -0.5773, -0.5773], "informative"),
        ([2, 1, 0], [1, 0, -1], "informative"),
        ([2, 2, 1], [0.5773, 0.5773, -1.1547], "informative"),
        ([2, 1, 1], [1.1547, -0.5773, -0.5773], "informative"),
        ([1, 1, 1], [0, 0, 0], "constant"),
        ([0, 0], [0, 0], "constant"),
        ([1], [0], "single"),
        ([1, NAN, NAN, NAN], [0, 0, 0, 0], "single"),
        ([NAN, NAN], [0, 0], "undefined"),
        ([2, NAN, 1, 0], [1, 0, 0, -1], "informative"),
        ([1, NAN, 1], [0, 0, 0], "constant"),
        ([1, float("inf"), 0], [0.7071, 0, -0.7071], "informative"),
    ],
)
def test_vectors(rewards, expected, state):
    result = one_group(rewards)
    np.testing.assert_allclose(result.advantage_n, expected, atol=1e-4)
    assert result.advantage_n.dtype == np.float32
    assert result.state_g == (state,)
    assert result.defined_n.tolist() == np.isfinite(rewards).tolist()


def test_population_deviation_and_eps():
    """[1, 0, 0] has variance 2/9 with ddof 0; [1, 0] has deviation √0.5 with ddof 1."""
    half = 0.5**0.5
    population = one_group([1, 0, 0], AdvantageConfig(ddof=0))
    np.testing.assert_allclose(population.advantage_n, [2 * half, -half, -half], atol=1e-5)
    damped = one_group([1, 0], AdvantageConfig(eps=0.5))
    np.testing.assert_allclose(damped.advantage_n, [0.5 / (half + 0.5), -0.5 / (half + 0.5)], rtol=1e-6)


def test_dr_grpo_only_subtracts_the_mean():
    np.testing.assert_allclose(one_group([1, 0, 0], DR_GRPO).advantage_n, [2 / 3, -1 / 3, -1 / 3], rtol=1e-6)
    assert one_group([3.0], DR_GRPO).advantage_n.tolist() == [0.0]


def test_groups_are_ids_not_positions():
    """Prompts p and q interleaved; q is constant."""
    result = advantages(np.array([1.0, 5.0, 0.0, 5.0]), ["p", "q", "p", "q"], DR_GRPO)
    assert result.advantage_n.tolist() == [0.5, 0.0, -0.5, 0.0]
    assert informative(result) == {"p": True, "q": False}


def test_zero_variance_share_is_by_group_and_skips_what_cannot_vary():
    """Four groups: one informative, one constant, one of one, one undefined. Two can vary, one of them does not."""
    rewards = np.array([1, 0, 2, 2, 5, NAN, NAN])
    figures = reduce(advantages(rewards, [0, 0, 1, 1, 2, 3, 3], DR_GRPO).metrics())
    assert figures["group/zero_std"] == 0.5
    assert figures["group/single"] == 0.25
    assert figures["group/undefined"] == 0.25
    assert figures["sample/undefined"] == pytest.approx(2 / 7)
    assert figures["advantage/abs"] == pytest.approx(0.2)
    assert reduce(one_group([NAN]).metrics())["group/zero_std"] is None


@pytest.mark.parametrize(
    ("flat", "undefined", "expected"),
    [
        ("keep", "keep", [0, 0, 0, 0, 0, 0, 0]),
        ("drop", "keep", [0, 0, 0, 1, 1, 1, 1]),
        ("keep", "drop", [0, 0, 1, 0, 0, 0, 0]),
        ("drop", "drop", [0, 0, 1, 1, 1, 1, 1]),
    ],
)
def test_what_leaves_the_loss(flat, undefined, expected):
    """Groups: [1, 0, undefined], [1, 1], [1, undefined]."""
    cfg = AdvantageConfig(flat_groups=flat, undefined=undefined)
    result = advantages(np.array([1, 0, NAN, 1, 1, 1, NAN]), [0, 0, 0, 1, 1, 2, 2], cfg)
    assert result.left_out_n.tolist() == [bool(x) for x in expected]


def test_components_tell_apart_what_the_sum_does_not():
    """Answer only, reference only, neither. The columns become [2, -1, -1] / √3 and [-1, 2, -1] / √3; the first and
    half the second are [1.5, 0, -1.5] / √3, whose deviation is √0.75; so [1, 0, -1]."""
    outcome_and_reference = np.array([[1, 0], [0, 1], [0, 0]], float)
    by_component = advantages(outcome_and_reference, [0] * 3, GDPO, weight_c=[1.0, 0.5])
    np.testing.assert_allclose(by_component.advantage_n, [1, 0, -1], atol=1e-5)
    by_sum = advantages(outcome_and_reference, [0] * 3, GRPO)
    assert by_sum.advantage_n[0] == by_sum.advantage_n[1]


def test_component_batch_deviation_spans_groups():
    """[1, 0] gives ±0.7071 per component. First group: two components agree, ±1.4142; second: one of them is constant,
    ±0.7071. Batch deviation: sqrt((2 * 2 + 2 * 0.5) / 3) = sqrt(5 / 3)."""
    rewards = np.array([[1, 1], [0, 0], [1, 3], [0, 3]], float)
    result = advantages(rewards, [0, 0, 1, 1], GDPO)
    deviation = (5 / 3) ** 0.5
    expected = np.array([2**0.5, -(2**0.5), 0.5**0.5, -(0.5**0.5)]) / deviation
    np.testing.assert_allclose(result.advantage_n, expected, rtol=1e-5)


@pytest.mark.parametrize(("flat", "square_sum", "defined"), [("keep", 1.0, 4), ("drop", 1.0, 2)])
def test_a_dropped_group_leaves_the_batch_deviation(flat, square_sum, defined):
    """[1, 0] gives ±√0.5, squares that add up to 1; the constant group's two zeros count only if it is kept."""
    cfg = AdvantageConfig(per_component=True, flat_groups=flat)
    result = advantages(np.array([1.0, 0, 4, 4]), [0, 0, 1, 1], cfg)
    deviation = (square_sum / (defined - 1)) ** 0.5
    np.testing.assert_allclose(result.advantage_n, np.array([0.5**0.5, -(0.5**0.5), 0, 0]) / deviation, rtol=1e-5)


def test_components_that_cancel_are_a_constant_group():
    result = advantages(np.array([[1, 0], [0, 1]], float), [0, 0], GDPO)
    assert result.state_g == ("constant",)
    assert result.advantage_n.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("cfg", [GRPO, GDPO])
def test_an_undefined_component_undoes_the_sample(cfg):
    """The judge gave no verdict on the second sample: its outcome of 1 may not shift the others' mean."""
    rewards = np.array([[1, 1], [1, NAN], [0, 0]])
    result = advantages(rewards, [0] * 3, cfg)
    assert result.advantage_n[1] == 0
    assert result.defined_n.tolist() == [True, False, True]
    np.testing.assert_allclose(result.advantage_n[[0, 2]], advantages(rewards[[0, 2]], [0, 0], cfg).advantage_n)


@pytest.mark.parametrize("cfg", [GRPO, GDPO])
def test_a_component_that_does_not_apply_is_not_undefined(cfg):
    """No gold reference: the group is judged by its outcomes alone, whatever stands in the other column."""
    applies = np.array([[True, False]] * 3)
    rewards = np.array([[1, NAN], [0, 9], [0, NAN]])
    result = advantages(rewards, [0] * 3, cfg, applies_nc=applies)
    np.testing.assert_allclose(result.advantage_n, advantages(rewards[:, :1], [0] * 3, cfg).advantage_n)
    assert result.defined_n.all()


def test_a_component_applies_to_whole_groups_only():
    with pytest.raises(ValueError, match=r"group 'p'.*some of its samples only"):
        advantages(np.ones((2, 2)), ["p", "p"], GRPO, applies_nc=np.array([[True, True], [True, False]]))


def test_no_component_applies_is_undefined():
    assert advantages(np.ones((2, 1)), [0, 0], GRPO, applies_nc=np.zeros((2, 1), bool)).state_g == ("undefined",)


samples = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from([0.0, 1.0, 2.0, 0.1, 0.7, NAN]), st.sampled_from([0.0, 1.0, 0.3, NAN])
    ),
    max_size=12,
)
configs = st.sampled_from(
    [GRPO, DR_GRPO, GDPO, AdvantageConfig(per_component=True, flat_groups="drop"), AdvantageConfig(ddof=0)]
)


@given(samples, configs, st.randoms())
def test_order_does_not_matter_to_the_last_bit(rows, cfg, random):
    def solve(rows):
        rewards = np.array([row[1:] for row in rows], float).reshape(-1, 2)
        return advantages(rewards, np.array([row[0] for row in rows], int), cfg, weight_c=[1.0, 0.3])

    order = list(range(len(rows)))
    random.shuffle(order)
    one, other = solve(rows), solve([rows[i] for i in order])
    assert one.advantage_n[order].tolist() == other.advantage_n.tolist()
    assert one.left_out_n[order].tolist() == other.left_out_n.tolist()
    assert one.state_g == other.state_g


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1], [2, 1, 0]])
def test_sums_are_exact(order):
    """Added one by one, 1e16 + 1 - 1e16 is 0 or 1 by their order."""
    rewards = np.array([1e16, 1.0, -1e16])[order]
    assert one_group(rewards, DR_GRPO).advantage_n[order.index(1)] == np.float32(2 / 3)


@given(samples, configs)
def test_always_finite_and_centred_in_every_group(rows, cfg):
    group_n = np.array([row[0] for row in rows], int)
    result = advantages(np.array([row[1:] for row in rows], float).reshape(-1, 2), group_n, cfg)
    assert np.isfinite(result.advantage_n).all()
    assert (result.advantage_n[~result.defined_n] == 0).all()
    for g in set(group_n):
        assert result.advantage_n[group_n == g].sum() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (79, 0), (80, 0), (85, -0.25), (100, -1), (101, -1)])
def test_overlong_penalty(length, expected):
    assert overlong_penalty([length], limit=100, buffer=20).tolist() == [expected]


@pytest.mark.parametrize("buffer", [0, -1, 101])
def test_overlong_buffer_must_fit(buffer):
    with pytest.raises(UsageError, match=f"overlong_buffer {buffer}: expected 1 to 100"):
        overlong_penalty([1], limit=100, buffer=buffer)


def test_config_is_frozen_and_checked():
    with pytest.raises(UsageError, match="needs scale: std"):
        validate(AdvantageConfig, {"per_component": True, "scale": "none"}, "here")
    with pytest.raises(UsageError, match="did you mean 'scale'"):
        validate(AdvantageConfig, {"scales": "std"}, "here")
    with pytest.raises(ValidationError, match="frozen"):
        GRPO.scale = "none"
