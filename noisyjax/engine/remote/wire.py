"""The chat-completions format: one sample of a request -> a call's body, an answer's body -> `Reply`. No I/O here."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisyjax.engine.remote.config import RemoteConfig
from noisyjax.records import Finish, Request


class BadReply(ValueError):
    """A 200 answer that is not a whole chat completion."""


@dataclass(frozen=True)
class Usage:
    """Token counts as the endpoint states them. `prompt` includes `cached`, `completion` includes `reasoning`."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True)
class Reply:
    """One answer. `finish` is None for a reason that is not in `FINISH`; `reason` is the endpoint's own word.

    ids: int32 [R]; logprobs: float32 [R]; top_logprobs: float32 [R, K], NaN where fewer than K were given.
    """

    text: str
    reason: str
    finish: Finish | None
    reasoning: str | None = None
    ids: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    usage: Usage | None = None


FINISH: Mapping[str, Finish] = {
    "stop": Finish.STOP,
    "eos": Finish.STOP,
    "eos_token": Finish.STOP,
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "model_length": Finish.LENGTH,
}
"""The words of several vendors and servers for the two ordinary ends."""


def sample_name(request: Request, sample: int) -> str:
    """What identifies a sample to every random choice: (seed, step, key, sample), and nothing about order."""
    return json.dumps([request.seed, request.step, request.key or request.id, sample])


def sample_seed(request: Request, sample: int) -> int:
    """The `seed` of one call: 31 bits, because some servers keep it in a signed 32-bit integer."""
    digest = hashlib.sha256(sample_name(request, sample).encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


def call_body(config: RemoteConfig, request: Request, sample: int, *, logprobs: bool) -> dict[str, Any]:
    """The JSON body of the call for one sample. Fields beyond the common format go only when they say something."""
    s = request.sampling
    body: dict[str, Any] = {
        "model": config.model,
        "messages": [{"role": m.role, "content": _well_formed(m.content)} for m in request.prompt.messages],
        "temperature": s.temperature,
        config.max_tokens_field: s.max_tokens,
        "seed": sample_seed(request, sample),
    }
    if s.top_p != 1.0:
        body["top_p"] = s.top_p
    if s.stop:
        body["stop"] = list(s.stop)
    for name, value, off in (("top_k", s.top_k, 0), ("min_p", s.min_p, 0.0), ("ignore_eos", s.ignore_eos, False)):
        if value != off:
            body[name] = value
    if logprobs:
        body["logprobs"] = True
        if config.top_logprobs:
            body["top_logprobs"] = config.top_logprobs
    if config.reasoning_effort is not None:
        body["reasoning_effort"] = config.reasoning_effort
    if config.send_stream:
        body["stream_ids"] = {
            "seed": request.seed,
            "step": request.step,
            "key": request.key or request.id,
            "sample": sample,
        }
    return {k: v for k, v in (body | config.extra_body).items() if k not in config.omit}


def _well_formed(text: str) -> str:
    """Lone surrogates, which JSON data can hold and UTF-8 cannot, become replacement characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_reply(content: bytes) -> Reply:
    """The first choice of an answer's body. Raises BadReply for anything that is cut, invalid or incomplete."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"the body is not JSON ({error})") from None
    choice = _first_choice(body)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise BadReply("the first choice has no message")
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or not reason:
        raise BadReply("the first choice has no finish_reason")
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    logprobs, top = _read_logprobs(choice.get("logprobs"))
    return Reply(
        text=_text(message.get("content")) or _text(message.get("refusal")),
        reason=reason,
        finish=FINISH.get(reason.lower()),
        reasoning=_text(reasoning) or None,
        ids=_read_ids(choice.get("token_ids")),
        logprobs=logprobs,
        top_logprobs=top,
        usage=_read_usage(body.get("usage")),
    )


def _first_choice(body: Any) -> Mapping[str, Any]:
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise BadReply("the body holds no choices")
    return choices[0]


def _text(content: Any) -> str:
    """Content is text, null, or a list of typed parts of which the text ones count."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [p.get("text") for p in content if isinstance(p, Mapping) and p.get("type", "text") == "text"]
        return "".join(p for p in parts if isinstance(p, str))
    raise BadReply(f"the message's content is of an unknown kind ({type(content).__name__})")


def _read_ids(ids: Any) -> np.ndarray | None:
    """int32 [R] from the `token_ids` that some servers add when asked through `extra_body`."""
    if not isinstance(ids, list) or not all(isinstance(i, int) and 0 <= i < 2**31 for i in ids):
        return None
    return np.asarray(ids, np.int32)


def _read_logprobs(block: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """([R], [R, K]) in natural log; None for each that the answer does not hold."""
    tokens = block.get("content") if isinstance(block, Mapping) else None
    if not isinstance(tokens, list) or not tokens:
        return None, None
    try:
        logprobs = np.asarray([token["logprob"] for token in tokens], np.float32)
        rows = [[t["logprob"] for t in token.get("top_logprobs") or ()] for token in tokens]
        k = max(map(len, rows))
        top = np.asarray([row + [np.nan] * (k - len(row)) for row in rows], np.float32) if k else None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise BadReply("the log-probabilities cannot be read") from None
    return logprobs, top


def _read_usage(usage: Any) -> Usage | None:
    if not isinstance(usage, Mapping):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    return Usage(
        prompt,
        completion,
        cached=_detail(usage.get("prompt_tokens_details"), "cached_tokens"),
        reasoning=_detail(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _detail(details: Any, name: str) -> int:
    value = details.get(name) if isinstance(details, Mapping) else None
    return value if isinstance(value, int) else 0
