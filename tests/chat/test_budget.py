import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.chat.budget import fit

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
