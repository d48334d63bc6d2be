"""The registry of model families. A new one is a file with a `FAMILY` and a line here."""

from collections.abc import Mapping
from typing import Any

from ..config import ModelConfig
from ..errors import UnknownArchitecture, UnsupportedConfig
from ..params import param_specs
from . import llama, qwen2, qwen3
from .dense import Family

FAMILIES: Mapping[str, Family] = {f.model_type: f for f in (qwen3.FAMILY, qwen2.FAMILY, llama.FAMILY)}
"""model_type -> Family"""

__all__ = ["FAMILIES", "Family", "config_from_hf", "config_to_hf", "file_names", "file_shapes"]


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
    return {**family_named(cfg.family).to_hf(cfg), **(extras or {})}


def file_names(cfg: ModelConfig) -> dict[str, list[str]]:
    """Parameter path -> the names of its tensors in a file, one per layer for a stacked parameter, else one."""
    names = family_named(cfg.family).names
    return {
        path: [names[path].format(i=i) for i in range(cfg.n_layers)] if spec.stacked else [names[path]]
        for path, spec in param_specs(cfg).items()
    }


def file_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensor name in a file -> its shape there, for every tensor of `cfg`."""
    specs = param_specs(cfg)
    return {name: specs[path].file_shape for path, names in file_names(cfg).items() for name in names}
