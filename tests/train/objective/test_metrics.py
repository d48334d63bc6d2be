"""Metrics add up over parts, count what they saw, and say nothing about what they did not see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisyjax.train.objective.metrics import Max, Mean, Min, Quantiles, Total, empty_like, merge, reduce, show

FIGURES = st.floats(0, 1e5, width=32, allow_subnormal=False)  # XLA takes numbers below 1e-38 for zero


def summary(values, where=True):
    return {
        "mean": Mean.of(values, where),
        "total": Total.of(values, where),
        "max": Max.of(values, where),
        "min": Min.of(values, where),
        "q": Quantiles.of(values, where),
    }


def test_figures_by_hand():
    values, where = np.array([[1.0, 4.0, np.nan], [7.0, np.inf, -9.0]]), np.array([[1, 1, 0], [1, 0, 0]], bool)
    figures = reduce(summary(values, where))
    assert figures["mean"] == 4.0
    assert figures["total"] == 12.0
    assert figures["max"] == 7.0
    assert figures["min"] == 1.0
    assert figures["q/p50"] == pytest.approx(4.0, rel=0.037)


def test_unequal_parts_are_not_averaged():
    """Lengths 1 and 9: the mean of the two means would be 5.5."""
    parts = [{"x": Mean.of(jnp.full(1, 10.0))}, {"x": Mean.of(jnp.full(9, 1.0))}]
    assert reduce(merge(parts)) == {"x": pytest.approx(1.9)}


def test_nothing_counted_is_none_and_shown_as_a_dash():
    figures = reduce(summary(np.array([3.0, 4.0]), False))
    assert set(figures) == {"mean", "total", "max", "min", "q/p50", "q/p95", "q/p99"}
    assert all(value is None for value in figures.values())
    assert {show(value) for value in figures.values()} == {"–"}
    assert reduce(summary(np.zeros((2, 0)))) == figures


def test_a_counted_zero_is_zero():
    assert reduce({"x": Mean.of(np.zeros(3))}) == {"x": 0.0}
    assert show(0.0) == "0"


def test_a_counted_nan_is_not_hidden():
    figures = reduce(summary(np.array([1.0, np.nan])))
    assert np.isnan(figures["mean"])
    assert np.isnan(figures["max"])


def test_names_may_be_missing_from_a_part():
    assert reduce(merge([{"a": Mean.of([1.0])}, {"a": Mean.of([3.0]), "b": Mean.of([5.0])}])) == {"a": 2.0, "b": 5.0}


def test_counts_stay_exact_beyond_float32():
    big = Mean(jnp.float32(0), jnp.int32(2**24))
    assert int((big + Mean.of([1.0])).count) == 2**24 + 1


def test_scan_over_micro_batches_equals_the_whole():
    x_mn = np.random.default_rng(0).lognormal(size=(4, 6)).astype(np.float32)
    start = empty_like(jax.eval_shape(summary, jax.ShapeDtypeStruct((6,), jnp.float32)))

    @jax.jit
    def run(x_mn):
        return jax.lax.scan(lambda carry, x_n: (merge([carry, summary(x_n)]), None), start, x_mn)[0]

    assert reduce(run(x_mn)) == pytest.approx(reduce(summary(x_mn)), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(FIGURES, max_size=5), min_size=1, max_size=4))
def test_any_split_gives_the_same_figures(parts):
    """In numpy's own words: what the reducers say of the parts is what numpy says of the whole."""
    figures = reduce(merge([summary(np.array(part, np.float32)) for part in parts]))
    whole = np.array([value for part in parts for value in part], np.float64)
    if len(whole) == 0:
        assert figures["mean"] is None
        return
    assert figures["mean"] == pytest.approx(whole.mean(), rel=1e-5)
    assert figures["total"] == pytest.approx(whole.sum(), rel=1e-5)
    assert (figures["min"], figures["max"]) == (whole.min(), whole.max())


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.95, 0.99, 1.0])
def test_quantiles_are_within_a_bin(q):
    x = np.random.default_rng(1).lognormal(-3, 2, size=5000)
    parts = [Quantiles.of(part) for part in np.array_split(x, 7)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    assert jax.device_get(whole).quantile(q) == pytest.approx(np.quantile(x, q, method="inverted_cdf"), rel=0.038)


def test_quantiles_at_their_ends():
    low, high = jax.device_get((Quantiles.of([0.0, 0.0]), Quantiles.of([1e9, np.nan])))
    assert 0 <= low.quantile(0.5) <= 1e-7
    assert high.quantile(0.5) == 1e6
