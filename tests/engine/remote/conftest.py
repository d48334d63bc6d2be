"""Requests with made-up content, engines that wait milliseconds, and a server that says what it is told."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from starlette.responses import Response

from noisyjax.engine.remote import RemoteConfig, RemoteEngine
from noisyjax.engine.server import EchoResponder
from noisyjax.engine.server.app import ChatApp, running
from noisyjax.records import Label, Message, NoisyPrompt, Part, Request, Sampling

Script = Callable[[dict[str, Any], int], tuple[int, Any]]
"""(the call's body, how often it was seen before) -> (status, JSON body or raw bytes)."""


class ScriptedApp(ChatApp):
    """Answers by script; keeps the headers of each call."""

    def __init__(self, script: Script) -> None:
        super().__init__(EchoResponder())
        self.script = script
        self.headers: list[dict[str, str]] = []

    async def _answer(self, request: Any, raw: bytes, digest: str, attempt: int) -> Response:
        self.headers.append(dict(request.headers))
        # In a thread: a script may wait for the test, and other calls are answered meanwhile.
        status, body, *headers = await asyncio.to_thread(self.script, json.loads(raw), attempt)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Response(content, status, headers[0] if headers else None, media_type="application/json")


@pytest.fixture
def make_request() -> Callable[..., Request]:
    """make_request(3, n=2, temperature=1.0): question number 3."""

    def make(i: int, n: int = 1, first_sample: int = 0, over_length: bool = False, **sampling: Any) -> Request:
        message = Message("user", (Part(f"Question number {i}: what is it?", Label.QUESTION),))
        none = np.zeros(0, np.int32), np.zeros(0, np.uint8)
        prompt = NoisyPrompt("made_up", f"q{i}", "ND", (message,), *none, over_length=over_length)
        return Request(f"r{i}", prompt, Sampling(**sampling), n=n, first_sample=first_sample, key=f"q{i}")

    return make


@pytest.fixture
def serve() -> Iterator[Callable[[ChatApp], str]]:
    """serve(app) -> base_url; ended with the test."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(running(app))


@pytest.fixture
def scripted(serve: Callable[[ChatApp], str]) -> Callable[[Script], tuple[ScriptedApp, str]]:
    def start(script: Script) -> tuple[ScriptedApp, str]:
        app = ScriptedApp(script)
        return app, serve(app)

    return start


@pytest.fixture
def connect() -> Iterator[Callable[..., RemoteEngine]]:
    """connect(url, **settings) -> engine with short waits; closed with the test."""
    with ExitStack() as stack:

        def make(url: str, environ: dict[str, str] | None = None, **settings: Any) -> RemoteEngine:
            base = {"base_url": url, "model": "echo", "backoff_s": 0.01, "timeout_s": 5.0, "outage_s": 1.0}
            engine = RemoteEngine(RemoteConfig(**base | settings), environ or {})
            stack.callback(engine.close)
            return engine

        yield make


@pytest.fixture
def good() -> Callable[..., dict[str, Any]]:
    """A whole answer's body; keywords replace fields of the choice."""

    def make(text: str = "fine", usage: Any = None, **choice: Any) -> dict[str, Any]:
        base = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"choices": [base | choice], "usage": usage}

    return make
