"""Mixtures of experts, windows and sinks in training: an update does not depend on how the batch was cut.

With plain gradient descent at rate 1 a parameter's change is its gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from noisyjax.engine.config import MeshConfig
from noisyjax.engine.mesh import open_layout
from noisyjax.models import MoeConfig, UnsupportedConfig, init_params, lora, shardings
from noisyjax.models.sharding import TRAINING
from noisyjax.train.objective.metrics import Total
from noisyjax.train.step.config import UpdateConfig
from noisyjax.train.step.update import Updater

FAMILIES = {
    "qwen3_moe": {
        "family": "qwen3_moe",
        "n_layers": 3,
        "moe": MoeConfig(n_experts=4, top_k=2, d_ff=16, norm_topk=True, dense_layers=(1,)),
    },
    "gpt_oss": {
        "family": "gpt_oss",
        "qk_norm": False,
        "qkv_bias": True,
        "o_bias": True,
        "sinks": True,
        "norm_scale_f32": True,
        "windows": (5, None),
        "moe": MoeConfig(n_experts=4, top_k=2, d_ff=40, norm_topk=True, bias=True, clamp=2.0),
    },
}


def loss(logprob_bp, entropy_bp, rows):
    terms = rows.advantage_bp * jnp.exp(logprob_bp - rows.old_bp / 10) + 0.1 * entropy_bp
    return (rows.weight_bp * terms).sum(), {"loss": Total.of(rows.weight_bp * terms)}


@pytest.fixture(scope="module", params=FAMILIES)
def setting(request, tiny_config, make_groups):
    cfg = tiny_config(**FAMILIES[request.param])
    return cfg, init_params(cfg, 3, stddev=0.3, norm_stddev=0.2), make_groups()


def gradients(setting, layout=None, **config):
    """Gradient by path of one update."""
    cfg, params, groups = setting
    before = {path: np.asarray(x) for path, x in params.items()}
    if layout is not None:
        params = jax.device_put(params, shardings(cfg, layout.mesh, layout.rules))
    how = UpdateConfig(**{"row_tokens": 32, "batch_tokens": 128, **config})
    updater = Updater(cfg, optax.sgd(1.0), loss, how, layout=layout)
    done = updater.update(updater.start(params), [batch.rows for batch in updater.batches(groups)])
    assert bool(done.ok)
    return {path: before[path] - np.asarray(x) for path, x in done.state.params.items()}


@pytest.fixture(scope="module")
def reference(setting):
    found = gradients(setting)
    assert found.keys() == setting[1].keys()
    for path, gradient in found.items():
        assert np.all(np.isfinite(gradient)), path
        assert np.abs(gradient).max() > (1e-4 if "router" in path or "k_bias" in path else 1e-3), path
    return found


@pytest.mark.parametrize(
    "case",
    [
        {"share": False, "pack": False, "row_tokens": 16, "batch_tokens": 64},
        {"batch_tokens": 32},
        {"remat": "full"},
        {"remat": "none"},
    ],
    ids=["unshared", "in three", "all made again", "all kept"],
)
def test_the_update_does_not_depend_on_the_cut(setting, reference, case):
    for path, gradient in gradients(setting, **case).items():
        np.testing.assert_allclose(gradient, reference[path], atol=2e-5, err_msg=path)


@pytest.mark.slow
def test_eight_devices_give_the_update_of_one(setting, reference):
    layout = open_layout(MeshConfig(fsdp=2, expert=2, tensor=2), setting[0], TRAINING)
    for path, gradient in gradients(setting, layout).items():
        np.testing.assert_allclose(gradient, reference[path], atol=2e-5, err_msg=path)


def test_experts_get_no_adapters(tiny_config):
    cfg = tiny_config(**FAMILIES["gpt_oss"])
    with pytest.raises(UnsupportedConfig, match=r"no projection gate, up for an adapter; it has q, k, v, o$"):
        lora.adapter_specs(cfg, 2, ["q", "gate", "up"])
    assert len(lora.adapter_specs(cfg, 2, ["q", "o"])) == 4
