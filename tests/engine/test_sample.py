"""Drawing tokens, against an oracle that sorts.

Legend: B rows, V vocabulary.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from noisyjax.engine import sample
from noisyjax.records import Sampling

V = 12
TRUNCATE = jax.jit(sample.truncate)
CHOOSE = jax.jit(sample.choose)


def draw_of(*how: Sampling) -> sample.Draw:
    draw = sample.Draw.idle(len(how))
    for row, one in enumerate(how):
        draw.set(row, one)
    return draw


def kept_by_sorting(p: np.ndarray, how: Sampling) -> tuple[set[int], bool]:
    """(ids that stay, whether a threshold is so close that rounding decides). Ties at a threshold all stay."""
    p = p.astype(np.float64)
    keep = set(range(V))
    if how.top_k:
        keep &= set(np.flatnonzero(p >= np.sort(p)[::-1][min(how.top_k, V) - 1]))
    keep &= set(np.flatnonzero(p >= how.min_p * p.max()))
    close = bool(np.any(np.abs(p - how.min_p * p.max()) < 1e-6)) and 0 < how.min_p < 1
    if how.top_p < 1:
        q = np.where(np.isin(np.arange(V), list(keep)), p, 0.0)
        q /= q.sum()
        total, nucleus = 0.0, set()
        for value in np.unique(q)[::-1]:
            nucleus |= set(np.flatnonzero(q == value))
            total += value * np.sum(q == value)
            close |= abs(total - how.top_p) < 1e-5
            if total >= how.top_p:
                break
        keep &= nucleus
    return keep, close


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-8, 8), min_size=V, max_size=V),
    st.sampled_from([0, 1, 2, 5, 11, 12, 40]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.sampled_from([1e-6, 0.1, 0.5, 0.8, 0.95, 0.999, 1.0]),
    st.integers(0, 4),
)
def test_truncation_keeps_what_a_sort_keeps(halves, top_k, min_p, top_p, invalid):
    """Logits in halves, so that ties are common; rows without a token are there too."""
    how = Sampling(temperature=1.0, top_p=top_p, top_k=top_k, min_p=min_p)
    valid = jnp.arange(V) < V - invalid
    logp = sample.distribution(jnp.asarray([halves], jnp.float32) / 2, valid, jnp.ones(1))
    expected, close = kept_by_sorting(np.asarray(jnp.exp(logp[0])), how)
    assume(not close)
    truncated = np.asarray(TRUNCATE(logp, draw_of(how))[0])
    expected = {int(i) for i in expected if i < V - invalid}
    assert set(np.flatnonzero(truncated > sample.MASKED / 2).tolist()) == expected
    np.testing.assert_array_equal(truncated[sorted(expected)], np.asarray(logp[0])[sorted(expected)])


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (Sampling(), {0, 1, 2, 3}),
        (Sampling(top_k=2), {0, 1}),
        (Sampling(min_p=0.25), {0, 1, 2}),
        (Sampling(min_p=0.26), {0, 1}),
        (Sampling(top_p=0.5), {0}),
        (Sampling(top_p=0.51), {0, 1}),
        (Sampling(top_p=0.76), {0, 1, 2}),
        (Sampling(top_p=0.66, top_k=2), {0}),  # of the two that top-k left, the first holds two thirds
        (Sampling(top_p=0.67, top_k=2), {0, 1}),
        (Sampling(top_p=0.0), {0}),  # something always stays
        (Sampling(min_p=1.0), {0}),
        (Sampling(top_k=1, top_p=0.01, min_p=0.9), {0}),
    ],
)
def test_truncation_by_hand(how, kept):
    logp = jnp.log(jnp.asarray([[0.5, 0.25, 0.125, 0.125 - 1e-3] + [1e-10] * (V - 4)]))
    got = np.asarray(TRUNCATE(logp, draw_of(how))[0, :4]) > sample.MASKED / 2
    assert set(np.flatnonzero(got).tolist()) == kept


def test_rows_are_truncated_by_their_own_rule():
    hows = [Sampling(top_k=3), Sampling(top_p=0.6), Sampling(min_p=0.4), Sampling()]
    logp = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(0).normal(size=(4, V)), jnp.float32) * 2)
    together = TRUNCATE(logp, draw_of(*hows))
    for row, how in enumerate(hows):
        np.testing.assert_array_equal(together[row], TRUNCATE(logp[row : row + 1], draw_of(how))[0])
    assert len({int((np.asarray(row) > sample.MASKED / 2).sum()) for row in together}) > 2


def test_distribution_at_a_temperature_and_without_undecodable_rows():
    logits = jnp.asarray([[1.0, 2.0, 3.0, 50.0]] * 3)
    valid = jnp.asarray([True, True, True, False])
    logp = np.asarray(sample.distribution(logits, valid, jnp.asarray([0.0, 1.0, 0.5])))
    for row, t in enumerate([1.0, 1.0, 0.5]):  # greedy rows report the plain distribution
        p = np.exp(np.asarray([1.0, 2.0, 3.0]) / t)
        np.testing.assert_allclose(np.exp(logp[row, :3]), p / p.sum(), rtol=1e-5)
    assert np.all(logp[:, 3] < -1e29)
    assert np.isfinite(logp).all()


def test_entropy():
    p = np.asarray([[0.25, 0.25, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0]], np.float32)
    logp = jnp.where(p > 0, jnp.log(np.maximum(p, 1e-9)), sample.MASKED)
    np.testing.assert_allclose(sample.entropy(logp), [1.5 * np.log(2), 0.0], atol=1e-6)


def keys(n: int) -> np.ndarray:
    return np.stack([sample.row_key(0, 0, "q", i) for i in range(n)])


def test_draws_follow_the_distribution():
    """Chi-square of 20,000 draws of one row over its steps (11 degrees of freedom: 31.3 is one in a thousand)."""
    n = 20_000
    logp = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(1).normal(size=V), jnp.float32))
    draw = sample.Draw(*(np.full(n, x, t) for x, t in ((1.0, "f4"), (1.0, "f4"), (0, "i4"), (0.0, "f4"))))
    tokens = CHOOSE(jnp.tile(logp, (n, 1)), draw, np.repeat(keys(1), n, 0), np.arange(n))
    expected = n * np.exp(np.asarray(logp))
    assert float(np.sum((np.bincount(tokens, minlength=V) - expected) ** 2 / expected)) < 31.3


def test_a_draw_depends_on_key_and_step_alone():
    """The same row in another slot, another batch size and another company gives the same token."""
    how, greedy = Sampling(temperature=0.9, top_p=0.95), Sampling()
    logp = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(2).normal(size=(6, V)), jnp.float32))
    made = np.asarray([0, 3, 3, 7, 9, 1], np.int32)
    together = np.asarray(CHOOSE(logp, draw_of(*[how] * 6), keys(6), made))
    for row in range(6):
        alone = CHOOSE(logp[row : row + 1], draw_of(how), keys(6)[row : row + 1], made[row : row + 1])
        mixed = CHOOSE(
            jnp.stack([logp[0], logp[row]]), draw_of(greedy, how), np.stack([keys(1)[0], keys(6)[row]]),
            np.asarray([5, made[row]], np.int32),
        )  # fmt: skip
        assert together[row] == alone[0] == mixed[1]
        assert mixed[0] == np.argmax(logp[0])


def test_steps_and_keys_make_different_draws():
    logp = jnp.zeros((64, V)) - np.log(V)
    draw = draw_of(*[Sampling(temperature=1.0)] * 64)
    by_step = CHOOSE(logp, draw, np.repeat(keys(1), 64, 0), np.arange(64))
    by_key = CHOOSE(logp, draw, keys(64), np.zeros(64, np.int32))
    for tokens in (by_step, by_key):
        assert len(set(np.asarray(tokens).tolist())) > V // 2
    assert not np.array_equal(by_step, by_key)


def test_row_keys_are_distinct_and_pinned():
    cases = list(itertools.product((0, 1, 10), (0, 1, 2), ("", "1", "a", "a1", "musique/2hop"), range(12)))
    assert len({tuple(sample.row_key(*case)) for case in cases}) == len(cases)
    # A stored run can be resumed by a later process and a later version: these numbers must never change.
    assert sample.row_key(7, 3, "musique/2hop", 2).tolist() == [2384949035, 627120972]


@given(st.integers(4096, 4096 + 300), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_argmax_of_long_rows(width, levels, seed):
    """The first of the largest, as numpy has it; few levels make many ties."""
    x_bv = np.random.default_rng(seed).integers(0, levels, (3, width)).astype(np.float32)
    np.testing.assert_array_equal(sample.argmax(x_bv), x_bv.argmax(-1))
    x_bv[1] = -np.inf
    np.testing.assert_array_equal(sample.argmax(x_bv), x_bv.argmax(-1))
