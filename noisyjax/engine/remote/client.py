"""`RemoteEngine`: requests in, completions out, over an OpenAI-compatible endpoint.

The calls run on an event loop in a thread of their own; `generate` is a plain iterator in the caller's thread. It pulls
a request only when a call may start, so at most `concurrency` samples are in flight and nothing is read ahead.
"""

import asyncio
import json
import logging
import math
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import openai

from noisyjax.engine.remote.backoff import delay
from noisyjax.engine.remote.config import RemoteConfig
from noisyjax.engine.remote.contact import RESUME, Contact
from noisyjax.engine.remote.failures import Action, Failure, from_exception, from_status, one_line
from noisyjax.engine.remote.stats import Stats
from noisyjax.engine.remote.wire import BadReply, Reply, call_body, read_reply, sample_name
from noisyjax.errors import RunError, nearest
from noisyjax.records import Completion, Finish, Request

CONNECT_S = 10.0
"""Seconds to open a connection; a host that does not react in this time counts as unreachable."""

log = logging.getLogger(__name__)


class RemoteEngine:
    """An `Engine` over HTTP. See `RemoteConfig` for every setting; `stats` says what it took.

    Of a sample only (seed, step, key, sample) and the messages reach the endpoint: no result depends on order.
    """

    def __init__(self, config: RemoteConfig, environ: Mapping[str, str] = os.environ) -> None:
        """Raises UsageError when the key's variable is not set or the price table cannot be read. Calls nobody."""
        self.name = config.model
        self.config = config
        self._secret = config.api_key(environ)
        self._stats = Stats(price=config.price())
        self._logprobs = config.logprobs or config.top_logprobs > 0
        self._lost_in_a_row = 0
        self._contact = Contact(config)
        # Without a key of our own the client would send OPENAI_API_KEY, whatever the address.
        self._client = openai.AsyncOpenAI(
            base_url=config.base_url,
            api_key=self._secret or "none",
            max_retries=0,
            timeout=openai.Timeout(config.timeout_s, connect=min(config.timeout_s, CONNECT_S)),
        )
        # Bound now: the client imports its parts at first use, for seconds that would count as the first call's.
        self._create = self._client.chat.completions.with_raw_response.create
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="remote-engine", daemon=True)
        self._thread.start()

    @property
    def stats(self) -> dict[str, Any]:
        """Calls, retries by kind, tokens, cost in dollars (None when the price is unknown), warnings; JSON-ready."""
        return self._stats.snapshot()

    def close(self) -> None:
        """End the calls in flight and the thread. The engine cannot be used afterwards; closing twice is harmless."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    async def _end(self) -> None:
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._client.close()

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions in the order they finish. RunError when the endpoint is of no use to any further sample."""
        if self._loop.is_closed():
            raise RuntimeError("the engine is closed")
        jobs = ((request, request.first_sample + i) for request in requests for i in range(request.n))
        done: queue.SimpleQueue[Future[Completion]] = queue.SimpleQueue()
        flying: set[Future[Completion]] = set()
        try:
            while True:
                while len(flying) < self.config.concurrency and (job := next(jobs, None)) is not None:
                    future = asyncio.run_coroutine_threadsafe(self._sample(*job), self._loop)
                    flying.add(future)
                    future.add_done_callback(done.put)
                if not flying:
                    return
                future = done.get()
                flying.discard(future)
                if future.exception() is not None:
                    yield from _answered(done)
                yield future.result()
        finally:
            for future in flying:
                future.cancel()

    async def _sample(self, request: Request, sample: int) -> Completion:
        """One sample: calls until there is an answer, or a reason to stop."""
        if request.prompt.over_length:
            return self._over_length(request, sample, "the question alone exceeds the token budget")
        tries = 0
        refused = 0
        while True:
            body = call_body(self.config, request, sample, logprobs=self._logprobs)
            began = self._contact.clock()
            result = await self._call(body)
            if isinstance(result, Reply):
                return self._completion(request, sample, result, asked="logprobs" in body)
            if result.action is Action.UNREACHABLE:
                left = self._contact.refused(began, result.words)
                refused += 1
                await self._wait(refused - 1, request, sample, result, at_most=left)
            elif result.action is Action.RETRY and tries < self.config.max_retries:
                tries += 1
                await self._wait(tries - 1, request, sample, result)
            elif result.action is Action.REJECTED and "logprobs" in body and "logprob" in result.words.lower():
                self._logprobs = False
                self._warn(f"the endpoint refuses log-probabilities ({result.words}); they are asked for no more")
            else:
                return await self._give_up(request, sample, result, tries)

    async def _call(self, body: dict[str, Any]) -> Reply | Failure:
        """One HTTP call. Failures are values: as exceptions they would drag the call's headers into tracebacks."""
        self._stats.calls += 1
        known = {"model": body["model"], "messages": body["messages"]}
        rest = {k: v for k, v in body.items() if k not in known}
        try:
            async with asyncio.timeout(self.config.timeout_s):
                raw = await self._create(**known, extra_body=rest)
            content = raw.http_response.content
        except (openai.APIError, TimeoutError) as error:
            failure = from_exception(error)
            if failure.status is not None:
                self._contact.answered()
            return self._clean(failure)
        self._contact.answered()
        try:
            return read_reply(content)
        except BadReply as error:
            return self._clean(_inside_200(content, error))

    async def _wait(
        self, attempt: int, request: Request, sample: int, failure: Failure, at_most: float = math.inf
    ) -> None:
        """Sleep before the next try. RunError when the endpoint asks for more patience than the config allows."""
        c = self.config
        if failure.asked_s is not None and failure.asked_s > c.patience_s:
            raise RunError(
                f"{c.base_url} asks to wait {failure.asked_s:.0f} s ({failure.words}), "
                f"longer than patience_s={c.patience_s:g}. {RESUME}"
            )
        self._stats.retries[failure.kind] += 1
        name = sample_name(request, sample)
        wait = delay(attempt, name, base_s=c.backoff_s, cap_s=c.backoff_cap_s, asked_s=failure.asked_s)
        await asyncio.sleep(min(wait, at_most))

    async def _give_up(self, request: Request, sample: int, failure: Failure, tries: int) -> Completion:
        """The sample's last word as a completion; RunError where the failure concerns every sample."""
        if failure.action is Action.OVER_LENGTH:
            return self._over_length(request, sample, failure.words)
        if failure.action is Action.FILTERED:
            self._stats.filtered += 1
            return self._error(request, sample, f"content filter: {failure.words}")
        if failure.action is Action.REFUSED:
            raise RunError(self._refusal(failure))
        if failure.action is Action.UNKNOWN_MODEL:
            raise RunError(await self._unknown_model(failure))
        again = f"after {tries + 1} tries, " if failure.action is Action.RETRY else ""
        words = f"{again}{failure.kind}: {failure.words}"
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= self.config.give_up_after:
            raise RunError(
                f"{self.config.base_url} answered none of the last {self._lost_in_a_row} samples ({words}). "
                f"If it does not know a field of the call, name the field in `omit`. {RESUME}"
            )
        return self._error(request, sample, words)

    def _refusal(self, failure: Failure) -> str:
        """Endpoints quote a part of a wrong key in their message, so that it is left out for 401 and 403."""
        source = f"${self.config.api_key_env}" if self.config.api_key_env else "no key (api_key_env is not set)"
        if failure.status in (401, 403):
            return (
                f"{self.config.base_url} refused {source} ({failure.status}): check the key and its right to use "
                f"'{self.config.model}'. {RESUME}"
            )
        return f"{self.config.base_url} wants credit ({failure.status}: {failure.words}). Top up the account. {RESUME}"

    async def _unknown_model(self, failure: Failure) -> str:
        """Names the nearest model the endpoint has, when it is willing to list them."""
        try:
            async with asyncio.timeout(min(10.0, self.config.timeout_s)):
                names = [model.id async for model in self._client.models.list()]
        except (openai.OpenAIError, TimeoutError, ValueError):
            names = []
        hint = nearest(self.config.model, names[:50]) if names else "is base_url right, up to and including /v1?"
        return f"{self.config.base_url} does not know the model '{self.config.model}' ({failure.words}); {hint}"

    def _completion(self, request: Request, sample: int, reply: Reply, asked: bool) -> Completion:
        self._lost_in_a_row = 0
        cost = self._stats.count(reply.usage)
        if asked and reply.logprobs is None and reply.text:
            self._warn("log-probabilities were asked for, but there are answers that hold none")
        done = Completion(
            request.id,
            sample,
            reply.text,
            reply.finish or Finish.ERROR,
            ids=reply.ids,
            logprobs=reply.logprobs,
            top_logprobs=reply.top_logprobs,
            reasoning=reply.reasoning,
            prompt_tokens=reply.usage.prompt if reply.usage else 0,
            completion_tokens=reply.usage.completion if reply.usage else 0,
            cost=cost,
        )
        if reply.finish is not None:
            return done
        if reply.reason == "content_filter":
            self._stats.filtered += 1
            return replace(done, error="content filter: the endpoint cut the answer")
        self._stats.errors += 1
        return replace(done, error=f"the answer ended for a reason not known here: {one_line(reply.reason, 60)}")

    def _warn(self, words: str) -> None:
        """Said once: a warning is about the endpoint, not about a sample."""
        if words not in self._stats.warnings:
            self._stats.warnings.append(words)
            log.warning("%s: %s", self.config.base_url, words)

    def _over_length(self, request: Request, sample: int, words: str) -> Completion:
        self._stats.over_length += 1
        return Completion(request.id, sample, "", Finish.OVER_LENGTH, error=words)

    def _error(self, request: Request, sample: int, words: str) -> Completion:
        self._stats.errors += not words.startswith("content filter")
        return Completion(request.id, sample, "", Finish.ERROR, error=words)

    def _clean(self, failure: Failure) -> Failure:
        """Without the key, should the endpoint have quoted it."""
        return replace(failure, words=failure.words.replace(self._secret, "(key)")) if self._secret else failure


def _answered(done: "queue.SimpleQueue[Future[Completion]]") -> Iterator[Completion]:
    """What is finished already when the run must end: it was paid for, so it is handed out first."""
    while not done.empty():
        future = done.get()
        if not future.cancelled() and future.exception() is None:
            yield future.result()


def _inside_200(content: bytes, error: BadReply) -> Failure:
    """Some gateways answer 200 with an `error` object; anything else unreadable is a broken body, tried again."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    inner = body.get("error") if isinstance(body, Mapping) else None
    if isinstance(inner, Mapping):
        status = inner.get("code")
        return from_status(status if isinstance(status, int) and 400 <= status < 600 else 500, inner, {})
    return Failure(Action.RETRY, "bad_body", str(error))
