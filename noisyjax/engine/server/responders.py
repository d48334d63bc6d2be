"""Where answers come from: words drawn from a hash (`EchoResponder`) or any engine (`EngineResponder`)."""

import asyncio
import hashlib
import json
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from noisyjax.engine.server.protocol import Chat, ChatError, ChatMessage, Reply
from noisyjax.records import Completion, Engine, Finish, NoisyPrompt, Request

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jade", "knoll", "larch")


GATHER_S = 0.01
"""Clients send their calls one after another; waiting this long makes them one batch instead of one and the rest."""


class EchoResponder:
    """No model: eight to fifteen words drawn from a hash of the messages, and of the seed unless the temperature is 0.

    Counts one token per word of text. `context` words are the window; `delay_s` is how long an answer takes.
    """

    def __init__(self, model: str = "echo", context: int = 1_000_000, delay_s: float = 0.0) -> None:
        self.model, self.context, self.delay_s = model, context, delay_s

    async def answer(self, chat: Chat) -> list[Reply]:
        await asyncio.sleep(self.delay_s)
        prompt_tokens = sum(len(m.content.split()) for m in chat.messages)
        limit = chat.sampling(self.context).max_tokens
        if prompt_tokens >= self.context:
            words = f"maximum context length is {self.context} tokens, the messages have {prompt_tokens}"
            raise ChatError(400, "context_length_exceeded", words)
        return [self._reply(chat, i, prompt_tokens, limit) for i in range(chat.n)]

    def close(self) -> None:
        """Nothing to end."""

    def _reply(self, chat: Chat, index: int, prompt_tokens: int, limit: int) -> Reply:
        name = [[m.role, m.content] for m in chat.messages] + ([[chat.seed, index]] if chat.temperature else [])
        # A str seed of random.Random goes through SHA-512, so that it is equal on every Python.
        draw = random.Random(json.dumps(name))
        words = [draw.choice(_WORDS) for _ in range(draw.randint(4, 11))]
        pieces = [f"{w} " for w in (*words, "The", "answer", "is")] + [f"{draw.choice(_WORDS)}."]
        kept = pieces[:limit]
        logprobs = [-draw.random() for _ in kept]
        return Reply(
            text="".join(kept),
            finish="stop" if len(kept) == len(pieces) else "length",
            prompt_tokens=prompt_tokens,
            completion_tokens=len(kept),
            reasoning=f"I saw {len(chat.messages)} messages." if chat.reasoning_effort else None,
            tokens=kept,
            logprobs=logprobs,
            top=[[(t, lp), ("other", lp - 1)] for t, lp in zip(kept, logprobs, strict=True)],
        )


@dataclass
class _Waiting:
    """A call that waits for its `left` completions; `done` is set on the call's own event loop."""

    chat: Chat
    request: Request
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[list[Completion]]"
    got: list[Completion] = field(default_factory=list)

    def finish(self, result: "list[Completion] | ChatError") -> None:
        def settle() -> None:
            if self.done.done():  # the caller went away
                return
            if isinstance(result, ChatError):
                self.done.set_exception(result)
            else:
                self.done.set_result(result)

        self.loop.call_soon_threadsafe(settle)


