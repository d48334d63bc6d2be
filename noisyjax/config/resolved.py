"""What a run was really asked to do: the resolved config as YAML, its identity, its hash. Secrets never appear."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml
from pydantic import BaseModel, SecretBytes, SecretStr

RESOLVED_NAME = "config.resolved.yaml"

_SECRET_KEYS = frozenset({"api_key", "apikey", "password", "secret", "authorization", "access_token", "auth_token"})
_HIDDEN = "(hidden)"


def plain(config: BaseModel) -> dict[str, Any]:
    """The config as JSON-ready data with every secret replaced."""
    return _plain(config)


def identity(config: BaseModel) -> dict[str, Any]:
    """The part of the config that results depend on: without the fields declared `affects_results: False`."""
    return _plain(config, identity=True)


def _plain(value: Any, identity: bool = False) -> Any:
    if isinstance(value, BaseModel):
        out = {}
        for name, info in type(value).model_fields.items():
            extra = info.json_schema_extra
            if identity and isinstance(extra, Mapping) and extra.get("affects_results") is False:
                continue
            inner = getattr(value, name)
            out[name] = _HIDDEN if _is_secret(name, inner) else _plain(inner, identity)
        return out
    if isinstance(value, Mapping):
        return {str(k): _HIDDEN if _is_secret(str(k), v) else _plain(v, identity) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [_plain(v, identity) for v in items]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return _without_userinfo(str(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _is_secret(name: str, value: Any) -> bool:
    if isinstance(value, SecretStr | SecretBytes):
        return True
    return value is not None and name.lower().replace("-", "_") in _SECRET_KEYS


def _without_userinfo(text: str) -> str:
    """`https://user:pass@host/x` -> `https://(hidden)@host/x`."""
    if "://" not in text or "@" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return text
    if "@" not in parts.netloc:
        return text
    return urlunsplit(parts._replace(netloc=f"{_HIDDEN}@{parts.netloc.rsplit('@', 1)[1]}"))


def to_yaml(config: BaseModel) -> str:
    """The resolved config as YAML, in the order of the schema."""
    return yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True, width=100)


def config_hash(config: BaseModel) -> str:
    """Hash of what results depend on: 16 hexadecimal digits, equal on every host and Python."""
    text = json.dumps(identity(config), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line per dotted key whose value differs: `engine.dtype: was 'float32', now 'bfloat16'`."""
    a, b = dict(_leaves(old)), dict(_leaves(new))
    missing = object()
    lines = []
    for key in sorted(a.keys() | b.keys()):
        was, now = a.get(key, missing), b.get(key, missing)
        if was != now:
            show = [("absent" if v is missing else repr(v)) for v in (was, now)]
            lines.append(f"{key}: was {show[0]}, now {show[1]}")
    return lines


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree
