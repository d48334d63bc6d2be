"""The paired bootstrap: worked means, pairing, determinism, undefined draws."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.errors import UsageError
from noisyjax.scoring import CellValues, summarise
from noisyjax.scoring.stats import draw_counts, harmonic_mean, relative_change


def cell(dataset, setting, values, ids=None, clusters=None):
    values = np.array(values, dtype=float)
    return CellValues(dataset, setting, ids or [f"q{i}" for i in range(len(values))], values, clusters)


def random_cells(datasets=3, questions=40, settings=("ND", "RD", "HN"), seed=0):
    rng = np.random.default_rng(seed)
    return [
        cell(f"d{d}", s, rng.random(questions) < 0.7 - 0.1 * i) for d in range(datasets) for i, s in enumerate(settings)
    ]


@pytest.mark.parametrize(
    ("values", "mean"),
    [([1, 1], 1), ([0.5, 1], 2 / 3), ([0.2, 0.4, 0.8], 3 / (5 + 2.5 + 1.25)), ([0, 1], 0), ([0, 0], 0), ([0.3], 0.3)],
)
def test_harmonic_mean(values, mean):
    assert harmonic_mean(np.array(values)) == pytest.approx(mean)


def test_harmonic_mean_undefined():
    assert np.isnan(harmonic_mean(np.array([])))
    assert np.isnan(harmonic_mean(np.array([0.5, np.nan])))
    np.testing.assert_allclose(harmonic_mean(np.array([[0, 0.5], [1, 0.5]])), [0, 0.5])


def test_relative_change():
    np.testing.assert_allclose(
        relative_change(np.array([0.4, 0.5, 0.1, np.nan]), np.array([0.5, 0.4, 0, 0.5])), [-20, 25, np.nan, np.nan]
    )


def test_points():
    summary = summarise(
        [cell("a", "ND", [1, 1, 0, 0]), cell("a", "RD", [1, 0, 0, 0]), cell("b", "ND", [1, 1]), cell("b", "RD", [1, 0])]
    )
    assert summary.cells["a", "RD"].mean.point == 0.25
    assert summary.cells["a", "RD"].change.point == pytest.approx(-50)
    assert summary.cells["a", "ND"].change.point is None
    nd, rd = summary.settings["ND"], summary.settings["RD"]
    assert nd.harmonic.point == pytest.approx(2 / 3)
    assert nd.arithmetic.point == pytest.approx(0.75)
    assert rd.harmonic.point == pytest.approx(1 / 3)
    assert rd.harmonic_change.point == pytest.approx(-50)
    assert rd.arithmetic_change.point == pytest.approx(-50)
    assert nd.harmonic_change.point is None
    assert rd.datasets == ("a", "b")


def test_interval_of_a_mean_agrees_with_theory():
    rng = np.random.default_rng(1)
    values = (rng.random(400) < 0.6).astype(float)
    mean = summarise([cell("a", "ND", values)], draws=4000).cells["a", "ND"].mean
    error = np.sqrt(values.mean() * (1 - values.mean()) / 400)
    assert mean.low == pytest.approx(values.mean() - 1.96 * error, abs=0.01)
    assert mean.high == pytest.approx(values.mean() + 1.96 * error, abs=0.01)


def test_settings_are_paired():
    """Equal values question by question give a change of exactly 0 in every draw; unpaired draws would not."""
    values = (np.arange(50) % 3 == 0).astype(float)
    change = summarise([cell("a", "ND", values), cell("a", "RD", values)]).cells["a", "RD"].change
    assert (change.point, change.low, change.high) == (0, 0, 0)


def test_pairing_is_by_id_not_by_place():
    ids = [f"q{i}" for i in range(30)]
    values = (np.arange(30) % 2).astype(float)
    shuffled = cell("a", "RD", values[::-1], ids=ids[::-1])
    change = summarise([cell("a", "ND", values, ids=ids), shuffled]).cells["a", "RD"].change
    assert (change.low, change.high) == (0, 0)


def test_order_of_cells_and_absent_cells_change_nothing():
    cells = random_cells()
    full, reverse = summarise(cells, seed=3), summarise(cells[::-1], seed=3)
    assert full.cells == reverse.cells
    assert {s: full.settings[s] for s in sorted(full.settings)} == {
        s: reverse.settings[s] for s in sorted(full.settings)
    }
    fewer = summarise([c for c in cells if c.dataset != "d0" and c.setting != "HN"], seed=3)
    for key, result in fewer.cells.items():
        assert full.cells[key] == result
    assert summarise(cells, seed=4).cells != full.cells


def test_draws_are_pinned():
    """The random stream is part of the contract: a stored table can be made again."""
    assert draw_counts(0, "a", 4, 3).tolist() == PINNED
    assert (draw_counts(7, "b", 13, 50).sum(axis=1) == 13).all()


PINNED = [[1.0, 1.0, 2.0, 0.0], [0.0, 2.0, 2.0, 0.0], [2.0, 0.0, 1.0, 1.0]]


def test_clusters_widen_the_interval():
    """Four equal rows a cluster carry the information of one."""
    values = np.repeat((np.arange(25) % 2).astype(float), 4)
    labels = [f"c{i // 4}" for i in range(100)]
    alone = summarise([cell("bbq", "ND", values)]).cells["bbq", "ND"].mean
    tied = summarise([cell("bbq", "ND", values, clusters=labels)]).cells["bbq", "ND"].mean
    assert tied.point == alone.point
    assert tied.high - tied.low > 1.7 * (alone.high - alone.low)


def test_missing_questions_lower_n_in_their_setting_only():
    summary = summarise([cell("a", "ND", [1, 1, 0, 0]), cell("a", "RD", [1, np.nan, 0, np.nan])])
    nd, rd = summary.cells["a", "ND"], summary.cells["a", "RD"]
    assert (nd.n, nd.total, nd.mean.point) == (4, 4, 0.5)
    assert (rd.n, rd.total, rd.mean.point) == (2, 4, 0.5)
    assert rd.mean.undefined_share > 0  # some draws hold neither of the two


def test_a_dataset_without_scores_is_left_out_and_named():
    cells = [
        cell("a", "ND", [1, 0]),
        cell("a", "RD", [1, 0]),
        cell("b", "ND", [np.nan, np.nan]),
        cell("b", "RD", [1, 1]),
    ]
    summary = summarise(cells)
    assert summary.cells["b", "ND"].mean.point is None
    assert summary.cells["b", "ND"].n == 0
    assert summary.cells["b", "RD"].change.point is None
    assert summary.settings["ND"].datasets == ("a",)
    assert summary.settings["RD"].datasets == ("a", "b")
    assert summary.settings["RD"].compared == ("a",)
    assert summary.settings["RD"].harmonic_change.point == 0


def test_a_zero_cell_makes_the_harmonic_mean_zero_and_changes_undefined():
    cells = [cell("a", "ND", [0, 0]), cell("b", "ND", [1, 1]), cell("a", "RD", [1, 1]), cell("b", "RD", [1, 1])]
    nd, rd = (summarise(cells).settings[s] for s in ("ND", "RD"))
    assert nd.harmonic.point == 0
    assert nd.arithmetic.point == 0.5
    assert rd.harmonic_change.point is None
    assert rd.harmonic_change.undefined_share == 1
    assert rd.arithmetic_change.point == pytest.approx(100)


def test_share_of_undefined_draws():
    """One right answer in ten: it is in no draw with probability 0.9^10 = 0.349; the change is undefined there."""
    cells = [cell("a", "ND", [1] + [0] * 9), cell("a", "RD", [1] * 10)]
    change = summarise(cells, draws=5000).settings["RD"].harmonic_change
    assert change.undefined_share == pytest.approx(0.349, abs=0.02)
    assert change.point == pytest.approx(900)
    assert change.low is not None


def test_no_cells_and_empty_cells():
    assert summarise([]).cells == {}
    empty = summarise([cell("a", "ND", [])])
    assert empty.cells["a", "ND"].mean.point is None
    assert (empty.cells["a", "ND"].n, empty.cells["a", "ND"].total) == (0, 0)
    assert empty.settings["ND"].harmonic.point is None
    assert empty.settings["ND"].datasets == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: summarise([cell("a", "ND", [1]), cell("a", "ND", [1])]),
        lambda: summarise([cell("a", "ND", [1])], draws=0),
        lambda: summarise([cell("a", "ND", [1])], level=1.0),
        lambda: cell("a", "ND", [1, 0], ids=["q", "q"]),
        lambda: cell("a", "ND", [1, 0], ids=["q"]),
        lambda: cell("a", "ND", [1, 0], clusters=["c"]),
        lambda: summarise([cell("a", "ND", [1], clusters=["c"]), cell("a", "RD", [1], clusters=["d"])]),
    ],
)
def test_bad_input_is_refused(make):
    with pytest.raises(UsageError):
        make()


@given(st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), min_size=1, max_size=12), st.integers(0, 5))
def test_intervals_hold_the_extremes(values, seed):
    result = summarise([cell("a", "ND", values)], seed=seed, draws=50).cells["a", "ND"].mean
    defined = [v for v in values if not np.isnan(v)]
    if not defined:
        assert result.point is None
    else:
        assert min(defined) - 1e-12 <= result.low <= result.high <= max(defined) + 1e-12


def test_a_full_table_takes_about_a_second_at_most():
    cells = random_cells(datasets=9, questions=100, settings=("ND", "RD", "RC", "HN"))
    begun = time.monotonic()
    summarise(cells, draws=1000)
    assert time.monotonic() - begun < 3
