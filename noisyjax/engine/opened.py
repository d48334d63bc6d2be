"""An engine with what its callers must know about it: tokenizer, window, and how its completions are to be read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisyjax.chat import ChatTokenizer, build_prompt
from noisyjax.chat.thoughts import family_of
from noisyjax.engine.config import LocalConfig
from noisyjax.engine.remote import RemoteConfig
from noisyjax.records import Completion, Engine, Label, Message, Part, Request
from noisyjax.store import model_identity

if TYPE_CHECKING:  # jax is imported when a local engine is opened
    from noisyjax.engine.local import LocalEngine

LOCAL_BATCH = 1024
"""Requests in one schedule of the local engine: enough that its tail does not matter, few enough to hold in memory."""


@dataclass(frozen=True)
class OpenEngine:
    """`tokenizer` and `window` (tokens of prompt and completion together) are None for endpoints."""

    engine: Engine
    identity: Mapping[str, Any]
    tokenizer: ChatTokenizer | None = None
    window: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    count: Callable[[str], int] | None = None
    """Tokens of a text, where not the tokenizer's own."""
    opens_thought: bool = False
    tags: str = "think"
    """Family of thought tags, a key of `noisyjax.chat.thoughts.FAMILIES`."""
    batch: int | None = None
    """Requests to hand over at a time; None for an engine that pulls them as it has room."""


def open_engine(
    config: LocalConfig | RemoteConfig,
    template_kwargs: Mapping[str, Any] | None = None,
    count_with: Path | None = None,
    devices: Sequence[Any] | None = None,
) -> OpenEngine:
    """The engine that the config names, its model loaded. The caller closes it.

    devices: those that a local engine may choose from; None for all of this machine.
    """
    if isinstance(config, RemoteConfig):
        from noisyjax.engine.remote import RemoteEngine

        count = None if count_with is None else ChatTokenizer.load(count_with, require_template=False).count_tokens
        return OpenEngine(RemoteEngine(config), {"endpoint_model": config.model}, count=count)
    identity = model_identity(config.model)
    from noisyjax.engine.device import keep_programs
    from noisyjax.engine.local import LocalEngine

    keep_programs()
    return opened_local(LocalEngine(config, devices=devices), identity, template_kwargs)


def opened_local(
    engine: "LocalEngine", identity: Mapping[str, Any], template_kwargs: Mapping[str, Any] | None = None
) -> OpenEngine:
    """A local engine that is there already, such as a trainer's sampler. `identity` says whose answers it gives."""
    tokenizer = engine.tokenizer
    return OpenEngine(
        engine,
        identity,
        tokenizer=tokenizer,
        window=min(filter(None, (engine.window, engine.config.context))),
        template_kwargs=template_kwargs or {},
        opens_thought=_opens_thought(tokenizer, template_kwargs or {}),
        tags=family_of(tokenizer.controls),
        batch=LOCAL_BATCH,
    )


def _opens_thought(tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any]) -> bool:
    """Whether the template ends its prompts with an opening thought tag."""
    messages = (Message("user", (Part("x", Label.QUESTION),)),)
    prompt = build_prompt(
        tokenizer, messages, dataset="", question_id="", setting="ND", template_kwargs=template_kwargs or None
    )
    return tokenizer.opens_thought(prompt.ids)


def answers(opened: OpenEngine, requests: Iterator[Request]) -> Iterator[Completion]:
    """Completions of a long stream. A local engine plans over all it is given, so it is given a batch at a time."""
    if opened.batch is None:
        yield from opened.engine.generate(requests)
        return
    while batch := list(islice(requests, opened.batch)):
        yield from opened.engine.generate(batch)
