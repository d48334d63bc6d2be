"""Model folders written and read back: bytes, shards, flags, companions, and every way a folder can be wrong."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from noisyjax.models import PRESETS, CheckpointMismatch, ModelError, UnsupportedConfig, load, save
from noisyjax.models.families import config_to_hf, file_shapes
from noisyjax.models.formats import hf_read
from noisyjax.models.formats.hf_write import atomic_folder, plan_shards

FAMILIES = ("qwen3", "qwen2", "llama", "qwen3_moe", "gpt_oss")


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for path in a:
        assert a[path].dtype == b[path].dtype, path
        assert np.asarray(a[path]).tobytes() == np.asarray(b[path]).tobytes(), path


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()}


def edit_tensors(folder: Path, change) -> None:
    """Rewrite the single weight file of a folder with `change(tensors)` applied."""
    tensors = tensors_of(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_round_trip_keeps_every_byte(tiny, random_params, tmp_path, family, tied, dtype):
    cfg = tiny(family, tie_embeddings=tied, dtype=dtype)
    params = random_params(cfg)
    save(params, cfg, tmp_path / "a")
    back = load(tmp_path / "a")
    assert back.cfg == cfg
    assert_same(back.params, params)
    assert ("lm_head.weight" in tensors_of(tmp_path / "a")) is not tied

    save(back.params, back.cfg, tmp_path / "b", source=tmp_path / "a")
    assert (tmp_path / "a/config.json").read_bytes() == (tmp_path / "b/config.json").read_bytes()
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_a_folder_that_cannot_be_made_is_one_message(tiny, random_params, tmp_path):
    (tmp_path / "file").write_text("in the way")
    cfg = tiny("llama")
    with pytest.raises(ModelError, match="cannot be made"):
        save(random_params(cfg), cfg, tmp_path / "file" / "model")


def test_biases_of_every_kind_survive(tiny, random_params, tmp_path):
    cfg = tiny("llama", qkv_bias=True, o_bias=True, mlp_bias=True)
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m")
    assert_same(load(tmp_path / "m").params, params)


def test_shards_and_index(tiny, random_params, tmp_path):
    cfg = tiny()
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m", max_shard_bytes=10_000)
    index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text())
    files = sorted(p.name for p in (tmp_path / "m").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert index["weight_map"].keys() == file_shapes(cfg).keys()
    assert sorted(set(index["weight_map"].values())) == files
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in params.values())
    for file in files:
        with safe_open(tmp_path / "m" / file, "np") as handle:
            assert handle.metadata() == {"format": "pt"}
            assert {index["weight_map"][name] for name in handle.keys()} == {file}  # noqa: SIM118
    assert_same(load(tmp_path / "m").params, params)

    (tmp_path / "m" / files[1]).unlink()
    with pytest.raises(ModelError, match=files[1]):
        load(tmp_path / "m")


def test_the_source_spelling_and_companions_are_kept(tiny, random_params, tmp_path):
    cfg = tiny()
    params = random_params(cfg)
    source = tmp_path / "source"
    save(params, cfg, source)
    # As a transformers-5 file has it: rope_parameters, dtype, keys that mean nothing here, another order and indent.
    hf = config_to_hf(cfg)
    theta = hf.pop("rope_theta")
    del hf["rope_scaling"], hf["torch_dtype"]
    hf = {"dtype": "float32", "custom": [1], **hf, "rope_parameters": {"rope_theta": theta, "rope_type": "default"}}
    (source / "config.json").write_text(json.dumps(hf, indent=4))
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (source / "tokenizer.json").write_text("{}")
    (source / "training_args.bin").write_bytes(b"not ours to copy")

    save(params, cfg, tmp_path / "same", source=source)
    assert (tmp_path / "same/config.json").read_bytes() == (source / "config.json").read_bytes()
    copied = {p.name for p in (tmp_path / "same").iterdir()}
    wanted = {"config.json", "chat_template.jinja", "generation_config.json", "tokenizer.json", "model.safetensors"}
    assert copied == wanted

    half = {path: array.astype(ml_dtypes.bfloat16) for path, array in params.items()}
    save(half, cfg, tmp_path / "half", source=source)
    written = json.loads((tmp_path / "half/config.json").read_text())
    assert written == {**hf, "dtype": "bfloat16"}
    assert list(written) == list(hf)
    assert load(tmp_path / "half").cfg == dataclasses.replace(cfg, dtype="bfloat16")


def test_quantisation_is_dropped_from_the_config_once_the_weights_are_plain(tiny, random_params, tmp_path):
    cfg = tiny()
    params = random_params(cfg)
    save(params, cfg, tmp_path / "source")
    hf = json.loads((tmp_path / "source/config.json").read_text())
    quantised = {**hf, "quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "source/config.json").write_text(json.dumps(quantised))
    with pytest.raises(UnsupportedConfig, match="gptq"):
        load(tmp_path / "source")
    save(params, cfg, tmp_path / "plain", source=tmp_path / "source")
    assert json.loads((tmp_path / "plain/config.json").read_text()) == hf


def test_untying_is_written_into_the_config(tiny, random_params, tmp_path):
    cfg = tiny(tie_embeddings=True)
    params = random_params(cfg)
    save(params, cfg, tmp_path / "tied")
    untied = dataclasses.replace(cfg, tie_embeddings=False)
    save({**params, "head.w_vd": params["embed.w_vd"] * 2}, untied, tmp_path / "untied", source=tmp_path / "tied")
    assert load(tmp_path / "untied").cfg == untied
    with pytest.raises(CheckpointMismatch, match=r"head\.w_vd"):
        save({**params, "head.w_vd": params["embed.w_vd"]}, cfg, tmp_path / "both")
    with pytest.raises(CheckpointMismatch, match=r"head\.w_vd"):
        save(params, untied, tmp_path / "neither")
    assert not (tmp_path / "both").exists()


def test_saving_beside_the_config_of_another_model_is_refused(tiny, random_params, tmp_path):
    save(random_params(tiny()), tiny(), tmp_path / "source")
    other = tiny(n_layers=3, norm_eps=1e-5)
    with pytest.raises(ModelError, match="n_layers, norm_eps"):
        save(random_params(other), other, tmp_path / "out", source=tmp_path / "source")
    assert not (tmp_path / "out").exists()


def test_every_wrong_tensor_is_listed_at_once(tiny, random_params, tmp_path):
    cfg = tiny()
    save(random_params(cfg), cfg, tmp_path / "m")

    def spoil(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(32, np.float32)
        tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((24, 24), np.float32)

    edit_tensors(tmp_path / "m", spoil)
    with pytest.raises(CheckpointMismatch) as caught:
        load(tmp_path / "m")
    found = caught.value.mismatch
    assert found.missing == ("model.layers.1.mlp.up_proj.weight", "model.norm.weight")
    assert found.unexpected == ("model.layers.0.self_attn.q_proj.bias",)
    assert found.misshapen == {"model.layers.0.self_attn.q_proj.weight": ((24, 24), (32, 24))}
    for name in (*found.missing, *found.unexpected, *found.misshapen, "found [24, 24], expected [32, 24]"):
        assert name in str(caught.value)


@pytest.mark.parametrize("same", [True, False])
def test_a_head_beside_tied_embeddings_must_equal_them(tiny, random_params, tmp_path, same):
    cfg = tiny(tie_embeddings=True)
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m")
    head = np.array(params["embed.w_vd"])
    head[-1, -1] += 0 if same else 1
    edit_tensors(tmp_path / "m", lambda tensors: tensors.update({"lm_head.weight": head}))
    if same:
        assert_same(load(tmp_path / "m").params, params)
    else:
        with pytest.raises(CheckpointMismatch, match=r"lm_head\.weight: differs from .*tie_word_embeddings"):
            load(tmp_path / "m")


def test_constants_of_old_files_are_tolerated(tiny, random_params, tmp_path):
    cfg = tiny("llama")
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(tmp_path / "m", lambda tensors: tensors.update({name: np.ones(4, np.float32)}))
    assert_same(load(tmp_path / "m").params, params)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "config.json").unlink(), ["config.json", "Hugging Face format"]),
        (lambda f: (f / "config.json").write_text('{"model_type": '), ["config.json", "not valid JSON"]),
        (lambda f: (f / "config.json").write_text("[]"), ["config.json", "list"]),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            ["no *.safetensors", "pytorch_model.bin"],
        ),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x10"), ["model.safetensors", "cannot be read"]),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), ["index.json", "weight_map"]),
        (
            lambda f: edit_tensors(f, lambda t: t.update({"model.norm.weight": np.zeros(24, np.int8)})),
            ["model.norm.weight", "I8", "BF16"],
        ),
    ],
)
def test_a_folder_that_cannot_be_read_says_why(tiny, random_params, tmp_path, spoil, words):
    save(random_params(tiny()), tiny(), tmp_path / "m")
    spoil(tmp_path / "m")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m")
    assert all(word in str(caught.value) for word in words)


def test_a_second_copy_in_another_layout_is_not_read(tiny, random_params, tmp_path):
    cfg = tiny()
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m")
    save_file({"tok_embeddings.weight": np.zeros((2, 2), np.float32)}, tmp_path / "m/consolidated.safetensors")
    assert_same(load(tmp_path / "m").params, params)


@given(sizes=st.lists(st.integers(1, 50)), limit=st.integers(1, 60))
def test_shards_hold_every_tensor_once_in_order_and_keep_the_limit(sizes, limit):
    table = {str(i): size for i, size in enumerate(sizes)}
    shards = plan_shards(table, limit)
    assert [name for shard in shards for name in shard] == list(table)
    assert all(len(shard) == 1 or sum(table[n] for n in shard) <= limit for shard in shards)
    # and none could have taken the next one's first tensor too
    pairs = itertools.pairwise(shards)
    assert all(sum(table[n] for n in shard) + table[after[0]] > limit for shard, after in pairs)


def test_saving_with_a_source_that_is_no_model(tiny, random_params, tmp_path):
    with pytest.raises(ModelError, match="no folder"):
        save(random_params(tiny()), tiny(), tmp_path / "out", source=tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_and_an_unknown_dtype(tiny, random_params, tmp_path):
    with pytest.raises(ModelError, match="no folder"):
        load(tmp_path / "absent")
    with pytest.raises(ModelError, match="int4"):
        load(tmp_path, dtype="int4")


def test_casting_while_loading(tiny, random_params, tmp_path):
    cfg = tiny()
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m")
    model = load(tmp_path / "m", dtype="bfloat16")
    assert model.cfg.dtype == "bfloat16"
    expected = {path: np.asarray(array).astype(ml_dtypes.bfloat16) for path, array in params.items()}
    assert_same(model.params, expected)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sharded_load_holds_the_same_numbers(tiny, random_params, tmp_path, preset, family):
    cfg = tiny(family)
    params = random_params(cfg)
    save(params, cfg, tmp_path / "m")
    auto = (jax.sharding.AxisType.Auto,) * 3  # as the meshes of runs are
    mesh = jax.make_mesh((2, 1, 4), ("fsdp", "expert", "tensor"), axis_types=auto)
    model = load(tmp_path / "m", mesh, PRESETS[preset])
    assert_same(model.params, params)
    tensor = "tensor" if "tensor" in preset else None
    fsdp = "fsdp" if "fsdp" in preset else None
    spec = {path: tuple(array.sharding.spec) for path, array in model.params.items()}
    assert spec["layers.attn.q_nhd"] == (None, tensor, None, fsdp)
    assert spec["layers.attn.k_khd"] == (None, None, None, fsdp)  # 2 key-value heads do not go over 4 devices
    path, lead = ("layers.mlp.down_df", (2,)) if cfg.moe is None else ("layers.moe.down_edf", (2, 4))
    width = cfg.d_ff if cfg.moe is None else cfg.moe.d_ff
    shard = model.params[path].addressable_shards[0].data.shape
    assert shard == (*lead, 24 // (2 if fsdp else 1), width // (4 if tensor else 1))
    save(model.params, cfg, tmp_path / "again")  # arrays on a mesh are gathered tensor by tensor
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "m/model.safetensors").read_bytes()


def test_host_memory_is_bounded_by_one_shard(tiny, random_params, tmp_path, monkeypatch):
    """The model is 11 MB; one of 8 shards of its largest parameter is 0.26 MB."""
    cfg = tiny(d_model=256, d_ff=512, n_layers=4, n_heads=8, head_dim=32, vocab_size=1024)
    save(random_params(cfg), cfg, tmp_path / "m")
    mesh = jax.make_mesh((8,), ("fsdp",))
    # On the CPU a device array may be the host buffer itself: copy, as any other device would.
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda x, device: jax.numpy.copy(put(x, device)))
    load(tmp_path / "m", mesh, PRESETS["fsdp"])  # imports and caches are not what is measured
    tracemalloc.start()
    model = load(tmp_path / "m", mesh, PRESETS["fsdp"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    total = sum(array.nbytes for array in model.params.values())
    shard = max(array.addressable_shards[0].data.nbytes for array in model.params.values())
    assert total > 8_000_000
    assert peak < 3 * shard < total / 10  # one being filled, its layer's slice, and one on its way out


def test_nothing_is_overwritten(tiny, random_params, tmp_path):
    cfg = tiny()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="not an empty folder"):
        save(random_params(cfg), cfg, tmp_path / "full")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    save(random_params(cfg), cfg, tmp_path / "empty")
    assert load(tmp_path / "empty").cfg == cfg
    assert os.stat(tmp_path / "empty/model.safetensors").st_mode & 0o044 or os.umask(0o022) & 0o044


def test_a_failure_while_saving_leaves_nothing(tiny, random_params, tmp_path, monkeypatch):
    cfg = tiny()
    real = hf_read.np.ascontiguousarray
    calls = []

    def fail_later(x):
        calls.append(x)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        return real(x)

    monkeypatch.setattr("noisyjax.models.formats.hf_write.np.ascontiguousarray", fail_later)
    with pytest.raises(OSError, match="No space"):
        save(random_params(cfg), cfg, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_system_errors_of_the_writers_are_oserrors_and_others_stay(tmp_path):
    with pytest.raises(OSError, match="No space left on device") as caught, atomic_folder(tmp_path / "m"):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert caught.value.errno == 28
    with pytest.raises(SafetensorError, match="odd"), atomic_folder(tmp_path / "m"):
        raise SafetensorError("odd")
    with pytest.raises(KeyError), atomic_folder(tmp_path / "m"):
        raise KeyError("x")
    assert list(tmp_path.iterdir()) == []


KILLED_WHILE_WRITING = """
import os, signal, sys
from noisyjax.models.formats import hf_write
from noisyjax.models import load, save
model = load(sys.argv[1])
real, count = hf_write.save_file, 0
def killed(*args, **kwargs):
    global count
    count += 1
    real(*args, **kwargs)
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
hf_write.save_file = killed
save(model.params, model.cfg, sys.argv[2], max_shard_bytes=10_000)
"""


def test_a_kill_while_saving_never_leaves_a_half_model(tiny, random_params, tmp_path):
    cfg = tiny()
    save(random_params(cfg), cfg, tmp_path / "m")
    out = tmp_path / "out/model"
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path / "m"), str(out)]
    repo = Path(__file__).resolve().parents[3]
    done = subprocess.run(command, cwd=repo, env={**os.environ, "PYTHONPATH": str(repo)}, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not out.exists()
    assert [p.name.startswith(".model.partial-") for p in out.parent.iterdir()] == [True]
    save(random_params(cfg), cfg, out)  # and the place is still free
    assert load(out).cfg == cfg
