"""A Hugging Face model folder -> arrays on a mesh, streamed: one shard of one parameter is on the host at a time."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open

from ..config import DTYPES, ModelConfig
from ..errors import CheckpointMismatch, Mismatch, ModelError, Shape, UnsupportedConfig
from ..families import FAMILIES, config_from_hf, file_forms, file_shapes, mxfp4
from ..families.forms import Form
from ..params import ParamSpec, param_layers, param_specs
from ..sharding import PRESETS, ShardingRules, build, shardings

FILE_DTYPES = {"F32": np.dtype(np.float32), "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16)}
PACKED_DTYPES = {"U8": np.dtype(np.uint8)}

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
BUFFERS = ("rotary_emb.inv_freq", "masked_bias", "attn.bias")
"""Endings of tensors that old files carry although they are constants; skipped, as transformers skips them."""


@dataclass(frozen=True)
class LoadedModel:
    """A model's config and its parameters, path -> array as in `params.param_specs(cfg)`."""

    cfg: ModelConfig
    params: dict[str, jax.Array]


def read_config(folder: str | Path) -> ModelConfig:
    """The ModelConfig of a model folder. Raises ModelError when there is no readable config.json or it is unusable."""
    path = Path(folder) / "config.json"
    hf = read_json(path)
    packed = hf.get("quantization_config") or {}
    if not isinstance(packed, dict):
        raise UnsupportedConfig(f"{path}: quantization_config is a {type(packed).__name__}, not a JSON object")
    method = packed.get("quant_method")
    family = FAMILIES.get(str(hf.get("model_type")))
    if method and method not in (family.quantised if family is not None else ()):
        raise UnsupportedConfig(f"{path}: weights quantised by '{method}' are not read; use the unquantised model")
    return config_from_hf(hf)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from `path`, or a ModelError that says what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        where = "" if path.parent.is_dir() else f" (there is no folder {path.parent})"
        raise ModelError(f"there is no {path}{where}: a model is a folder in Hugging Face format") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds a {type(content).__name__}, not a JSON object")
    return content


def load(
    folder: str | Path,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    dtype: str | None = None,
    *,
    keep_quantised: bool = False,
) -> LoadedModel:
    """Read the model in `folder` (config.json, *.safetensors).

    mesh, rules: where the arrays go; without a mesh to the default device, without rules replicated.
    dtype: "float32", "bfloat16" or "float16" to cast to; None keeps the files' own. `cfg.dtype` is what was loaded.
    keep_quantised: leave weights packed that are packed in the files (`cfg.quantised` then says how), for a quarter of
        their memory. Such a model runs and is saved as it was; it cannot be trained.
    Host memory: one device's shard of one stacked parameter plus one layer's slice of it, whatever the model's size.
    Raises ModelError (folder, files, dtype), UnknownArchitecture, UnsupportedConfig, ShardingError, and
    CheckpointMismatch with every missing, unexpected, misshapen and contradicting tensor in it.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ModelError(f"cannot load as dtype {dtype}; known: {', '.join(DTYPES)}")
    cfg = read_config(folder)
    with ExitStack() as stack:
        files = TensorFiles(Path(folder), stack)
        if keep_quantised and any(name.endswith(mxfp4.BLOCKS) for name in files.shapes()):
            cfg = replace(cfg, quantised="mxfp4")
        files.check(cfg)
        forms = file_forms(cfg, files.shapes())
        layout = shardings(cfg, mesh, rules or PRESETS["replicated"]) if mesh is not None else {}
        params = {
            path: _read_param(files, forms[path], spec, param_layers(cfg, path), layout.get(path), dtype)
            for path, spec in param_specs(cfg).items()
        }
    return LoadedModel(replace(cfg, dtype=params["embed.w_vd"].dtype.name), params)


class TensorFiles:
    """The safetensors files of a folder, opened lazily (memory-mapped) and looked up by tensor name."""

    def __init__(self, folder: Path, stack: ExitStack):
        self.folder = folder
        self._slices: dict[str, Any] = {}
        for file in _weight_files(folder):
            try:
                handle = stack.enter_context(safe_open(file, "np"))
            except (SafetensorError, FileNotFoundError) as error:
                raise ModelError(f"{file} cannot be read: {error}") from None
            self._slices |= {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)

    def shapes(self) -> dict[str, Shape]:
        """Tensor name -> shape, from the files' headers."""
        return {name: tuple(part.get_shape()) for name, part in self._slices.items()}

    def dtype(self, name: str, known: Mapping[str, np.dtype] = FILE_DTYPES) -> np.dtype:
        """The dtype of a tensor. Raises ModelError for one that is not among the `known`."""
        stored = self._slices[name].get_dtype()
        if stored not in known:
            raise ModelError(f"{name} in {self.folder} is stored as {stored}; known: {', '.join(known)}")
        return known[stored]

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor, read from the file now."""
        return self._slices[name][index]

    def check(self, cfg: ModelConfig) -> None:
        """Raise CheckpointMismatch unless these are the tensors of `cfg`; constants, and a head that equals the
        embedding it is tied to, may be there as well."""
        found = {n: s for n, s in self.shapes().items() if not n.endswith(BUFFERS)}
        mismatch = Mismatch.between(found, file_shapes(cfg, found))
        if cfg.tie_embeddings and HEAD in found:
            unexpected = tuple(name for name in mismatch.unexpected if name != HEAD)
            same = found.get(EMBEDDING) == found[HEAD] and self._equal(EMBEDDING, HEAD)
            note = f"{HEAD}: differs from {EMBEDDING}, but the config says tie_word_embeddings"
            mismatch = replace(mismatch, unexpected=unexpected, conflicting=() if same else (note,))
        if mismatch:
            raise CheckpointMismatch(str(self.folder), mismatch)

    def _equal(self, a: str, b: str, step: int = 4096) -> bool:
        """Whether two tensors of one shape hold the same numbers, compared a few rows at a time."""
        rows = self.shapes()[a][0]
        blocks = [(slice(i, min(i + step, rows)),) for i in range(0, rows, step)]
        return all(np.array_equal(self.read(a, block), self.read(b, block)) for block in blocks)


def _weight_files(folder: Path) -> list[Path]:
    """The files that the index names, else model.safetensors, else every *.safetensors of the folder (some carry a
    second copy in another layout beside model.safetensors). Raises ModelError when there is none."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, Mapping) or not weight_map:
            raise ModelError(f"{index} has no weight_map")
        files = [folder / name for name in sorted(set(weight_map.values()))]
        if absent := [file.name for file in files if not file.exists()]:
            raise ModelError(f"{index} names files that are not there: {', '.join(absent)}")
        return files
    single = folder / "model.safetensors"
    files = [single] if single.exists() else sorted(folder.glob("*.safetensors"))
    if not files:
        other = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pth", ".gguf", ".h5"))
        hint = f"; it has {', '.join(other)}, which has to be converted first" if other else ""
        raise ModelError(f"{folder} holds no *.safetensors{hint}")
    return files


def _read_param(
    files: TensorFiles,
    form: Form,
    spec: ParamSpec,
    layers: Sequence[int],
    sharding: jax.sharding.Sharding | None,
    dtype: str | None,
) -> jax.Array:
    """Assemble one parameter from its tensors (those of `layers` when stacked), shard by shard."""
    names = [name for layer in (layers if spec.stacked else (0,)) for name in form.names(spec, layer)]
    known = PACKED_DTYPES if form.packed or spec.packed else FILE_DTYPES
    stored = np.result_type(*{files.dtype(name, known) for name in names})
    if form.packed:  # numbers that are exact in bfloat16, whatever bytes hold them
        stored = np.dtype(ml_dtypes.bfloat16)

    def fill(buffer: np.ndarray, index: tuple[slice, ...]) -> None:
        if not spec.stacked:
            buffer[...] = form.read(files.read, spec, 0, index)
            return
        for i, layer in enumerate(layers[index[0]]):
            buffer[i] = form.read(files.read, spec, layer, index[1:])

    return build(spec.shape, np.dtype(dtype) if dtype and not spec.packed else stored, sharding, fill)
