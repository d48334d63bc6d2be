"""A model folder behind the server: the local engine, and prompts rendered as a direct run renders them."""

from collections.abc import Sequence
from pathlib import Path

from noisyjax.chat import build_prompt
from noisyjax.config import validate
from noisyjax.engine.local import LocalConfig, LocalEngine
from noisyjax.engine.server.protocol import Chat, ChatError, ChatMessage
from noisyjax.engine.server.responders import EngineResponder
from noisyjax.errors import UsageError
from noisyjax.records import Label, Message, NoisyPrompt, Part

_LABELS = {"system": Label.SYSTEM, "user": Label.QUESTION, "assistant": Label.GENERATED}


def local_responder(engine: LocalEngine) -> EngineResponder:
    """The engine as a responder. Its tokens in f32 are those of a direct run: same messages, same ids, same keys."""
    tokenizer = engine.tokenizer

    def render(messages: Sequence[ChatMessage], chat: Chat) -> NoisyPrompt:
        labelled = [Message(m.role, (Part(m.content, _LABELS[m.role]),)) for m in messages]
        effort = {} if chat.reasoning_effort is None else {"reasoning_effort": chat.reasoning_effort}
        kwargs = {**chat.chat_template_kwargs, **effort}
        try:
            return build_prompt(
                tokenizer, labelled, dataset="chat", question_id="", setting="ND", template_kwargs=kwargs or None
            )
        except UsageError as error:
            raise ChatError(400, "template_refused", str(error)) from None

    return EngineResponder(
        engine,
        render,
        decode=lambda token: tokenizer.decode_raw([token]),
        top=engine.config.capture.top if engine.config.capture.logprobs else None,
    )


def responder_from_folder(folder: str, dtype: str = "auto", top: int = 0) -> EngineResponder:
    """Load a Hugging Face model folder. UsageError for one that cannot be used."""
    data = {"model": Path(folder), "dtype": dtype, "capture": {"top": top, "entropy": False}}
    return local_responder(LocalEngine(validate(LocalConfig, data, "--engine")))
