"""The decoder's own promises: two layouts, packed sequences, and the log-probabilities a trainer reads.

Agreement with transformers is in test_parity.py (live) and test_golden.py (committed numbers).
Legend: B batch, T length, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from noisyjax.models import MoeConfig, decoder, init_params
from noisyjax.models.decoder import Decoder, token_logprobs

MIXED = MoeConfig(n_experts=4, top_k=2, d_ff=16, norm_topk=False, dense_layers=(0, 3))
WIDE = {"stddev": 0.3, "norm_stddev": 0.2}  # logits that differ by several units


@functools.partial(jax.jit, static_argnums=0)
def _forward(graph, state, ids_bt, pos_bt, segment_bt):
    return decoder.forward(nnx.merge(graph, state), ids_bt, pos_bt, segment_bt)


def forward(model, ids_bt, pos_bt=None, segment_bt=None) -> np.ndarray:
    """`decoder.forward`, compiled once per model layout and shape."""
    return np.asarray(_forward(*nnx.split(model), ids_bt, pos_bt, segment_bt))


@pytest.fixture(scope="module")
def ids_bt():
    return jnp.asarray(np.random.default_rng(0).integers(0, 64, (2, 20)))


@pytest.fixture
def make(tiny):
    def make(stacked: bool = True, **changes) -> Decoder:
        cfg = tiny(**changes)
        return Decoder(cfg, init_params(cfg, 3, **WIDE), stacked=stacked)

    return make


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"family": "qwen2", "tie_embeddings": True},
        {"windows": (4, 4)},
        {"windows": (4, None)},
        {"family": "gpt_oss"},
        {"family": "qwen3_moe", "windows": (4, None)},
        {"family": "qwen3_moe", "n_layers": 5, "windows": (4, None, None, 4, None), "moe": MIXED},
    ],
)
def test_stacked_and_unstacked_layers_are_one_model(make, ids_bt, changes):
    stacked, loop = (forward(make(stacked, **changes), ids_bt) for stacked in (True, False))
    assert stacked.dtype == jnp.float32
    assert np.abs(stacked).max() > 1
    np.testing.assert_allclose(stacked, loop, atol=2e-5)


def test_layers_may_have_different_windows(make, ids_bt):
    mixed, full = (forward(make(False, windows=w), ids_bt) for w in ((4, None), None))
    np.testing.assert_allclose(mixed[:, :4], full[:, :4], atol=2e-5)  # the window is not full yet
    assert np.abs(mixed[:, 6:] - full[:, 6:]).max() > 1e-2


def test_a_token_sees_nothing_after_it(make, ids_bt):
    model = make()
    changed = forward(model, ids_bt.at[:, 12:].set(7))
    np.testing.assert_allclose(changed[:, :12], forward(model, ids_bt)[:, :12], atol=1e-6)


def test_packed_sequences_are_as_if_alone(make, ids_bt):
    model = make()
    segment = jnp.asarray([[1] * 8 + [2] * 9 + [0] * 3] * 2)
    pos = jnp.asarray([[*range(8), *range(9), 0, 0, 0]] * 2)
    packed = forward(model, ids_bt, pos, segment)
    np.testing.assert_allclose(packed[:, :8], forward(model, ids_bt[:, :8]), atol=2e-5)
    np.testing.assert_allclose(packed[:, 8:17], forward(model, ids_bt[:, 8:17]), atol=2e-5)
    assert np.isfinite(packed).all()
    other_pad = forward(model, ids_bt.at[:, 17:].set(1), pos, segment)
    np.testing.assert_array_equal(other_pad[:, :17], packed[:, :17])


def test_only_distances_between_positions_matter(make, ids_bt):
    model = make()
    pos_bt = jnp.broadcast_to(jnp.arange(20), (2, 20))
    near, far, stretched = (forward(model, ids_bt, pos) for pos in (pos_bt, pos_bt + 300, 2 * pos_bt))
    np.testing.assert_allclose(far, near, atol=2e-3)
    assert np.abs(stretched - near).max() > 1e-2


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs(make, ids_bt, temperature):
    model = make()
    valid_v = jnp.arange(64) < 60
    ids_bt = ids_bt % 60
    logits = np.asarray(forward(model, ids_bt), np.float64)[:, :-1, :60] / temperature
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(expected, np.asarray(ids_bt)[:, 1:, None], -1)[..., 0]
    got = token_logprobs(model, ids_bt, valid_v, temperature)
    assert got.shape == (2, 19)
    np.testing.assert_allclose(got, picked, atol=1e-5)
    without_mask = token_logprobs(model, ids_bt, None, temperature)
    assert (without_mask < got - 1e-4).any()  # the removed rows do weigh something


def test_token_logprobs_gradient(make, ids_bt):
    model = make()
    graph, state = nnx.split(model)

    def grads(loss):
        return jax.tree.leaves(jax.jit(jax.grad(lambda state: loss(nnx.merge(graph, state)).sum()))(state))

    def naive(model):
        logp = jax.nn.log_softmax(decoder.forward(model, ids_bt)[:, :-1], -1)
        return jnp.take_along_axis(logp, ids_bt[:, 1:, None], -1)

    for ours, theirs in zip(grads(lambda m: token_logprobs(m, ids_bt)), grads(naive), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)


def test_bfloat16_gives_float32_logits_near_the_float32_ones(tiny, ids_bt):
    cfg = tiny()
    params = init_params(cfg, 3, **WIDE)
    exact = forward(Decoder(cfg, params), ids_bt)
    half = forward(Decoder(cfg, {p: w.astype(jnp.bfloat16) for p, w in params.items()}), ids_bt)
    assert half.dtype == jnp.float32
    assert 1e-4 < np.abs(half - exact).max() < 0.05 * np.abs(exact).max()
