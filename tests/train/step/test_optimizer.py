"""Schedules by hand, and what decays."""

import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.models import init_params
from noisyjax.train.step.config import OptimizerConfig
from noisyjax.train.step.optimizer import decays, learning_rate, optimizer


@pytest.mark.parametrize(
    ("config", "steps", "expected"),
    [
        ({}, 4, [8, 8, 8, 8]),
        ({"schedule": "linear"}, 4, [8, 6, 4, 2, 0]),
        ({"schedule": "linear", "final": 0.5}, 4, [8, 7, 6, 5, 4]),
        ({"schedule": "cosine"}, 4, [8, 4 + 4 * 0.5**0.5, 4, 4 - 4 * 0.5**0.5, 0]),
        # Three of ten steps warm up, and the first of them already moves.
        ({"warmup": 0.3}, 10, [2, 4, 6, 8, 8]),
        ({"warmup": 0.5, "schedule": "linear"}, 6, [2, 4, 6, 8, 8 * 2 / 3, 8 / 3, 0]),
    ],
)
def test_schedules(config, steps, expected):
    rate = learning_rate(OptimizerConfig(learning_rate=8.0, **config), steps)
    np.testing.assert_allclose([float(rate(i)) for i in range(len(expected))], expected, rtol=1e-5, atol=1e-6)


def test_norms_and_biases_do_not_decay(tiny_config):
    table = decays(init_params(tiny_config(qkv_bias=True, mlp_bias=True, o_bias=True, tie_embeddings=False)))
    spared = {path for path, decay in table.items() if not decay}
    assert len(table) - len(spared) == 9  # two tables, four projections of attention, three of the mlp
    assert all("norm" in path or "bias" in path for path in spared)


def test_decay_and_clipping_act():
    params = {"layers.attn.q_nhd": jnp.ones((1, 2)), "final_norm.scale_d": jnp.ones(2)}
    still = {path: jnp.zeros_like(x) for path, x in params.items()}
    decay = optimizer(OptimizerConfig(learning_rate=0.5, weight_decay=0.1), 1)
    change, _ = decay.update(still, decay.init(params), params)
    np.testing.assert_allclose(change["layers.attn.q_nhd"], -0.05)
    np.testing.assert_array_equal(change["final_norm.scale_d"], 0)
    # Adam forgets a gradient's scale, but its moments do not.
    steep = {path: jnp.full_like(x, 30.0) for path, x in params.items()}
    clipped = optimizer(OptimizerConfig(clip=1.0), 1)
    state = clipped.update(steep, clipped.init(params), params)[1]
    (moments,) = [s.mu for s in state[1] if hasattr(s, "mu")]
    np.testing.assert_allclose(np.concatenate([x.ravel() for x in moments.values()]), 0.1 * 0.5, rtol=1e-5)
