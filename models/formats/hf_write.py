"""Parameters -> a Hugging Face model folder: sharded safetensors with an index, config, tokenizer, chat template.

The folder is written under a temporary name beside its place and renamed at the very end, so that a run that is killed
leaves no half model under the name that was asked for.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from ..config import ModelConfig
from ..errors import CheckpointMismatch, Mismatch, ModelError, Shape
from ..families import config_from_hf, config_to_hf, file_forms
from ..params import param_layers, param_specs
from .hf_read import read_json

DEFAULT_SHARD_BYTES = 2_000_000_000
"""Also the bound on host memory while writing: one shard is held at a time."""

COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "*.tiktoken",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates",
    "LICENSE*",
)
"""What travels unchanged from the source folder beside the weights."""


def save(
    params: Mapping[str, jax.Array],
    cfg: ModelConfig,
    out: str | Path,
    source: str | Path | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> Path:
    """Write `params` (path -> array, as `params.param_specs(cfg)`) to the new folder `out`, in the arrays' own dtypes.

    source: the folder the model came from. Its config.json is kept in its own spelling, except for what is no longer
        true of the weights (dtype, tied head, quantisation); its tokenizer, chat template and generation config are
        copied. Without it a config.json is generated.
    Host memory: at most one shard, or the largest tensor if that is larger.
    Raises ModelError when `out` is not empty or the source describes another model, CheckpointMismatch (all at once)
    when the parameters do not fit `cfg`.
    """
    specs = param_specs(cfg)
    found = {path: tuple(array.shape) for path, array in params.items()}
    if mismatch := Mismatch.between(found, {path: spec.shape for path, spec in specs.items()}):
        raise CheckpointMismatch("these parameters", mismatch)
    if remote := [path for path, array in params.items() if not getattr(array, "is_fully_addressable", True)]:
        raise ModelError(f"{remote[0]} is spread over several hosts: gather the parameters before saving")
    tensors, fetch = _tensors(params, cfg)
    dtype = np.dtype(params["embed.w_vd"].dtype).name
    with atomic_folder(out) as folder:
        write_config(folder, cfg, dtype, Path(source) if source is not None else None)
        if source is not None:
            copy_companions(Path(source), folder)
        write_shards(folder, tensors, fetch, max_shard_bytes)
    return Path(out)


def _tensors(
    params: Mapping[str, jax.Array], cfg: ModelConfig
) -> tuple[dict[str, tuple[Shape, np.dtype]], Callable[[str], np.ndarray]]:
    """What `write_shards` takes: tensor name -> (shape, dtype), and the function that makes a tensor."""
    specs, forms = param_specs(cfg), file_forms(cfg)
    parts: dict[str, list[tuple[str, tuple[int, ...]]]] = {}  # name -> parameters in it: path, leading indices
    tensors: dict[str, tuple[Shape, np.dtype]] = {}
    for path, form in forms.items():
        for at, layer in enumerate(param_layers(cfg, path) if specs[path].stacked else (0,)):
            lead = (at,) if specs[path].stacked else ()
            for number, (name, shape) in enumerate(form.shapes(specs[path], layer).items()):
                parts.setdefault(name, []).append((path, (*lead, number) if "{e}" in form.name else lead))
                tensors[name] = shape, np.dtype(params[path].dtype)

    def fetch(name: str) -> np.ndarray:
        shape, dtype = tensors[name]
        tensor = np.empty(shape, dtype)
        for path, lead in parts[name]:
            value = np.asarray(params[path][lead] if lead else params[path])
            if forms[path].plain or "{e}" in forms[path].name:
                return value.reshape(shape)
            forms[path].write(tensor, value)
        return tensor

    return tensors, fetch


@contextmanager
def atomic_folder(out: str | Path) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its name when the block ends well and vanishes when it raises.

    Raises ModelError when `out` exists and is not an empty folder, OSError for a full disk, whoever was writing.
    A kill leaves `.<name>.partial-*`, never `out`.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"{out} exists and is not an empty folder: name a new one, nothing is overwritten")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
    except OSError as error:
        raise ModelError(f"{out} cannot be made: {error.strerror or error}; name another folder") from error
    try:
        with _system_errors():
            yield partial
        umask = os.umask(0)
        os.umask(umask)
        for path in (*partial.rglob("*"), partial):
            _sync(path)
            # mkdtemp and safetensors make what only the owner can read.
            path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        partial.rename(out)  # replaces an empty folder, in one step
        _sync(out.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _system_errors() -> Iterator[None]:
    """The writers of safetensors and tokenizers raise exceptions of their own, with the system's error in words."""
    try:
        yield
    except Exception as error:
        said = None if isinstance(error, OSError) else re.search(r"\(os error (\d+)\)", str(error))
        if said is None:
            raise
        raise OSError(int(said[1]), os.strerror(int(said[1]))) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_shards(
    folder: Path,
    tensors: Mapping[str, tuple[Shape, np.dtype]],
    fetch: Callable[[str], np.ndarray],
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> None:
    """Write `tensors` (name -> shape, dtype; values from `fetch`) in order: one model.safetensors when all fit in
    `max_shard_bytes`, else model-0000x-of-0000y.safetensors with model.safetensors.index.json."""
    sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, (shape, dtype) in tensors.items()}
    shards = plan_shards(sizes, max_shard_bytes)
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
        index = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": {name: file for file, shard in zip(names, shards, strict=True) for name in shard},
        }
        write_json(folder / "model.safetensors.index.json", index)
    for file, shard in zip(names, shards, strict=True):
        # "pt" tells every loader that these are plain row-major tensors; some refuse files without it.
        save_file({n: np.ascontiguousarray(fetch(n)) for n in shard}, folder / file, metadata={"format": "pt"})


