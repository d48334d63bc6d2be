"""A model folder whose experts are packed: an engine keeps them so, and samples what it would with numbers."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

from noisyjax.engine.config import LocalConfig
from noisyjax.engine.local import LocalEngine
from noisyjax.models import MoeConfig, init_params, param_specs, save


@pytest.fixture(scope="module")
def packed(tmp_path_factory, folder, cfg):
    """Random bytes, with scales that make numbers of about the size of the other weights."""
    moe = MoeConfig(n_experts=6, top_k=2, d_ff=64, norm_topk=True, bias=True, clamp=7.0)
    oss = {"family": "gpt_oss", "qk_norm": False, "qkv_bias": True, "o_bias": True, "sinks": True, "d_ff": 64}
    numbers = dataclasses.replace(cfg, **oss, norm_scale_f32=True, windows=(40, None), moe=moe)
    held = dataclasses.replace(numbers, quantised="mxfp4")
    drawn, rng = init_params(numbers, 5, stddev=0.3, norm_stddev=0.2), np.random.default_rng(0)

    def made(path, spec):
        if not spec.packed:
            return drawn[path]
        low, high = (0, 256) if "_blocks_" in path else (121, 125)
        return jax.numpy.asarray(rng.integers(low, high, spec.shape, np.uint8))

    out = tmp_path_factory.mktemp("packed") / "model"
    save({path: made(path, spec) for path, spec in param_specs(held).items()}, held, out)
    for file in folder.iterdir():
        shutil.copy(file, out)
    return out


def test_an_engine_keeps_experts_packed_and_samples_the_same(packed, make_request):
    requests = [make_request("a", 60, max_tokens=6), make_request("b", 9, max_tokens=6, temperature=1.0)]
    held, said = {}, {}
    for how in ("keep", "dequantise"):
        engine = LocalEngine(LocalConfig(model=packed, quantised=how, dtype="float32", slots=2, chunk=8))
        held[how] = sum(x.nbytes for x in jax.tree.leaves(nnx.split(engine.model)[1]))
        said[how] = {done.request_id: (done.ids, done.logprobs) for done in engine.generate(requests)}
        assert engine.model.cfg.quantised == ("mxfp4" if how == "keep" else None)
        engine.close()
    numbers = 2 * 6 * 3 * 64 * 32  # of experts, in two layers
    assert held["dequantise"] - held["keep"] == numbers * 4 - numbers * 17 // 32
    for name, (ids, logprobs) in said["keep"].items():
        np.testing.assert_array_equal(ids, said["dequantise"][name][0])
        np.testing.assert_array_equal(logprobs, said["dequantise"][name][1])
