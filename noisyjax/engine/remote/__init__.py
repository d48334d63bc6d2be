"""The remote engine: any OpenAI-compatible endpoint behind the `Engine` protocol. Imports no jax."""

from noisyjax.engine.remote.client import RemoteEngine
from noisyjax.engine.remote.config import Price, RemoteConfig

__all__ = ["Price", "RemoteConfig", "RemoteEngine"]
