"""The remote engine: any OpenAI-compatible endpoint behind the `Engine` protocol. Imports no jax.

The engine is imported when it is first used: its HTTP client takes longer to load than a config to be read.
"""

from typing import Any

from noisyjax.engine.remote.config import Price, RemoteConfig

__all__ = ["Price", "RemoteConfig", "RemoteEngine"]


def __getattr__(name: str) -> Any:
    if name != "RemoteEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from noisyjax.engine.remote.client import RemoteEngine

    return RemoteEngine
