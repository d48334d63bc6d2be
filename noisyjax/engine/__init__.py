"""Generation behind one protocol, `records.Engine`: local (a model on a device mesh) and remote (HTTP).

Names are imported when they are first used: a remote run never imports jax, a local one never imports openai.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "LocalConfig": "noisyjax.engine.config",
    "LocalEngine": "noisyjax.engine.local",
    "RemoteConfig": "noisyjax.engine.remote",
    "RemoteEngine": "noisyjax.engine.remote",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
