"""Token weights by hand, and the high-entropy mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.errors import UsageError
from noisyjax.train.objective.weights import high_entropy, token_weights

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
LENGTHS = [4, 1, 0, 5]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", [1 / 10, 1 / 10, 0, 1 / 10]),
        ("seq-mean-token-mean", [1 / 12, 1 / 3, 0, 1 / 15]),
        ("seq-mean-token-sum", [1 / 3, 1 / 3, 0, 1 / 3]),
        ("seq-mean-token-sum-norm", [1 / 24, 1 / 24, 0, 1 / 24]),
    ],
)
def test_by_hand(mode, expected):
    """Three sequences count, of 4, 1 and 5 tokens; the response limit is 8."""
    weight_n = token_weights(LENGTHS, mode, max_length=8)
    assert weight_n.dtype == np.float32
    np.testing.assert_allclose(weight_n, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", [1 / 5, 1 / 5, 0, 0]),
        ("seq-mean-token-mean", [1 / 8, 1 / 2, 0, 0]),
        ("seq-mean-token-sum", [1 / 2, 1 / 2, 0, 0]),
        ("seq-mean-token-sum-norm", [1 / 16, 1 / 16, 0, 0]),
    ],
)
def test_left_out_leaves_the_denominators(mode, expected):
    weight_n = token_weights(LENGTHS, mode, left_out_n=[False, False, False, True], max_length=8)
    np.testing.assert_allclose(weight_n, expected, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", [[], [0, 0], [3, 2]])
def test_nothing_left_is_all_zero(mode, lengths):
    weight_n = token_weights(lengths, mode, left_out_n=[True] * len(lengths), max_length=8)
    assert weight_n.tolist() == [0.0] * len(lengths)


sequences = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8)


@given(sequences, st.sampled_from(MODES), st.randoms())
def test_order_and_filler_do_not_matter(pairs, mode, random):
    def weigh(pairs):
        return token_weights([n for n, _ in pairs], mode, left_out_n=[out for _, out in pairs], max_length=9)

    before = dict(zip(range(len(pairs)), weigh(pairs), strict=True))
    shuffled = [*enumerate(pairs), (-1, (0, False)), (-2, (7, True))]
    random.shuffle(shuffled)
    after = dict(zip([i for i, _ in shuffled], weigh([pair for _, pair in shuffled]), strict=True))
    assert after == before | {-1: 0.0, -2: 0.0}


@given(sequences, st.sampled_from(MODES[:2]))
def test_the_means_weigh_one_in_all(pairs, mode):
    lengths, out = np.array([n for n, _ in pairs], int), np.array([out for _, out in pairs], bool)
    total = float((token_weights(lengths, mode, left_out_n=out) * lengths).sum())
    assert total == pytest.approx(1.0 if (lengths[~out] > 0).any() else 0.0, abs=1e-6)


def test_bad_requests():
    with pytest.raises(UsageError, match="did you mean 'token-mean'"):
        token_weights([1], "token_mean")
    with pytest.raises(UsageError, match="give max_length"):
        token_weights([1], "seq-mean-token-sum-norm")
    with pytest.raises(UsageError, match="max_length 3 is below the longest response of the batch \\(4 tokens\\)"):
        token_weights([4], "seq-mean-token-sum-norm", max_length=3)


def test_high_entropy_keeps_the_top_share_of_the_batch():
    """Ten tokens, a fifth is kept: the two highest, wherever they are."""
    entropy = [np.array([0.1, 0.9, 0.2, 0.3]), np.array([]), np.array([0.4, 1.0, 0.5, 0.6, 0.7, 0.8])]
    assert [m.tolist() for m in high_entropy(entropy, 0.2)] == [[0, 1, 0, 0], [], [0, 1, 0, 0, 0, 0]]


def test_high_entropy_of_left_out_sequences_does_not_count():
    entropy = [np.array([0.1, 0.2]), np.array([5.0, 6.0])]
    assert high_entropy(entropy, 0.5, left_out_n=[False, True])[0].tolist() == [0, 1]
    assert high_entropy(entropy, 0.5)[0].tolist() == [0, 0]


def test_high_entropy_at_its_ends():
    entropy = [np.array([0.1, np.nan])]
    assert high_entropy(entropy, 1.0)[0].tolist() == [1, 1]
    assert high_entropy([], 0.5) == []
    with pytest.raises(UsageError, match=r"engine\.capture\.entropy"):
        high_entropy(entropy, 0.5)
    with pytest.raises(UsageError, match="share 0"):
        high_entropy(entropy, 0)
