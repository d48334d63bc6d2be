"""What a call may say and what an answer holds: the server's half of the chat-completions format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from noisyjax.errors import nearest
from noisyjax.records import Sampling


class ChatError(Exception):
    """A call that is turned down: HTTP status, the format's error code, and words for the caller."""

    def __init__(self, status: int, code: str, words: str) -> None:
        super().__init__(words)
        self.status, self.code, self.words = status, code, words

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.words, "type": kind, "param": None, "code": self.code}}


class ChatMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        """Some clients send a list of typed parts; text parts are joined, other kinds are refused."""
        if not isinstance(value, list):
            return value
        if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in value):
            raise ValueError("only parts of type 'text' are known")
        return "".join(str(part.get("text", "")) for part in value)


class StreamIds(BaseModel):
    """The names of one sample's random stream (see `Request`), from noisyjax's own client."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    step: int
    key: str
    sample: int


class Chat(BaseModel):
    """The body of `POST /v1/chat/completions`. A field that this server cannot obey is refused, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int = Field(default=1, ge=1, le=128)
    seed: int = 0
    stop: str | tuple[str, ...] | None = None
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    stream: Literal[False] = False
    return_token_ids: bool = False
    stream_ids: StreamIds | None = None
    user: str | None = None

    def sampling(self, default_tokens: int) -> Sampling:
        """The call's sampling; `default_tokens` is the limit where the call names none."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_tokens=self.max_completion_tokens or self.max_tokens or default_tokens,
            stop=stop,
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True)
class Reply:
    """One choice. `tokens` are the pieces of text that `logprobs` belong to; `top` holds (piece, logprob) pairs."""

    text: str
    finish: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    reasoning: str | None = None
    ids: Sequence[int] | None = None
    tokens: Sequence[str] = ()
    logprobs: Sequence[float] = ()
    top: Sequence[Sequence[tuple[str, float]]] = ()


class Responder(Protocol):
    """What answers a call."""

    model: str

    async def answer(self, chat: Chat) -> list[Reply]:
        """`chat.n` choices. Raises ChatError for a call that is turned down."""
        ...

    def close(self) -> None: ...


def read_chat(body: Any, model: str) -> Chat:
    """The call's body as a Chat. Raises ChatError 400 that names every bad field, 404 for another model."""
    if not isinstance(body, Mapping):
        raise ChatError(400, "invalid_body", "the body must be a JSON object")
    try:
        chat = Chat.model_validate(body)
    except ValidationError as error:
        raise ChatError(400, "invalid_field", "; ".join(_problem(dict(e)) for e in error.errors())) from None
    if chat.model != model:
        raise ChatError(404, "model_not_found", f"the model '{chat.model}' does not exist; this server has '{model}'")
    return chat


def _problem(error: dict[str, Any]) -> str:
    field = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{field}: unknown field; {nearest(field, Chat.model_fields)}"
    return f"{field}: {error['msg']}"


def completion_body(chat: Chat, replies: Sequence[Reply], name: str) -> dict[str, Any]:
    """The answer's JSON. Holds no clock time: equal calls get equal bytes."""
    prompt, completion = replies[0].prompt_tokens, sum(r.completion_tokens for r in replies)
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": 0,
        "model": chat.model,
        "choices": [_choice(chat, i, reply) for i, reply in enumerate(replies)],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    }


def _choice(chat: Chat, index: int, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": reply.finish, "logprobs": None}
    if chat.return_token_ids and reply.ids is not None:
        choice["token_ids"] = list(reply.ids)
    if chat.logprobs or chat.top_logprobs:
        choice["logprobs"] = {"content": [_token(chat, reply, i) for i in range(len(reply.logprobs))]}
    return choice


def _token(chat: Chat, reply: Reply, i: int) -> dict[str, Any]:
    top = reply.top[i][: chat.top_logprobs] if chat.top_logprobs and reply.top else ()
    return {
        "token": reply.tokens[i],
        "logprob": reply.logprobs[i],
        "bytes": list(reply.tokens[i].encode()),
        "top_logprobs": [{"token": t, "logprob": lp, "bytes": list(t.encode())} for t, lp in top],
    }
