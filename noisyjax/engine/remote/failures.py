"""What a failed call means: try again, give the sample up, or end the run. Decided from status, code and words."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import openai

from noisyjax.engine.remote.backoff import asked_wait
from noisyjax.visible import visible


class Action(StrEnum):
    """What to do about a failed call."""

    RETRY = "retry"
    UNREACHABLE = "unreachable"
    """No connection at all: retried by the clock, because a restarting server is not the sample's fault."""
    REJECTED = "rejected"
    """The endpoint will not take this call, now or later: the sample is an error with the endpoint's words."""
    OVER_LENGTH = "over_length"
    FILTERED = "filtered"
    REFUSED = "refused"
    """No call of this run can succeed (key, right, credit)."""
    UNKNOWN_MODEL = "unknown_model"


@dataclass(frozen=True)
class Failure:
    """A call that brought no answer. `kind` is what the statistics count it under."""

    action: Action
    kind: str
    words: str
    status: int | None = None
    asked_s: float | None = None


_CONTEXT = re.compile(
    r"context[ _-]?(length|window|size)|maximum (context|input|prompt)|(prompt|input)[^.]{0,40}too (long|many|large)"
    r"|too many (input )?tokens|exceeds? the (model'?s |available )?(context|maximum number of tokens)",
    re.IGNORECASE,
)
_FILTER = re.compile(r"content[ _-]?(filter|policy)|moderation|flagged|safety (system|policy)", re.IGNORECASE)
_CREDIT = re.compile(r"insufficient[ _]quota|insufficient (balance|credits?|funds)|billing", re.IGNORECASE)
_NO_MODEL = re.compile(r"model[ _]?not[ _]?found|no such model|model\b.{0,80}\bdoes not exist", re.IGNORECASE)


def decide(status: int, code: str, words: str) -> Action:
    """The action for an HTTP status >= 400, the error's code and its message.

    >>> decide(400, "context_length_exceeded", "This model's maximum context length is 8192 tokens")
    <Action.OVER_LENGTH: 'over_length'>
    """
    both = f"{code} {words}"
    if status == 403 and _FILTER.search(both):
        return Action.FILTERED
    if status in (401, 402, 403) or (status == 429 and _CREDIT.search(both)):
        return Action.REFUSED
    if status == 404 or (status == 400 and _NO_MODEL.search(both)):
        return Action.UNKNOWN_MODEL
    if status in (408, 409, 425, 429) or status >= 500:
        return Action.RETRY
    if _CONTEXT.search(both):
        return Action.OVER_LENGTH
    return Action.FILTERED if _FILTER.search(both) else Action.REJECTED


def from_status(status: int, body: Any, headers: Mapping[str, str]) -> Failure:
    """A failure the endpoint reported itself, as an HTTP status or as an `error` object inside a 200."""
    code, words = error_words(body)
    return Failure(decide(status, code, words), f"http_{status}", words, status, asked_wait(headers))


def from_exception(error: openai.APIError | TimeoutError) -> Failure:
    """What the `openai` client raised, as a Failure."""
    if isinstance(error, openai.APIStatusError):
        return from_status(error.status_code, error.body, error.response.headers)
    cause = error.__cause__
    # Compared by name: the client has changed the HTTP library underneath it between major versions.
    names = {kind.__name__ for kind in type(cause).__mro__}
    if names & {"ConnectError", "ConnectTimeout"}:
        return Failure(Action.UNREACHABLE, "unreachable", _connection_words(cause))
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return Failure(Action.RETRY, "stalled", "no whole answer within timeout_s")
    return Failure(Action.RETRY, "connection", f"the connection broke: {_connection_words(cause or error)}")


def _connection_words(error: BaseException | None) -> str:
    return one_line(str(error) or type(error).__name__)


def error_words(body: Any) -> tuple[str, str]:
    """(code, message) of an error body in any of its usual shapes: an object, `{error: ...}`, `{detail: ...}`, text."""
    if isinstance(body, Mapping):
        inner = body.get("error")
        if isinstance(inner, Mapping | str):
            return error_words(inner)
        message = body.get("message") or body.get("detail")
        code = body.get("code") or body.get("type") or ""
        text = message if isinstance(message, str) else json.dumps(body if message is None else message, default=str)
        return str(code), one_line(text)
    if body is None or body == "":
        return "", "(no message)"
    return "", one_line(str(body))


def one_line(text: str, limit: int = 300) -> str:
    """White space folded, control characters made visible, at most `limit` characters."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"
