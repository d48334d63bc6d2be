"""Adapters: nothing at first, then what merging them gives, on every projection and in every family."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from noisyjax.models import PRESETS, decoder, init_params, lora
from noisyjax.models.decoder import Decoder

IDS_BT = jnp.asarray(np.random.default_rng(0).integers(0, 64, (2, 12)))


@functools.partial(jax.jit, static_argnums=0)
def _forward(graph, state):
    return decoder.forward(nnx.merge(graph, state), IDS_BT)


def logits(cfg, params) -> np.ndarray:
    return np.asarray(_forward(*nnx.split(Decoder(cfg, params))))


def randomised(adapters):
    """Both halves random, so that they do something."""
    rng = np.random.default_rng(1)
    return {path: jnp.asarray(rng.normal(size=x.shape) * 0.3, jnp.float32) for path, x in adapters.items()}


def test_shapes_by_hand(tiny):
    specs = lora.adapter_specs(tiny(), 3, ["q", "o", "down"])
    assert {path: spec.shape for path, spec in specs.items()} == {
        "layers.attn.q_nhd.lora_a_rd": (2, 3, 24),
        "layers.attn.q_nhd.lora_b_nhr": (2, 4, 8, 3),
        "layers.attn.o_dnh.lora_a_rnh": (2, 3, 4, 8),
        "layers.attn.o_dnh.lora_b_dr": (2, 24, 3),
        "layers.mlp.down_df.lora_a_rf": (2, 3, 40),
        "layers.mlp.down_df.lora_b_dr": (2, 24, 3),
    }


@pytest.mark.parametrize("changes", [{"family": "qwen3"}, {"family": "qwen2", "mlp_bias": True, "o_bias": True}])
def test_attached_adapters_compute_what_merged_ones_do(tiny, changes):
    cfg = tiny(**changes)
    params = init_params(cfg, 3, stddev=0.3, norm_stddev=0.2)
    fresh = lora.init_adapters(cfg, 3, lora.TARGETS)
    base = logits(cfg, params)
    np.testing.assert_array_equal(logits(cfg, lora.attach(params, fresh, 2.0)), base)
    adapters = randomised(fresh)
    attached = logits(cfg, lora.attach(params, adapters, 0.5))
    merged = lora.merge(params, adapters, 0.5)
    assert merged.keys() == params.keys()
    np.testing.assert_allclose(attached, logits(cfg, merged), atol=1e-4)
    assert np.abs(attached - base).max() > 0.5
    assert np.abs(attached - logits(cfg, lora.merge(params, adapters, 1.0))).max() > 0.1


@pytest.mark.parametrize("target", lora.TARGETS)
def test_each_projection_alone(tiny, target):
    """The merged product by the textbook, on flat matrices, and nothing else changed."""
    cfg = tiny()
    params = init_params(cfg, 3)
    adapters = randomised(lora.init_adapters(cfg, 3, [target]))
    merged = lora.merge(params, adapters, 2.0)
    path = lora.TARGETS[target]
    a, b = (np.asarray(adapters[name], np.float64) for name in lora.adapter_paths(path))
    for layer in range(2):
        delta = b[layer].reshape(-1, 3) @ a[layer].reshape(3, -1)
        expected = np.asarray(params[path], np.float64)[layer] + 2.0 * delta.reshape(params[path].shape[1:])
        np.testing.assert_allclose(merged[path][layer], expected, atol=1e-5)
    assert all(merged[other] is params[other] for other in params if other != path)


def test_adapters_are_cut_as_their_projections(tiny):
    mesh = Mesh(np.asarray(jax.devices()).reshape(4, 2), ("fsdp", "tensor"))
    adapters = lora.init_adapters(tiny(), 3, ["q", "down"], 5, mesh, PRESETS["fsdp_tensor"])
    specs = {path.split(".", 2)[2]: x.sharding.spec for path, x in adapters.items()}
    assert specs == {
        "q_nhd.lora_a_rd": PartitionSpec(None, None, "fsdp"),
        "q_nhd.lora_b_nhr": PartitionSpec(None, "tensor", None, None),
        "down_df.lora_a_rf": PartitionSpec(None, None, "tensor"),
        "down_df.lora_b_dr": PartitionSpec(None, "fsdp", None),
    }
    for path, x in lora.init_adapters(tiny(), 3, ["q", "down"], 5).items():
        np.testing.assert_array_equal(x, adapters[path])


def test_a_list_of_layers_takes_no_adapters(tiny):
    cfg = tiny()
    params = lora.attach(init_params(cfg), lora.init_adapters(cfg, 3, ["q"]), 1.0)
    with pytest.raises(ValueError, match="merge them first"):
        Decoder(cfg, params, stacked=False)
