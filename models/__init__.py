"""Decoder-only language models in JAX, and the Hugging Face formats they come in. Imports nothing else of noisyjax."""

from .config import ModelConfig, MoeConfig, RopeConfig
from .errors import CheckpointMismatch, ModelError, ShardingError, UnknownArchitecture, UnsupportedConfig
from .families import FAMILIES, config_from_hf, config_to_hf
from .formats import LoadedModel, convert_gguf, load, read_config, save, save_adapter
from .init import init_params
from .params import ParamSpec, param_specs
from .sharding import PRESETS, Layout, ShardingRules, shardings

__all__ = [
    "FAMILIES",
    "PRESETS",
    "CheckpointMismatch",
    "Layout",
    "LoadedModel",
    "ModelConfig",
    "ModelError",
    "MoeConfig",
    "ParamSpec",
    "RopeConfig",
    "ShardingError",
    "ShardingRules",
    "UnknownArchitecture",
    "UnsupportedConfig",
    "config_from_hf",
    "config_to_hf",
    "convert_gguf",
    "init_params",
    "load",
    "param_specs",
    "read_config",
    "save",
    "save_adapter",
    "shardings",
]