def plan_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Cut names into runs whose sizes (bytes) sum to at most `max_bytes`; a larger tensor gets a run of its own.

    >>> plan_shards({"a": 3, "b": 3, "c": 9, "d": 1}, 6)
    [['a', 'b'], ['c'], ['d']]
    """
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not shards or size > room:
            shards.append([])
            room = max_bytes
        shards[-1].append(name)
        room -= size
    return shards


def write_config(folder: Path, cfg: ModelConfig, dtype: str, source: Path | None) -> None:
    """Write config.json for weights of `dtype`: the source's own bytes where they are still true, else as few keys
    changed as it takes; generated when there is no source."""
    if source is None:
        extras = {"torch_dtype": dtype}
        write_json(folder / "config.json", config_to_hf(cfg, extras))
        return
    hf = read_json(source / "config.json")
    kept = {k: v for k, v in hf.items() if k != "quantization_config" or cfg.quantised}
    if cfg.quantised and "quantization_config" not in kept:
        kept["quantization_config"] = config_to_hf(cfg)["quantization_config"]
    differs = _differences(config_from_hf(kept), cfg)
    if differs:
        raise ModelError(f"{source} holds another model than the one to save: {', '.join(differs)} differ")
    dtype_keys = [key for key in ("dtype", "torch_dtype") if key in kept] or ["torch_dtype"]
    kept |= dict.fromkeys(dtype_keys, dtype)
    if bool(kept.get("tie_word_embeddings", False)) != cfg.tie_embeddings:
        kept["tie_word_embeddings"] = cfg.tie_embeddings
    if kept == hf:
        shutil.copyfile(source / "config.json", folder / "config.json")
    else:
        write_json(folder / "config.json", kept)


def _differences(a: ModelConfig, b: ModelConfig) -> list[str]:
    """The fields in which two configs describe different computations."""
    free = {"dtype", "tie_embeddings", "quantised"}  # what loading, training and saving may change
    return [name for name in a.__dataclass_fields__ if name not in free and getattr(a, name) != getattr(b, name)]


def copy_companions(source: Path, folder: Path) -> None:
    """Copy the tokenizer, chat template and generation config of `source`, whichever of them exist."""
    for pattern in COMPANIONS:
        for path in sorted(source.glob(pattern)):
            target = folder / path.name
            shutil.copytree(path, target) if path.is_dir() else shutil.copyfile(path, target)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """UTF-8, two spaces, a newline at the end: the form in which these files are usually found."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
