"""From YAML and `key=value` words to a frozen, checked schema. Each room keeps its own schema beside its code."""

from noisyjax.config.loader import Schema, load, validate
from noisyjax.config.preset import ModelPreset
from noisyjax.config.resolved import RESOLVED_NAME, config_hash, differences, identity, to_yaml
from noisyjax.config.tree import find_config, packaged_configs

__all__ = [
    "RESOLVED_NAME",
    "ModelPreset",
    "Schema",
    "config_hash",
    "differences",
    "find_config",
    "identity",
    "load",
    "packaged_configs",
    "to_yaml",
    "validate",
]
