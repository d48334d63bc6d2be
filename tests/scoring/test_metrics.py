"""pass@k and pass^k against worked vectors, and their aggregation over questions."""

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.errors import UsageError
from noisyjax.scoring import pass_at_k, pass_hat_k, per_question


@pytest.mark.parametrize(
    ("n", "c", "k", "at_k", "hat_k"),
    [
        (10, 3, 1, 0.3, 0.3),
        (16, 4, 8, 0.961538, 0.0),
        (4, 2, 2, 0.833333, 0.166667),
        (8, 8, 8, 1.0, 1.0),
        (8, 0, 8, 0.0, 0.0),
        (8, 1, 8, 1.0, 0.0),
        (5, 0, 3, 0.0, 0.0),
    ],
)
def test_worked_vectors(n, c, k, at_k, hat_k):
    assert pass_at_k(n, c, k) == pytest.approx(at_k, abs=1e-6)
    assert pass_hat_k(n, c, k) == pytest.approx(hat_k, abs=1e-6)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_against_binomials(nck):
    n, c, k = nck
    assert pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-12)
    assert pass_hat_k(n, c, k) == pytest.approx(comb(c, k) / comb(n, k), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 0, 5), (0, 0, 1), (4, 5, 2), (4, -1, 2), (4, 2, 0)])
def test_impossible_requests_are_refused(n, c, k):
    for estimator in (pass_at_k, pass_hat_k):
        with pytest.raises(UsageError):
            estimator(n, c, k)


def test_per_item_then_mean():
    """Corpus counts fed as one item would give pass@2 of (8, 4): 0.786; the mean over items is 0.5."""
    values_qn = np.array([[1, 1, 1, 1], [0, 0, 0, 0]], dtype=float)
    assert per_question(values_qn, "pass@k", 2).mean() == 0.5
    assert per_question(values_qn, "pass^k", 2).mean() == 0.5


def test_unscored_samples_lower_n():
    nan = np.nan
    values_qn = np.array([[1, 0, nan], [nan, nan, 1], [nan, nan, nan]])
    np.testing.assert_allclose(per_question(values_qn, "mean", 1), [0.5, 1, nan])
    np.testing.assert_allclose(per_question(values_qn, "pass@k", 2), [1, nan, nan])
    np.testing.assert_allclose(per_question(values_qn, "pass^k", 2), [0, nan, nan])


def test_bad_aggregates_are_refused():
    with pytest.raises(UsageError, match="at least 5 samples"):
        per_question(np.ones((3, 4)), "pass@k", 5)
    with pytest.raises(UsageError, match="partial"):
        per_question(np.full((3, 4), 0.5), "pass@k", 2)
    with pytest.raises(UsageError, match="pass\\^k"):
        per_question(np.ones((3, 4)), "median", 2)