class EngineResponder:
    """Any engine behind HTTP. One thread drives it, batch by batch: the calls that wait when a batch begins, and those
    that come while the engine still pulls.

    render: messages and call -> NoisyPrompt with token ids; it must be what a direct run uses, for equal ids give equal
    tokens. decode: token id -> its text, for the log-probabilities' `token` field. top: how many alternatives per token
    the engine can give; None when it gives no log-probabilities.
    """

    def __init__(
        self,
        engine: Engine,
        render: Callable[[Sequence[ChatMessage], Chat], NoisyPrompt],
        decode: Callable[[int], str] = str,
        top: int | None = None,
        default_tokens: int = 1024,
    ) -> None:
        self.model = engine.name
        self._engine, self._render, self._decode = engine, render, decode
        self._top_most, self._default_tokens = top, default_tokens
        self._inbox: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="engine-server", daemon=True)
        self._thread.start()
        self._count = 0

    async def answer(self, chat: Chat) -> list[Reply]:
        if (chat.logprobs or chat.top_logprobs) and self._top_most is None:
            raise ChatError(400, "no_logprobs", "logprobs: this server's engine gives none")
        if chat.top_logprobs > (self._top_most or 0):
            raise ChatError(400, "no_logprobs", f"top_logprobs: this server's engine gives at most {self._top_most}")
        prompt = self._render(chat.messages, chat)
        self._count += 1
        loop = asyncio.get_running_loop()
        waiting = _Waiting(chat, self._request(chat, prompt, f"call-{self._count}"), loop, loop.create_future())
        self._inbox.put(waiting)
        completions = await waiting.done
        return [self._reply(chat, prompt, c) for c in sorted(completions, key=lambda c: c.sample)]

    def close(self) -> None:
        """End the thread after the batch in hand, then the engine."""
        self._inbox.put(None)
        self._thread.join(timeout=30)
        self._engine.close()

    def _request(self, chat: Chat, prompt: NoisyPrompt, name: str) -> Request:
        sampling = chat.sampling(self._default_tokens)
        if chat.stream_ids is not None:
            ids = chat.stream_ids
            return Request(name, prompt, sampling, chat.n, ids.sample, ids.seed, ids.step, ids.key)
        text = json.dumps([[m.role, m.content] for m in chat.messages])
        return Request(name, prompt, sampling, chat.n, seed=chat.seed, key=hashlib.sha256(text.encode()).hexdigest())

    def _serve(self) -> None:
        """Batch after batch, until None is in the inbox."""
        while (first := self._inbox.get()) is not None:
            time.sleep(GATHER_S)
            open_calls: dict[str, _Waiting] = {}
            try:
                for completion in self._engine.generate(self._pull(first, open_calls)):
                    waiting = open_calls[completion.request_id]
                    waiting.got.append(completion)
                    if len(waiting.got) == waiting.request.n:
                        del open_calls[completion.request_id]
                        waiting.finish(waiting.got)
            except Exception as error:  # noqa: BLE001 - the callers get it as a 500; the server must outlive it
                for waiting in open_calls.values():
                    waiting.finish(ChatError(500, "engine_failed", f"{type(error).__name__}: {error}"))

    def _pull(self, waiting: _Waiting, open_calls: dict[str, _Waiting]) -> Iterator[Request]:
        """Requests for as long as some are there at once: an engine with rows in flight must never wait for a call."""
        while True:
            open_calls[waiting.request.id] = waiting
            yield waiting.request
            try:
                following = self._inbox.get_nowait()
            except queue.Empty:
                return
            if following is None:
                self._inbox.put(None)
                return
            waiting = following

    def _reply(self, chat: Chat, prompt: NoisyPrompt, done: Completion) -> Reply:
        if done.finish is Finish.OVER_LENGTH:
            raise ChatError(400, "context_length_exceeded", "the prompt exceeds the model's context length")
        if done.finish is Finish.ERROR:
            raise ChatError(500, "engine_failed", done.error or "the engine gave the sample up")
        finish: Literal["stop", "length"] = "stop" if done.finish is Finish.STOP else "length"
        ids = [] if done.ids is None else done.ids.tolist()
        logprobs = [] if done.logprobs is None else done.logprobs.tolist()
        return Reply(
            text=done.text,
            finish=finish,
            prompt_tokens=done.prompt_tokens or len(prompt.ids),
            completion_tokens=done.completion_tokens or len(ids),
            reasoning=done.reasoning,
            ids=None if done.ids is None else ids,
            tokens=[self._decode(i) for i in ids],
            logprobs=logprobs,
            top=self._top(done),
        )

    def _top(self, done: Completion) -> list[list[tuple[str, float]]]:
        if done.top_ids is None or done.top_logprobs is None:
            return []
        rows = zip(done.top_ids.tolist(), done.top_logprobs.tolist(), strict=True)
        return [[(self._decode(i), lp) for i, lp in zip(*row, strict=True)] for row in rows]
