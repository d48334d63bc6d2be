"""Log-probabilities by slices of the vocabulary against the whole softmax, and the memory they do not take.

Legend: N targets, D model, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.models.head import target_logprobs

N, D, V = 7, 5, 24


def dense(x_nd, w_vd, target_n, valid_v, temperature):
    logits = x_nd @ w_vd.T / temperature
    logp = jax.nn.log_softmax(jnp.where(valid_v, logits, -1e30), -1)
    entropy = -jnp.where(valid_v, jnp.exp(logp) * logp, 0.0).sum(-1)
    return jnp.take_along_axis(logp, target_n[:, None], -1)[:, 0], entropy


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=shape) * 2, jnp.float32) for shape in ((N, D), (V, D)))
    valid = jnp.asarray(rng.random(V) < 0.7).at[jnp.asarray([0, 11, 23])].set(True)
    target = jnp.asarray([0, 23, 11, *rng.choice(np.flatnonzero(valid), N - 3)])
    return x, w, target, valid


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("columns", "stripes"), [(None, 1), (24, 1), (7, 1), (1, 1), (5, 2), (3, 4)])
def test_slices_give_the_whole_softmax_and_its_gradient(numbers, columns, stripes, temperature):
    x, w, target, valid = numbers
    pull = jnp.asarray(np.random.default_rng(1).normal(size=(2, N)), jnp.float32)

    def run(function):
        def loss(x, w):
            out = jnp.stack(function(x, w, target, valid, temperature))
            return (out * pull).sum(), out

        (_, out), gradient = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(x, w)
        return out, *gradient

    ours = run(functools.partial(target_logprobs, columns=columns, stripes=stripes))
    for got, expected in zip(ours, run(dense), strict=True):
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_leading_axes_are_kept(numbers):
    x, w, target, _ = numbers
    flat = target_logprobs(x[:6], w, target[:6])
    for got, expected in zip(target_logprobs(x[:6].reshape(2, 3, D), w, target[:6].reshape(2, 3)), flat, strict=True):
        np.testing.assert_array_equal(got, expected.reshape(2, 3))


def test_logits_of_a_thousand_overflow_nothing(numbers):
    x, w, target, _ = numbers
    grads = jax.jit(
        jax.grad(lambda x, w: sum(out.sum() for out in target_logprobs(x * 100, w, target, columns=5)), (0, 1))
    )
    for g in grads(x, w):
        assert np.isfinite(g).all()


def test_no_logits_are_held():
    """151,936 tokens of vocabulary, by the compiler's own account: twice the targets do not cost twice the memory."""

    def bytes_needed(n: int) -> int:
        x, w, target = (jax.ShapeDtypeStruct(s, d) for s, d in (((n, 64), "f4"), ((151_936, 64), "f4"), ((n,), "i4")))
        program = jax.jit(jax.grad(lambda x, w, target: target_logprobs(x, w, target)[0].sum(), (0, 1)))
        return program.lower(x, w, target).compile().memory_analysis().temp_size_in_bytes

    short, long = bytes_needed(8192), bytes_needed(16384)
    assert long < 1.3 * short
    assert long < 8192 * 151_936 * 4 / 10
