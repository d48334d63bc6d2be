"""GGUF files made on the spot, converted and read back: weights, config, tokenizer, refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noisyjax.models import CheckpointMismatch, ModelError, RopeConfig, UnknownArchitecture, convert_gguf, load
from noisyjax.models.families import file_names
from noisyjax.models.params import param_specs

gguf = pytest.importorskip("gguf", reason="needs the `gguf` extra")

BYTES = [chr(b) for b in (*range(33, 127), *range(161, 173), *range(174, 256))]
BYTES += [chr(256 + i) for i in range(256 - len(BYTES))]  # the byte-level alphabet of GPT-2: Ġ is the space
SPECIAL = ["<|im_end|>", "<|endoftext|>", "<｜begin▁of▁sentence｜>"]
MERGES = ["Ġ Ġ", "1 2", "12 3", "Ġ 1", "a b"]
MERGED = ["".join(m.split()) for m in MERGES]
WHOLE = ["ba"]  # in the vocabulary, but no merge leads to it
TOKENS = [*BYTES, *MERGED, *WHOLE, *SPECIAL, "<think>"]
NORMAL, CONTROL, USER = 1, 3, 4
TYPES = [NORMAL] * (len(BYTES) + len(MERGED) + len(WHOLE)) + [CONTROL] * len(SPECIAL) + [USER]
TEMPLATE = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"

NAMES = {  # parameter path -> GGUF name, written down apart from the converter's own table
    "embed.w_vd": "token_embd.weight",
    "final_norm.scale_d": "output_norm.weight",
    "head.w_vd": "output.weight",
    "layers.attn_norm.scale_d": "blk.{i}.attn_norm.weight",
    "layers.attn.q_nhd": "blk.{i}.attn_q.weight",
    "layers.attn.k_khd": "blk.{i}.attn_k.weight",
    "layers.attn.v_khd": "blk.{i}.attn_v.weight",
    "layers.attn.o_dnh": "blk.{i}.attn_output.weight",
    "layers.attn.q_bias_nh": "blk.{i}.attn_q.bias",
    "layers.attn.k_bias_kh": "blk.{i}.attn_k.bias",
    "layers.attn.v_bias_kh": "blk.{i}.attn_v.bias",
    "layers.attn.q_norm.scale_h": "blk.{i}.attn_q_norm.weight",
    "layers.attn.k_norm.scale_h": "blk.{i}.attn_k_norm.weight",
    "layers.mlp_norm.scale_d": "blk.{i}.ffn_norm.weight",
    "layers.mlp.gate_fd": "blk.{i}.ffn_gate.weight",
    "layers.mlp.up_fd": "blk.{i}.ffn_up.weight",
    "layers.mlp.down_df": "blk.{i}.ffn_down.weight",
}


def llama_cpp_order(w: np.ndarray, heads: int) -> np.ndarray:
    """The row order of llama.cpp's Llama files: the halves of every head interleaved."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write_gguf(
    path: Path, cfg: Any, params: dict, quantise: Any = None, drop: tuple = (), extra: Any = None, **meta: Any
) -> Path:
    """A GGUF file of `params`; matrices as `quantise`; `meta` replaces tokenizer fields (None removes one)."""
    writer = gguf.GGUFWriter(path, cfg.family)
    writer.add_block_count(cfg.n_layers)
    writer.add_context_length(cfg.max_positions)
    writer.add_embedding_length(cfg.d_model)
    writer.add_feed_forward_length(cfg.d_ff)
    writer.add_head_count(cfg.n_heads)
    writer.add_head_count_kv(cfg.n_kv_heads)
    writer.add_key_length(cfg.head_dim)
    writer.add_value_length(cfg.head_dim)
    writer.add_layer_norm_rms_eps(cfg.norm_eps)
    writer.add_rope_freq_base(cfg.rope.theta)
    if cfg.rope.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(cfg.rope.factor)
    fields = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": TOKENS,
        "token_type": TYPES,
        "merges": MERGES,
        "eos_token_id": TOKENS.index("<|im_end|>"),
        "padding_token_id": TOKENS.index("<|endoftext|>"),
        "bos_token_id": TOKENS.index(SPECIAL[2]),
        "add_bos_token": False,
        **meta,
    }
    for key, value in fields.items():
        if value is not None:
            add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
            add[type(value)](f"tokenizer.ggml.{key}", value)
    writer.add_chat_template(TEMPLATE)
    for name, weight in {**tensors_of(cfg, params), **(extra or {})}.items():
        if name in drop:
            continue
        if quantise is not None and weight.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(weight, quantise), raw_dtype=quantise)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(cfg: Any, params: dict) -> dict[str, np.ndarray]:
    specs, heads = param_specs(cfg), {"q": cfg.n_heads, "k": cfg.n_kv_heads}
    tensors = {}
    for path, names in file_names(cfg).items():
        for i in range(len(names)):
            w = np.asarray(params[path][i] if specs[path].stacked else params[path]).reshape(specs[path].file_shape)
            part = path.removeprefix("layers.attn.")[0]
            if cfg.family == "llama" and path in ("layers.attn.q_nhd", "layers.attn.k_khd"):
                w = llama_cpp_order(w, heads[part])
            tensors[NAMES[path].format(i=i)] = w
    return tensors


