"""The engine against a real server: what is asked, what comes back, in which order, at what cost."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from noisyjax.engine.remote import RemoteEngine
from noisyjax.engine.server import EchoResponder
from noisyjax.engine.server.app import ChatApp
from noisyjax.records import Completion, Finish, Request

Make = Callable[..., Request]
Serve = Callable[[ChatApp], str]
Connect = Callable[..., RemoteEngine]


def texts(completions: Iterator[Completion]) -> dict[tuple[str, int], str]:
    found = {(c.request_id, c.sample): c.text for c in completions}
    assert all(found.values())
    return found


def test_answers_do_not_depend_on_order_or_concurrency(make_request: Make, serve: Serve, connect: Connect) -> None:
    url = serve(ChatApp(EchoResponder()))
    requests = [make_request(i, n=3, temperature=1.0) for i in range(8)]
    one = texts(connect(url, concurrency=1).generate(requests))
    many = texts(connect(url, concurrency=7).generate(reversed(requests)))
    assert one == many
    assert len(one) == 24
    assert len({one["r0", i] for i in range(3)}) == 3  # samples of one question differ


def test_a_resumed_request_draws_the_samples_that_are_missing(
    make_request: Make, serve: Serve, connect: Connect
) -> None:
    engine = connect(serve(ChatApp(EchoResponder())))
    whole = texts(engine.generate([make_request(1, n=5, temperature=1.0)]))
    rest = texts(engine.generate([make_request(1, n=2, first_sample=3, temperature=1.0)]))
    assert rest == {key: whole[key] for key in [("r1", 3), ("r1", 4)]}


def test_no_more_calls_in_flight_than_allowed(make_request: Make, serve: Serve, connect: Connect) -> None:
    app = ChatApp(EchoResponder(delay_s=0.05))
    list(connect(serve(app), concurrency=3).generate(make_request(i) for i in range(12)))
    assert app.counts.most_in_flight == 3


def test_requests_are_pulled_only_when_there_is_room(make_request: Make, serve: Serve, connect: Connect) -> None:
    pulled = 0

    def source() -> Iterator[Request]:
        nonlocal pulled
        for i in range(100):
            pulled += 1
            yield make_request(i)

    engine = connect(serve(ChatApp(EchoResponder())), concurrency=2)
    completions = engine.generate(source())
    assert pulled == 0
    for taken in range(1, 6):
        next(completions)
        assert pulled <= taken + 2
    completions.close()
    assert pulled <= 7


def test_a_stopped_run_leaves_nothing_in_flight(make_request: Make, serve: Serve, connect: Connect) -> None:
    app = ChatApp(EchoResponder(delay_s=0.2))
    engine = connect(serve(app), concurrency=4)
    completions = engine.generate(make_request(i) for i in range(50))
    next(completions)
    completions.close()
    assert len(list(engine.generate([make_request(99)]))) == 1  # still usable
    assert app.counts.calls <= 9


def test_an_over_length_prompt_is_never_sent(make_request: Make, serve: Serve, connect: Connect) -> None:
    app = ChatApp(EchoResponder())
    engine = connect(serve(app))
    done = list(engine.generate([make_request(1, n=2, over_length=True)]))
    assert [(c.sample, c.finish) for c in done] == [(0, Finish.OVER_LENGTH), (1, Finish.OVER_LENGTH)]
    assert app.counts.calls == 0
    assert engine.stats["over_length"] == 2


def test_a_length_cut_is_reported_as_one(make_request: Make, serve: Serve, connect: Connect) -> None:
    (done,) = connect(serve(ChatApp(EchoResponder()))).generate([make_request(1, max_tokens=2)])
    assert (done.finish, done.completion_tokens) == (Finish.LENGTH, 2)


def test_log_probabilities_and_reasoning(make_request: Make, serve: Serve, connect: Connect) -> None:
    url = serve(ChatApp(EchoResponder()))
    (done,) = connect(url, top_logprobs=2, reasoning_effort="high").generate([make_request(1)])
    assert done.reasoning == "I saw 1 messages."
    assert done.logprobs is not None
    assert done.top_logprobs is not None
    assert done.logprobs.shape == (done.completion_tokens,)
    assert done.top_logprobs.shape == (done.completion_tokens, 2)
    np.testing.assert_array_equal(done.top_logprobs[:, 0], done.logprobs)
    (plain,) = connect(url).generate([make_request(1)])
    assert plain.logprobs is None
    assert plain.top_logprobs is None
    assert plain.reasoning is None


def test_refused_log_probabilities_are_said_once_and_lived_without(
    make_request: Make, scripted: Any, connect: Connect, good: Any
) -> None:
    def script(body: dict[str, Any], attempt: int) -> tuple[int, Any]:
        if "logprobs" in body:
            return 400, {"error": {"message": "logprobs are not supported by this model"}}
        return 200, good()

    engine = connect(scripted(script)[1], top_logprobs=5)
    done = list(engine.generate(make_request(i) for i in range(20)))
    assert [c.text for c in done] == ["fine"] * 20
    assert len(engine.stats["warnings"]) == 1
    assert engine.stats["retries"] == {}


def test_missing_log_probabilities_are_said_once(
    make_request: Make, scripted: Any, connect: Connect, good: Any
) -> None:
    engine = connect(scripted(lambda body, attempt: (200, good()))[1], logprobs=True)
    done = list(engine.generate(make_request(i) for i in range(5)))
    assert all(c.logprobs is None for c in done)
    assert len(engine.stats["warnings"]) == 1


def test_tokens_and_dollars(make_request: Make, scripted: Any, connect: Connect, good: Any, tmp_path: Any) -> None:
    table = tmp_path / "prices.yaml"
    table.write_text("echo: {input: 2, output: 10, cached_input: 1}\n")
    usage = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 400},
        "completion_tokens_details": {"reasoning_tokens": 60},
    }
    url = scripted(lambda body, attempt: (200, good(usage=None if "9:" in str(body) else usage)))[1]
    engine = connect(url, prices=str(table))
    done = {c.request_id: c for c in engine.generate(make_request(i) for i in (1, 2, 9))}
    each = (600 * 2 + 400 * 1 + 100 * 10) / 1e6
    assert (done["r1"].cost, done["r1"].prompt_tokens, done["r1"].completion_tokens) == (pytest.approx(each), 1000, 100)
    assert done["r9"].cost is None  # no token counts: unknown, not free
    stats = engine.stats
    assert stats["cost_usd"] == pytest.approx(2 * each)
    assert (stats["answers"], stats["without_usage"]) == (3, 1)
    assert (stats["prompt_tokens"], stats["cached_tokens"], stats["reasoning_tokens"]) == (2000, 800, 120)
    unpriced = connect(url)
    (free,) = unpriced.generate([make_request(1)])
    assert free.cost is None
    assert unpriced.stats["cost_usd"] is None
    json.dumps(unpriced.stats)


def test_the_key_reaches_the_endpoint_and_nothing_else(
    make_request: Make, scripted: Any, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    key = "sk-very-secret-hunter2"

    def script(body: dict[str, Any], attempt: int) -> tuple[int, Any]:
        if attempt == 0:
            return 500, {"error": {"message": f"failed for {key}"}}
        return 400, {"error": {"message": f"bad call with {key}"}}

    app, url = scripted(script)
    with caplog.at_level(logging.DEBUG):
        engine = connect(url, {"SOME_KEY": key}, api_key_env="SOME_KEY", logprobs=True)
        (done,) = engine.generate([make_request(1)])
    assert app.headers[0]["authorization"] == f"Bearer {key}"
    assert done.error == "http_400: bad call with (key)"
    seen = repr(done) + repr(engine) + repr(engine.config) + json.dumps(engine.stats) + caplog.text
    assert "hunter2" not in seen


def test_the_vendors_own_key_is_not_sent_to_other_endpoints(
    make_request: Make, scripted: Any, connect: Connect, good: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "hunter2")
    app, url = scripted(lambda body, attempt: (200, good()))
    list(connect(url).generate([make_request(1)]))
    assert "hunter2" not in json.dumps(app.headers)


def test_a_closed_engine_stays_closed(serve: Serve, connect: Connect, make_request: Make) -> None:
    engine = connect(serve(ChatApp(EchoResponder())))
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError):
        list(engine.generate([make_request(1)]))


def test_closing_ends_the_calls_in_flight(serve: Serve, connect: Connect, make_request: Make) -> None:
    app = ChatApp(EchoResponder(delay_s=30.0))
    engine = connect(serve(app), concurrency=1, timeout_s=60.0)
    completions = engine.generate(make_request(i) for i in range(3))
    closer = threading.Timer(0.5, engine.close)
    closer.start()
    with pytest.raises(CancelledError):
        next(completions)
    closer.join()


def test_neither_jax_nor_the_server_is_imported() -> None:
    code = "import sys, noisyjax.engine.remote as r; assert not {'jax', 'transformers', 'starlette'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
