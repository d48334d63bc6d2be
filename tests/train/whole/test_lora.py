"""Runs that train an adapter: the base stays, the sampler sees the sum, and what is exported is the merged model."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from noisyjax import models
from noisyjax.models import lora
from noisyjax.train.export import export
from noisyjax.train.runs import train_grpo, train_sft
from noisyjax.train.watch.log import read_metrics

ADAPTER = {"rank": 4, "alpha": 8.0}


def merged(folder, adapters):
    base = models.load(folder, dtype="float32").params
    return lora.merge(base, adapters, 2.0)


@pytest.mark.slow
def test_grpo_with_an_adapter_and_kl_against_its_base(grpo, folder, tmp_path):
    config = grpo(lora=ADAPTER, steps=2, loss={"beta": 0.1})
    done = train_grpo(config)
    assert set(done.tree.params) == set(lora.adapter_specs(models.read_config(folder), 4, config.lora.targets))
    lines = read_metrics(config.out)
    assert lines[0]["kl"] == pytest.approx(0.0, abs=1e-5)  # an adapter that changes nothing yet
    assert lines[1]["kl"] > 1e-7
    # The sampler has the merged weights, the trainer adds the product: they agree.
    assert all(line["mismatch/abs/max"] < 1e-4 for line in lines)
    list(export(config.out, tmp_path / "exported"))
    written = models.load(tmp_path / "exported", dtype="float32").params
    for path, x in merged(folder, done.tree.params).items():
        np.testing.assert_allclose(np.asarray(written[path]), np.asarray(x), atol=1e-6, err_msg=path)


def test_sft_with_an_adapter_goes_on_exactly(sft, folder, tmp_path):
    chosen = {**ADAPTER, "targets": ["q", "down"]}
    straight = train_sft(sft("straight", lora=chosen, steps=4))
    train_sft(sft("parts", lora=chosen, steps=2))
    resumed = train_sft(sft("parts", lora=chosen, steps=4))
    jax.tree.map(np.testing.assert_array_equal, straight.tree.params, resumed.tree.params)
    assert any(float(np.abs(x).max()) > 0 for path, x in straight.tree.params.items() if ".lora_b_" in path)
    (said,) = export(sft("parts").out, tmp_path / "adapter", adapter=True)
    assert said.startswith("the adapter of step 4")
    assert said.endswith(f"(float32); its base is {folder}")
    written = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    b_ldr = np.asarray(straight.tree.params["layers.mlp.down_df.lora_b_dr"])
    np.testing.assert_array_equal(written["base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"], b_ldr[1])
    assert len(written) == 2 * 2 * 2


@pytest.mark.parity
@pytest.mark.slow
def test_an_adapter_alone_is_checked_in_peft(sft, tmp_path):
    config = sft(steps=2, lora=ADAPTER, optimizer={"learning_rate": 0.1})
    train_sft(config)
    said = list(export(config.out, tmp_path / "adapter", adapter=True, dtype="bfloat16", check=True))
    assert "(bfloat16)" in said[0]
    assert "peft reads it without a missing or unknown name; logits differ by at most" in said[1]