@pytest.fixture
def model(tiny, random_params):
    """`model(family, **changes)`: (config, parameters) whose vocabulary is the little one above."""

    def make(family: str = "qwen3", **changes: Any) -> tuple[Any, dict]:
        cfg = tiny(family, **{"vocab_size": len(TOKENS), "d_model": 32, "d_ff": 64, **changes})
        return cfg, random_params(cfg)

    return make


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"norm_eps": 1e-5, "rope": RopeConfig(100_000.0)}),
        ("llama", {"tie_embeddings": True, "rope": RopeConfig(1e4, "linear", 4.0)}),
        ("qwen2", {"tie_embeddings": True}),
        ("qwen3", {"rope": RopeConfig(1_000_000.0)}),
    ],
)
def test_weights_and_config(model, tmp_path, family, changes):
    cfg, params = model(family, **changes)
    convert_gguf(write_gguf(tmp_path / "m.gguf", cfg, params), tmp_path / "out")
    back = load(tmp_path / "out")
    assert back.cfg == cfg
    for path, array in params.items():
        np.testing.assert_array_equal(np.asarray(back.params[path]), np.asarray(array), err_msg=path)


def test_quantised_weights_are_within_their_rounding(model, tmp_path):
    cfg, params = model("llama")
    file = write_gguf(tmp_path / "m.gguf", cfg, params, quantise=gguf.GGMLQuantizationType.Q8_0)
    convert_gguf(file, tmp_path / "out", dtype="bfloat16")
    back = load(tmp_path / "out", dtype="float32")
    assert load(tmp_path / "out").cfg.dtype == "bfloat16"
    for path, array in params.items():
        want = np.asarray(array)
        # Q8_0 rounds to 1/254 of a block's largest number, bf16 to 1/256 of the number itself.
        np.testing.assert_allclose(np.asarray(back.params[path]), want, atol=np.abs(want).max() * 2 / 254, err_msg=path)


def llama3_divisors(head_dim: int, theta: float) -> np.ndarray:
    """Written from the Llama 3.1 rule, one frequency at a time."""
    out = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (i / head_dim)
        if wavelength < 8192 / 4:
            out.append(1.0)
        elif wavelength > 8192:
            out.append(8.0)
        else:
            smooth = (8192 / wavelength - 1) / 3
            out.append(1 / ((1 - smooth) / 8 + smooth))
    return np.float32(out)


def test_llama3_scaling_is_recovered_from_its_divisors(model, tmp_path):
    rope = RopeConfig(500_000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    cfg, params = model("llama", rope=rope, head_dim=32)
    divisors = llama3_divisors(32, 500_000.0)
    assert len(set(divisors.tolist())) > 2  # a blended one is among them
    file = write_gguf(tmp_path / "m.gguf", cfg, params, extra={"rope_freqs.weight": divisors})
    convert_gguf(file, tmp_path / "out")
    assert load(tmp_path / "out").cfg.rope == rope

    odd = {"rope_freqs.weight": divisors * np.linspace(1, 1.2, 16, dtype=np.float32)}
    with pytest.raises(ModelError, match="not those of llama3 scaling"):
        convert_gguf(write_gguf(tmp_path / "odd.gguf", cfg, params, extra=odd), tmp_path / "odd")


def tokenizer_for(model, tmp_path: Path, **meta: Any) -> Any:
    from transformers import AutoTokenizer

    convert_gguf(write_gguf(tmp_path / "m.gguf", *model(), **meta), tmp_path / "out")
    return AutoTokenizer.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("qwen2", "ab 123", ["ab", "Ġ", "1", "2", "3"]),  # every digit alone
        ("llama-bpe", "ab 123", ["ab", "Ġ", "123"]),  # up to three digits together
        ("gpt-2", "ab 13", ["ab", "Ġ1", "3"]),  # a space goes with the number
        ("qwen2", "ba", ["b", "a"]),
        ("llama-bpe", "ba", ["ba"]),  # a whole word of the vocabulary is taken as it is
        ("smollm", "ab 123", ["ab", "Ġ", "1", "2", "3"]),
        ("smollm", "a  1", ["a", "ĠĠ", "1"]),  # digits are cut off first, so both spaces stay together
        ("gpt-2", "a  1", ["a", "Ġ", "Ġ1"]),
    ],
)
def test_text_is_cut_as_the_file_says(model, tmp_path, pre, text, pieces):
    tokenizer = tokenizer_for(model, tmp_path, pre=pre, add_bos_token=False)
    ids = tokenizer(text).input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert [TOKENS[i] for i in ids] == pieces  # ids are the file's own
    assert tokenizer.decode(ids) == text


