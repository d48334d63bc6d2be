"""What a run is of: which model, which tasks, which config, made where. A run is resumed only as what it was."""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from noisyjax import __version__
from noisyjax.config import differences
from noisyjax.errors import UsageError, nearest

FORMAT = 1
"""Of the whole run folder; a reader refuses a higher one."""

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """`config` is the identity of the resolved config; `model` and `tasks` identify what it names.

    `about` (cells, titles, counts), `host` and `created` are for the reader and are never compared.
    """

    config: Mapping[str, Any]
    config_hash: str
    model: Mapping[str, Any]
    tasks: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=lambda: host_facts())
    noisyjax: str = __version__
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    format: int = FORMAT

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, raw: bytes, where: str) -> "Manifest":
        """UsageError that says what is wrong with the file and what to do, or that a newer release wrote it."""
        try:
            data = json.loads(raw)
        except ValueError as error:
            raise broken(where, f"is not valid JSON ({error})" if raw.strip() else "is empty") from None
        if not isinstance(data, dict):
            raise broken(where, f"holds no JSON object but {json.dumps(data):.40}")
        if isinstance(data.get("format"), int) and data["format"] > FORMAT:
            raise UsageError(f"{where} was written by noisyjax {data.get('noisyjax')}, which is newer than this one")
        wrong = [f"'{name}'" for name, kind in _KINDS.items() if not isinstance(data.get(name), kind)]
        if wrong:
            raise broken(where, f"lacks {', '.join(wrong)}, or holds something else there")
        if unknown := data.keys() - {f.name for f in fields(cls)}:
            raise broken(where, f"holds what no manifest has: {', '.join(sorted(map(repr, unknown)))}")
        return cls(**data)

    def check_resumes(self, old: "Manifest", where: str) -> None:
        """UsageError that names every differing key when this is not the run that `old` began."""
        lines = [
            f"{prefix}{line}"
            for prefix, was, now in (
                ("", old.config, self.config),
                ("model: ", old.model, self.model),
                ("tasks: ", old.tasks, self.tasks),
            )
            for line in differences(_as_json(was), _as_json(now))
        ]
        if lines:
            listed = "\n".join(f"  {line}" for line in lines)
            raise UsageError(
                f"{where} holds a run with another config; give this one another `out`, or undo these differences:\n"
                + listed
            )


_KINDS: Mapping[str, type] = {
    "format": int,
    "config": dict,
    "config_hash": str,
    "model": dict,
    "tasks": dict,
    "about": dict,
}


def broken(where: str, what: str) -> UsageError:
    """For a manifest that somebody changed or cut: it is written whole or not at all."""
    return UsageError(
        f"{where}/{MANIFEST_NAME} {what}. The samples beside it are unharmed: restore this one file from a copy, or "
        "evaluate again with another `out`"
    )


def _as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """As it looks after a trip through JSON: tuples are lists."""
    return json.loads(json.dumps(value))


def model_identity(folder: Path) -> dict[str, Any]:
    """What tells two model folders apart without reading the weights.

    The sha256 (16 digits) of config.json, of the tokenizer and template files, and of the names and sizes of the weight
    files with their index. UsageError when there is no config.json.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is not a model folder: it has no config.json")
    small = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    weights = sorted(folder.glob("*.safetensors"))
    index = [folder / "model.safetensors.index.json"]
    return {
        "config": _digest([folder / "config.json"]),
        "tokenizer": _digest([folder / name for name in small]),
        "weights": _digest(index, extra=[f"{p.name}:{p.stat().st_size}" for p in weights]),
        "bytes": sum(p.stat().st_size for p in weights),
    }


def check_model(key: str, folder: Path) -> None:
    """UsageError that names the config's key, and the nearest folder, where this is none of a model."""
    if not (folder / "config.json").is_file():
        beside = [path.parent.name for path in folder.parent.glob("*/config.json")]
        hint = f"; {nearest(folder.name, beside)}" if beside else ""
        raise UsageError(f"{key}={folder} is not a model folder: it has no config.json{hint}")


def _digest(files: Iterable[Path], extra: Iterable[str] = ()) -> str:
    total = hashlib.sha256()
    for path in files:
        if path.is_file():
            total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for text in extra:
        total.update(text.encode() + b"\0")
    return total.hexdigest()[:16]


def host_facts() -> dict[str, Any]:
    """Versions and machine, without names or paths."""
    packages = {}
    for name in ("jax", "jaxlib", "flax", "numpy", "transformers", "openai"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "absent"
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": packages,
    }
