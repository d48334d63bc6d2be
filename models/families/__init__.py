"""The registry of model families. A new one is a file with a `FAMILY` and a line here."""

from collections.abc import Collection, Mapping
from typing import Any

from ..config import ModelConfig
from ..errors import UnknownArchitecture, UnsupportedConfig
from ..params import param_layers, param_specs
from . import gpt_oss, llama, qwen2, qwen3, qwen3_moe
from .dense import Family
from .forms import Form

FAMILIES: Mapping[str, Family] = {
    module.FAMILY.model_type: module.FAMILY for module in (qwen3, qwen3_moe, qwen2, llama, gpt_oss)
}
"""model_type -> Family"""

__all__ = ["FAMILIES", "Family", "config_from_hf", "config_to_hf", "file_forms", "file_names", "file_shapes"]


def family_named(model_type: str) -> Family:
    """The family of a `model_type`. Raises UnknownArchitecture, which lists the known ones."""
    if model_type not in FAMILIES:
        raise UnknownArchitecture(model_type, FAMILIES)
    return FAMILIES[model_type]


def config_from_hf(hf: Mapping[str, Any]) -> ModelConfig:
    """A ModelConfig from the content of a config.json, in its old or its transformers-5 spelling.

    Raises UnknownArchitecture (architecture, rope type, dtype) or UnsupportedConfig (a setting not implemented).
    """
    model_type = hf.get("model_type")
    if not model_type:
        raise UnsupportedConfig("this config.json has no 'model_type'")
    family = family_named(str(model_type))
    architectures = hf.get("architectures") or [family.architecture]
    if family.architecture not in architectures:
        # A classification or embedding model of a known type has other tensors and means something else.
        raise UnknownArchitecture(", ".join(architectures), [f.architecture for f in FAMILIES.values()])
    return family.from_hf(hf)


def config_to_hf(cfg: ModelConfig, extras: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The content of a config.json for `cfg`, readable by old and new loaders alike; `extras` (token ids) go on top.

    Raises UnsupportedConfig when the family's config cannot express `cfg`.
    """
    family = family_named(cfg.family)
    if cfg.quantised not in (None, *family.quantised):
        raise UnsupportedConfig(f"a {cfg.family} model cannot be held as {cfg.quantised}")
    return {**family.to_hf(cfg), **(extras or {})}


def file_forms(cfg: ModelConfig, found: Collection[str] = ()) -> dict[str, Form]:
    """Parameter path -> how it lies in a file: as the family writes it, or as the file with tensors `found` has it."""
    family, specs = family_named(cfg.family), param_specs(cfg)
    forms = {path: _form(family.names[path]) for path in specs}
    for other in family.also_read:
        mine = {path: form for path, form in other.items() if path in specs}
        if any(name in found for path in mine for name in _names(cfg, path, mine[path])):
            return forms | mine
    return forms


def _form(entry: str | Form) -> Form:
    return entry if isinstance(entry, Form) else Form(entry)


def _names(cfg: ModelConfig, path: str, form: Form) -> list[str]:
    spec = param_specs(cfg)[path]
    layers = param_layers(cfg, path) if spec.stacked else (0,)
    return [name for layer in layers for name in form.names(spec, layer)]


def file_names(cfg: ModelConfig) -> dict[str, list[str]]:
    """Parameter path -> the names of its tensors in a file, layer by layer for a stacked parameter."""
    return {path: _names(cfg, path, form) for path, form in file_forms(cfg).items()}


def file_shapes(cfg: ModelConfig, found: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Tensor name in a file -> its shape there, for every tensor of `cfg`; `found` as in `file_forms`."""
    specs = param_specs(cfg)
    shapes: dict[str, tuple[int, ...]] = {}
    for path, form in file_forms(cfg, found).items():
        for layer in param_layers(cfg, path) if specs[path].stacked else (0,):
            shapes |= form.shapes(specs[path], layer)
    return shapes
