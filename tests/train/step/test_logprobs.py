"""Log-probabilities of targets: against one dense forward pass per response, and with every way to lay out rows.

Legend: B rows, T tokens, P targets, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.models import init_params
from noisyjax.models.decoder import Decoder, forward
from noisyjax.train.step.logprobs import target_logprobs
from noisyjax.train.step.rows import micro_batches

LAYOUTS = {
    "shared, packed": {},
    "shared": {"pack": False},
    "unshared": {"pack": False, "share": False},
    "unshared, packed, other split": {"share": False, "batch_tokens": 32},
}
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def setting(tiny_config, make_groups):
    cfg = tiny_config()
    return cfg, init_params(cfg, 3, stddev=0.3, norm_stddev=0.2), make_groups()


@functools.partial(jax.jit, static_argnums=(0, 3))
def loss_and_gradient(cfg, params, rows, remat="none"):
    """A loss that reads advantages, log-probabilities and entropies, with its gradient."""

    def loss(params):
        logprob, entropy = target_logprobs(Decoder(cfg, params), rows, TEMPERATURE, jnp.arange(64) < 62, remat=remat)
        terms = rows.advantage_bp * jnp.exp(logprob - rows.old_bp / 10) + 0.3 * entropy
        return (rows.weight_bp * terms).sum(), (logprob, entropy)

    return jax.value_and_grad(loss, has_aux=True)(params)


def whole(setting, remat="none", **layout):
    """Loss, gradient, and {response: (log-probabilities, entropies)} over all micro-batches of a layout."""
    cfg, params, groups = setting
    total, gradient, values = 0.0, None, {}
    for batch in micro_batches(groups, **{"row_tokens": 32, "batch_tokens": 96, **layout}):
        (loss, outs), g = loss_and_gradient(cfg, params, batch.rows, remat)
        total += float(loss)
        gradient = g if gradient is None else jax.tree.map(jnp.add, gradient, g)
        logprob, entropy = (batch.per_response(x) for x in outs)
        values |= {key: (logprob[key], entropy[key]) for key in logprob}
    return total, gradient, values


@pytest.fixture(scope="module")
def reference(setting):
    return whole(setting)


def test_values_are_those_of_a_dense_pass_over_each_response(setting, reference):
    cfg, params, groups = setting
    dense = jax.jit(lambda ids: forward(Decoder(cfg, params), ids))
    seen = reference[2]
    for group in groups:
        for number, response in enumerate(group.responses):
            ids = [*group.prompt, *response.ids]
            padded = jnp.asarray([ids + [0] * (20 - len(ids))])
            logits = np.asarray(dense(padded), np.float64)[0, len(group.prompt) - 1 : len(ids) - 1, :62] / TEMPERATURE
            logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            logprob, entropy = seen.pop((group.id, number))
            picked = [row[token] if token < 62 else None for row, token in zip(logp, response.ids, strict=True)]
            for got, expected in zip(logprob, picked, strict=True):
                assert expected is None or abs(got - expected) < 2e-5
            np.testing.assert_allclose(entropy, -(np.exp(logp) * logp).sum(-1), atol=2e-5)
    assert not seen


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_does_not_depend_on_the_layout(setting, reference, layout):
    loss, gradient, _ = whole(setting, **LAYOUTS[layout])
    assert loss == pytest.approx(reference[0], abs=1e-5)
    for path, g in gradient.items():
        assert np.abs(g).max() > 1e-4, path
        np.testing.assert_allclose(g, reference[1][path], atol=1e-5, err_msg=path)


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_the_gradient_does_not_depend_on_what_is_kept(setting, reference, remat):
    for path, g in whole(setting, remat)[1].items():
        np.testing.assert_allclose(g, reference[1][path], atol=1e-5, err_msg=path)


def test_a_response_does_not_see_its_siblings(setting):
    """Another token in the first response changes nothing about the second."""
    cfg, params, groups = setting
    (batch, *_) = micro_batches(groups[:1], row_tokens=48, batch_tokens=48)
    rows = batch.rows
    at = int(np.flatnonzero(rows.segment_bt[0] == 2)[0])
    ids = rows.ids_bt.copy()
    ids[0, at] = (ids[0, at] + 1) % 64
    run = jax.jit(lambda ids: Decoder(cfg, params).hidden(ids, rows.pos_bt, rows.segment_bt, rows.parent_bt))
    before, after = np.asarray(run(rows.ids_bt)), np.asarray(run(ids))
    changed = np.abs(after - before).max(-1)[0] > 0
    np.testing.assert_array_equal(np.flatnonzero(changed), np.flatnonzero(rows.segment_bt[0] == 2))
