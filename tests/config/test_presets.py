"""Every preset is a model that exists, of the size that its makers state."""

import math
import subprocess
import sys

import pytest

from noisyjax.config import ModelPreset, load, packaged_configs
from noisyjax.errors import UsageError
from noisyjax.models import ModelError, param_specs

FOLDER = "models/presets/"
# Numbers of the published files; for the 120B model that of its model card. Experts packed in MXFP4 count as numbers.
TOTALS = {
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-4B-Thinking-2507": 4_022_468_096,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-30B-A3B-Thinking-2507": 30_532_122_624,
    "DeepSeek-R1-Distill-Llama-8B": 8_030_261_248,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}


def test_every_preset_has_a_known_size():
    assert {name.removeprefix(FOLDER) for name in packaged_configs() if name.startswith(FOLDER)} == set(TOTALS)


@pytest.mark.parametrize("name", TOTALS)
def test_presets_are_models_of_the_size_their_makers_state(name):
    preset = load(ModelPreset, name)
    assert preset.hub.endswith(f"/{name}")
    cfg = preset.decoder_config()
    assert sum(math.prod(spec.shape) for spec in param_specs(cfg).values()) == TOTALS[name]
    assert cfg.dtype == "bfloat16"
    assert preset.sampling.temperature > 0


@pytest.mark.parametrize(
    ("name", "theta", "window"),
    [
        ("Qwen3-4B", 1e6, 40960),
        ("Qwen3-4B-Thinking-2507", 5e6, 262144),
        ("Qwen3-30B-A3B-Thinking-2507", 1e7, 262144),
        ("DeepSeek-R1-Distill-Llama-8B", 5e5, 131072),
        ("gpt-oss-120b", 150_000, 131072),
    ],
)
def test_what_their_sizes_do_not_show(name, theta, window):
    cfg = load(ModelPreset, name).decoder_config()
    assert (cfg.rope.theta, cfg.max_positions) == (theta, window)


def test_scaled_rotations_are_read():
    llama, oss = (load(ModelPreset, name).decoder_config() for name in ("DeepSeek-R1-Distill-Llama-8B", "gpt-oss-20b"))
    assert (llama.rope.kind, llama.rope.factor, llama.rope.original_max_positions) == ("llama3", 8.0, 8192)
    assert (oss.rope.kind, oss.rope.truncate, oss.windows[:3]) == ("yarn", False, (128, None, 128))


def test_packed_experts_take_a_quarter():
    preset = load(ModelPreset, "gpt-oss-20b")

    def expert_bytes(specs):
        sizes = {path: math.prod(s.shape) * (1 if s.packed else 2) for path, s in specs.items() if ".moe." in path}
        return sum(n for path, n in sizes.items() if "_bias_" not in path and "router" not in path)

    packed = expert_bytes(param_specs(preset.decoder_config(quantised=True)))
    assert packed / expert_bytes(param_specs(preset.decoder_config())) == 17 / 64
    assert load(ModelPreset, "Qwen3-4B").decoder_config(quantised=True).quantised is None


def test_a_preset_is_read_without_jax():
    code = (
        "import sys; from noisyjax.config import ModelPreset, load; load(ModelPreset, 'Qwen3-4B'); "
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_no_preset():
    with pytest.raises(UsageError, match="Qwen3-4B"):
        load(ModelPreset, "Qwen3-4")
    unknown = load(ModelPreset, "Qwen3-4B").model_copy(update={"architecture": {"model_type": "mamba"}})
    with pytest.raises(ModelError, match="mamba"):
        unknown.decoder_config()
