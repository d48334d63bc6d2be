"""Adapters as files: names and shapes by hand, and the same logits through peft itself."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from noisyjax.models import ModelError, UnsupportedConfig, init_params, lora, save, save_adapter
from noisyjax.models.decoder import Decoder, forward
from noisyjax.models.families.forms import Form

RANK, ALPHA = 3, 6.0


def random_adapters(cfg, targets):
    """Both halves random, so that they do something."""
    rng = np.random.default_rng(1)
    specs = lora.adapter_specs(cfg, RANK, targets)
    return {path: jnp.asarray(rng.normal(size=spec.shape) * 0.3, jnp.float32) for path, spec in specs.items()}


def test_names_and_shapes_by_hand(tiny, tmp_path):
    cfg = tiny()
    adapters = random_adapters(cfg, ["q", "o", "down"])
    folder = save_adapter(adapters, cfg, tmp_path / "a", alpha=ALPHA, base="some/base")
    tensors = load_file(folder / "adapter_model.safetensors")
    modules = {"self_attn.q_proj": (24, 32), "self_attn.o_proj": (32, 24), "mlp.down_proj": (40, 24)}
    assert {name: x.shape for name, x in tensors.items()} == {
        f"base_model.model.model.layers.{i}.{module}.lora_{half}.weight": shape
        for i in range(2)
        for module, (inputs, outputs) in modules.items()
        for half, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK)))
    }
    b_nhr = np.asarray(adapters["layers.attn.q_nhd.lora_b_nhr"][1])
    written = tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"]
    np.testing.assert_array_equal(written[2 * 8 + 5], b_nhr[2, 5])  # head 2, its number 5
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (RANK, ALPHA, "some/base")
    assert config["target_modules"] == ["down_proj", "o_proj", "q_proj"]
    with pytest.raises(ModelError, match="not an empty folder"):
        save_adapter(adapters, cfg, folder, alpha=ALPHA, base="some/base")


def test_a_projection_inside_a_joined_tensor_is_refused(tiny, tmp_path, monkeypatch):
    cfg = tiny()
    joined = {"layers.mlp.gate_fd": Form("model.layers.{i}.mlp.gate_up_proj.weight", half=0)}
    monkeypatch.setattr("noisyjax.models.formats.peft.file_forms", lambda cfg: joined)
    with pytest.raises(UnsupportedConfig, match=r"mlp.gate_up_proj.weight holds more than one"):
        save_adapter(random_adapters(cfg, ["gate"]), cfg, tmp_path / "a", alpha=ALPHA, base="")
    assert not (tmp_path / "a").exists()


@pytest.mark.parity
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss"])
def test_peft_computes_what_the_merged_model_does(family, tiny, tmp_path):
    """gpt_oss: its experts take no adapters, its attention does."""
    import torch
    from peft import AutoPeftModelForCausalLM

    cfg = tiny(family)
    targets = list(lora.TARGETS) if family == "qwen3" else ["q", "v", "o"]
    params, adapters = init_params(cfg, 3, stddev=0.2), random_adapters(cfg, targets)
    save(params, cfg, tmp_path / "base")
    folder = save_adapter(adapters, cfg, tmp_path / "a", alpha=ALPHA, base=str(tmp_path / "base"))
    ids = np.random.default_rng(0).integers(0, cfg.vocab_size, (1, 12))
    ours, base = (
        np.asarray(forward(Decoder(cfg, p), jnp.asarray(ids))) for p in (lora.merge(params, adapters, 2.0), params)
    )
    model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        theirs = model(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert np.abs(base - ours).max() > 0.1
