"""An engine with what evaluation must know about it: tokenizer, window, and how its completions are to be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from noisyjax.chat import ChatTokenizer
from noisyjax.engine.remote import RemoteConfig, RemoteEngine
from noisyjax.evaluate.schema import EngineConfig
from noisyjax.records import Engine


@dataclass(frozen=True)
class OpenEngine:
    """`tokenizer` and `window` (tokens of prompt and completion together) are None for endpoints."""

    engine: Engine
    identity: Mapping[str, Any]
    tokenizer: ChatTokenizer | None = None
    window: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    opens_thought: bool = False
    tags: str = "think"
    """Family of thought tags, a key of `noisyjax.chat.thoughts.FAMILIES`."""


def open_engine(config: EngineConfig) -> OpenEngine:
    """The engine that the config names. The caller closes it."""
    if isinstance(config, RemoteConfig):
        return OpenEngine(RemoteEngine(config), {"endpoint_model": config.model})
    raise AssertionError(config)