def test_special_tokens_template_and_stops(model, tmp_path):
    tokenizer = tokenizer_for(model, tmp_path, eot_token_id=TOKENS.index("<|endoftext|>"))
    for token in (*SPECIAL, "<think>"):
        assert tokenizer.encode(token) == [TOKENS.index(token)]
    text = tokenizer.decode(tokenizer.encode("a<|im_end|><think>"), skip_special_tokens=True)
    assert text == "a<think>"  # user-defined tokens are text, control tokens are not
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    assert tokenizer.chat_template == TEMPLATE
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], return_dict=False)
    assert [TOKENS[i] for i in chat] == ["ab", "<|im_end|>"]
    stops = json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"]
    assert [TOKENS[i] for i in stops] == ["<|im_end|>", "<|endoftext|>"]


@pytest.mark.parametrize(
    ("meta", "count"),
    [
        ({"add_bos_token": True}, 1),
        ({"add_bos_token": False}, 0),
        ({"add_bos_token": None, "pre": "llama-bpe"}, 1),  # Llama 3 adds it unless told otherwise
        ({"add_bos_token": None}, 0),
    ],
)
def test_bos(model, tmp_path, meta, count):
    tokenizer = tokenizer_for(model, tmp_path, **meta)
    assert tokenizer.encode("ab").count(TOKENS.index(SPECIAL[2])) == count
    assert SPECIAL[2] not in tokenizer.decode(tokenizer.encode("ab", add_special_tokens=False))


def test_a_sentencepiece_vocabulary(model, tmp_path):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    scores = [0.0] * 259 + [-9.0, -8.0, -7.0, -3.0, -2.0, -1.0]
    cfg, params = model("llama", vocab_size=len(pieces))
    kinds = [2, 3, 3] + [6] * 256 + [1] * 6
    meta = {"model": "llama", "pre": None, "tokens": pieces, "token_type": kinds, "scores": scores, "merges": None}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "padding_token_id": None}
    file = write_gguf(tmp_path / "m.gguf", cfg, params, **meta, **ids, add_bos_token=None)
    convert_gguf(file, tmp_path / "out")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_ids_to_tokens(tokenizer("ab ab").input_ids) == ["<s>", "▁ab", "▁ab"]
    assert tokenizer.decode(tokenizer("ab ab").input_ids, skip_special_tokens=True) == "ab ab"


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"pre": "falcon"}, ["pre-tokenizer 'falcon'", "qwen2", "smollm"]),
        ({"model": "rwkv"}, ["tokenizer model 'rwkv'", "gpt2"]),
        ({"tokens": None}, ["no tokenizer"]),
        ({"bos_token_id": None, "add_bos_token": True}, ["BOS"]),
    ],
)
def test_a_tokenizer_that_would_come_out_wrong_is_refused(model, tmp_path, meta, words):
    file = write_gguf(tmp_path / "m.gguf", *model(), **meta)
    with pytest.raises(ModelError) as caught:
        convert_gguf(file, tmp_path / "out")
    assert all(word in str(caught.value) for word in words)
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_files_that_do_not_fit(model, tmp_path):
    cfg, params = model()
    file = write_gguf(
        tmp_path / "m.gguf", cfg, params, drop=("blk.1.ffn_up.weight",), extra={"odd": np.ones(32, np.float32)}
    )
    with pytest.raises(CheckpointMismatch) as caught:
        convert_gguf(file, tmp_path / "out")
    assert caught.value.mismatch.missing == ("model.layers.1.mlp.up_proj.weight",)
    assert caught.value.mismatch.unexpected == ("odd",)

    (tmp_path / "text.gguf").write_text("this is no such file, only some words that go on for a while")
    with pytest.raises(ModelError, match=r"text\.gguf is not a GGUF file"):
        convert_gguf(tmp_path / "text.gguf", tmp_path / "out")
    with pytest.raises(ModelError, match="no file"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "out")
    with pytest.raises(ModelError, match="float32, bfloat16"):
        convert_gguf(file, tmp_path / "out", dtype="int8")

    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(UnknownArchitecture, match=r"'mamba'; known: llama, qwen2, qwen3"):
        convert_gguf(tmp_path / "other.gguf", tmp_path / "out")


def test_without_the_package_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"noisyjax\[gguf\]"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")


def test_no_torch_is_needed(model, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", *model())
    code = "import sys; sys.modules['torch'] = None; from noisyjax import models; models.convert_gguf(*sys.argv[1:])"
    repo = Path(__file__).resolve().parents[3]
    env = {**os.environ, "PYTHONPATH": str(repo)}
    subprocess.run([sys.executable, "-c", code, str(file), str(tmp_path / "out")], cwd=repo, env=env, check=True)
    assert (tmp_path / "out/tokenizer.json").exists()
