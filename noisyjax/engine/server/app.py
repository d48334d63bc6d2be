"""The ASGI application and ways to run it. Needs starlette and uvicorn."""

import asyncio
import contextlib
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from noisyjax.engine.server.faults import Counts, FaultPlan
from noisyjax.engine.server.protocol import ChatError, Responder, completion_body, read_chat
from noisyjax.errors import RunError, UsageError

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ImportError as missing:
    raise UsageError(
        f"the server needs starlette and uvicorn ({missing.name} is missing): pip install 'noisyjax[dev]'"
    ) from None


class CutResponse(Response):
    """Announces the whole body, sends half of it and ends: the client sees the connection break."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        half = bytes(self.body)[: len(self.body) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})


class ChatApp:
    """The three routes. `key` is the bearer token that calls must bring, None for none; `counts` is what was seen."""

    def __init__(self, responder: Responder, faults: FaultPlan | None = None, key: str | None = None) -> None:
        self.responder = responder
        self.faults = faults or FaultPlan()
        self.key = key
        self.counts = Counts()
        self.asgi = Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/counts", self.show_counts),
            ]
        )

    async def models(self, request: Request) -> Response:
        card = {"id": self.responder.model, "object": "model", "created": 0, "owned_by": "noisyjax"}
        return JSONResponse({"object": "list", "data": [card]})

    async def show_counts(self, request: Request) -> Response:
        return JSONResponse(self.counts.snapshot())

    async def chat(self, request: Request) -> Response:
        raw = await request.body()
        digest = hashlib.sha256(raw).hexdigest()
        attempt = self.counts.enter(digest)
        try:
            return await self._answer(request, raw, digest, attempt)
        except ChatError as error:
            return JSONResponse(error.body(), error.status)
        finally:
            self.counts.leave()

    async def _answer(self, request: Request, raw: bytes, digest: str, attempt: int) -> Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            raise ChatError(401, "invalid_api_key", "a wrong or missing key")
        fault = self.faults.pick(digest, attempt)
        if fault is not None:
            self.counts.faults[fault] += 1
            early = await self._fail_early(request, fault)
            if early is not None:
                return early
        chat = read_chat(_json(raw), self.responder.model)
        body = json.dumps(completion_body(chat, await self.responder.answer(chat), digest[:24])).encode()
        if fault == "cut_body":
            return CutResponse(body, media_type="application/json")
        if fault == "invalid_json":
            body = body[: len(body) // 2]
        return Response(body, media_type="application/json")

    async def _fail_early(self, request: Request, fault: str) -> Response | None:
        """The faults that need no answer to spoil; None for the others."""
        if fault == "rate_limit":
            error = ChatError(429, "rate_limit_exceeded", "slow down (a fault on purpose)")
            return JSONResponse(error.body(), 429, {"Retry-After": f"{self.faults.retry_after_s:g}"})
        if fault == "server_error":
            raise ChatError(500, "internal_error", "a fault on purpose")
        if fault == "stall":
            end = time.monotonic() + self.faults.stall_s
            while time.monotonic() < end and not await request.is_disconnected():
                await asyncio.sleep(0.05)
            raise ChatError(504, "stalled", "a fault on purpose")
        return None


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise ChatError(400, "invalid_json", f"the body is not JSON: {error}") from None


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. RunError when the port is taken."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise RunError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None


def server(app: ChatApp, log_level: str) -> uvicorn.Server:
    config = uvicorn.Config(
        app.asgi, log_level=log_level, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def running(app: ChatApp, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The app served from a thread; yields its `base_url`. For tests, benchmarks and notebooks."""
    listener = bind(host, port)
    live = server(app, log_level="critical")
    thread = threading.Thread(target=live.run, kwargs={"sockets": [listener]}, name="chat-server", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{listener.getsockname()[1]}/v1"
    finally:
        live.should_exit = True
        thread.join(timeout=10)
        listener.close()
        app.responder.close()
