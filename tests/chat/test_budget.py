import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.chat.budget import fit, fit_mixture, shares

UNITS = st.lists(st.integers(0, 50), max_size=12)


@pytest.mark.parametrize(
    ("units", "fixed", "limit", "assignment", "kept", "total"),
    [
        ([10, 10, 10], 20, 50, "shared_block", (0, 1, 2), 50),
        ([10, 10, 10], 20, 49, "shared_block", (0, 1), 40),
        ([10, 30, 5], 20, 36, "shared_block", (0,), 30),  # nothing after the first that does not fit
        ([10, 30, 5], 20, 36, "per_question", (0, 2), 35),
        ([10, 30, 5], 20, 20, "shared_block", (), 20),
        ([], 20, 20, "shared_block", (), 20),
        ([10, 30], 20, None, "shared_block", (0, 1), 60),
    ],
)
def test_fit_table(units, fixed, limit, assignment, kept, total):
    got = fit(units, fixed, limit, assignment)
    assert (got.kept, got.total, got.over_length) == (kept, total, False)


def test_over_length_keeps_nothing():
    got = fit([1, 1], 21, 20)
    assert (got.kept, got.dropped, got.over_length) == ((), (0, 1), True)


def test_caps():
    assert fit([5, 5, 5, 5], 10, None, max_units=2).kept == (0, 1)
    assert fit([5, 5, 5], 10, 100, max_noise=11).kept == (0, 1)
    assert fit([5, 5, 5], 10, 100, max_units=0).kept == ()
    with pytest.raises(ValueError, match="negative"):
        fit([-1], 0, 5)


@given(
    units=UNITS,
    fixed=st.integers(0, 100),
    limit=st.integers(0, 300),
    assignment=st.sampled_from(["shared_block", "per_question"]),
)
def test_fit_properties(units, fixed, limit, assignment):
    got = fit(units, fixed, limit, assignment)
    assert sorted(got.kept + got.dropped) == list(range(len(units)))
    assert got.total == fixed + sum(units[i] for i in got.kept)
    assert got.over_length is (fixed > limit)
    if not got.over_length:
        assert got.total <= limit
        if assignment == "shared_block":
            assert got.kept == tuple(range(len(got.kept)))
            if got.dropped:
                assert got.total + units[got.dropped[0]] > limit, "not one unit fewer than needed"


@given(units=UNITS, fixed=st.integers(0, 99), more=st.integers(0, 99), limit=st.integers(0, 400))
def test_a_longer_question_keeps_a_prefix_of_what_a_shorter_one_keeps(units, fixed, more, limit):
    short, long = fit(units, fixed, limit), fit(units, fixed + more, limit)
    assert short.kept[: len(long.kept)] == long.kept


def test_shares_add_up():
    assert shares(100, ("RD", "RC", "HN")) == {"RD": 34, "RC": 33, "HN": 33}
    assert shares(100, ("RD", "RC"), {"RD": 3, "RC": 1}) == {"RD": 75, "RC": 25}
    assert shares(5, ()) == {}
    with pytest.raises(ValueError, match="weight"):
        shares(5, ("RD", "RC"), {"RD": 1})
    with pytest.raises(ValueError, match="weight"):
        shares(5, ("RD",), {"RD": 0})


@given(total=st.integers(0, 5000), weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=4))
def test_shares_properties(total, weights):
    kinds = [f"k{i}" for i in range(len(weights))]
    got = shares(total, kinds, dict(zip(kinds, weights, strict=True)))
    assert sum(got.values()) == total
    assert min(got.values()) >= 0


def test_a_mixture_has_the_length_of_one_kind():
    units = {"RD": [10] * 50, "RC": [7] * 50}
    got = fit_mixture(units, 30, 1000, 200)
    assert {k: f.total for k, f in got.by_kind.items()} == {"RD": 100, "RC": 98}
    assert got.total == 228
    alone = fit([10] * 50, 30, 1000, max_noise=200)
    assert abs(alone.total - got.total) < 10, "within a unit"
    assert fit_mixture(units, 30, 130, 200).total <= 130
    assert fit_mixture(units, 30, None, 200, max_units=5).by_kind["RD"].kept == (0, 1, 2)
    assert fit_mixture(units, 30, None, 200, weights={"RD": 1, "RC": 0}).by_kind["RC"].kept == ()


def test_a_mixture_over_length_and_without_a_budget():
    got = fit_mixture({"RD": [1], "RC": [1, 1]}, 50, 40, 10)
    assert got.over_length
    assert got.by_kind["RC"].dropped == (0, 1)
    with pytest.raises(ValueError, match="limit or a number"):
        fit_mixture({"RD": [1]}, 5, None, None)
