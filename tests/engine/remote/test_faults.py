"""Endpoints that refuse, stall, send half an answer, or go away: what the samples and the run become."""

import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from noisyjax.engine.remote import RemoteEngine
from noisyjax.engine.server import FAULTS, EchoResponder, FaultPlan
from noisyjax.engine.server.app import ChatApp, bind, running
from noisyjax.errors import RunError
from noisyjax.records import Completion, Finish, Request

Make = Callable[..., Request]
Serve = Callable[[ChatApp], str]
Connect = Callable[..., RemoteEngine]


def answers(completions: Iterator[Completion]) -> dict[tuple[str, int], tuple[str, Finish]]:
    return {(c.request_id, c.sample): (c.text, c.finish) for c in completions}


def until_error(
    completions: Iterator[Completion], at: Callable[[int], object] = lambda n: None
) -> tuple[list[Completion], str]:
    """What is handed out before the run ends, and why it ends; `at(n)` is called after the n-th."""
    got: list[Completion] = []
    try:
        for completion in completions:
            got.append(completion)
            at(len(got))
    except RunError as error:
        return got, str(error)
    pytest.fail("the run did not end with an error")


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("fault", "counted_as"),
    zip(FAULTS, ("http_429", "http_500", "stalled", "connection", "bad_body"), strict=True),
)
def test_every_kind_of_fault_is_outlived(
    fault: str, counted_as: str, make_request: Make, serve: Serve, connect: Connect
) -> None:
    requests = [make_request(i, n=2, temperature=1.0) for i in range(3)]
    app = ChatApp(EchoResponder(), FaultPlan(rate=1.0, kinds=(fault,), most=2, retry_after_s=0.01))
    engine = connect(serve(app), timeout_s=1.0 if fault == "stall" else 20.0)
    assert answers(engine.generate(requests)) == answers(connect(serve(ChatApp(EchoResponder()))).generate(requests))
    assert app.counts.faults == {fault: 12}
    assert engine.stats["retries"] == {counted_as: 12}
    assert (engine.stats["answers"], engine.stats["errors"]) == (6, 0)


def test_one_failure_in_five_changes_nothing(make_request: Make, serve: Serve, connect: Connect) -> None:
    requests = [make_request(i, n=2, temperature=1.0) for i in range(40)]
    app = ChatApp(EchoResponder(), FaultPlan(rate=0.2, seed=1, retry_after_s=0.01))
    faulty = connect(serve(app), timeout_s=1.0)
    assert answers(faulty.generate(requests)) == answers(connect(serve(ChatApp(EchoResponder()))).generate(requests))
    assert set(app.counts.faults) == set(FAULTS)
    assert sum(app.counts.faults.values()) <= sum(faulty.stats["retries"].values())


def test_a_sample_that_fails_for_good_is_an_error_and_the_rest_goes_on(
    make_request: Make, scripted: Any, connect: Connect, good: Any
) -> None:
    def script(body: dict[str, Any], attempt: int) -> tuple[int, Any]:
        return (502, b"<html>Bad\nGateway</html>") if "number 2:" in str(body) else (200, good())

    engine = connect(scripted(script)[1], max_retries=2)
    done = {c.request_id: c for c in engine.generate(make_request(i) for i in range(5))}
    assert [done[f"r{i}"].finish is Finish.STOP for i in range(5)] == [True, True, False, True, True]
    assert done["r2"].finish is Finish.ERROR
    assert done["r2"].error == "after 3 tries, http_502: <html>Bad Gateway</html>"
    assert engine.stats["retries"] == {"http_502": 2}
    assert engine.stats["errors"] == 1


@pytest.mark.parametrize(
    ("status", "body", "finish", "words"),
    [
        (400, {"error": {"message": "min_p is not known"}}, Finish.ERROR, "http_400: min_p is not known"),
        (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, Finish.OVER_LENGTH, "x"),
        (400, {"error": {"message": "hm", "code": "content_filter"}}, Finish.ERROR, "content filter: hm"),
        (200, {"error": {"message": "odd", "code": 422}}, Finish.ERROR, "http_422: odd"),
    ],
)
def test_what_the_endpoint_turns_down_is_a_state_of_the_sample(
    status: int, body: Any, finish: Finish, words: str, make_request: Make, scripted: Any, connect: Connect
) -> None:
    app, url = scripted(lambda _body, _attempt: (status, body))
    (done,) = connect(url).generate([make_request(1)])
    assert (done.finish, done.error, done.text) == (finish, words, "")
    assert app.counts.calls == 1  # not tried again


@pytest.mark.parametrize(
    ("reason", "words"),
    [("content_filter", "content filter: the endpoint cut the answer"), ("abort", "not known here: abort")],
)
def test_answers_that_did_not_end_by_themselves(
    reason: str, words: str, make_request: Make, scripted: Any, connect: Connect, good: Any
) -> None:
    engine = connect(scripted(lambda body, attempt: (200, good("part", finish_reason=reason)))[1])
    (done,) = engine.generate([make_request(1)])
    assert (done.finish, done.text) == (Finish.ERROR, "part")
    assert words in (done.error or "")
    assert engine.stats["filtered"] == (reason == "content_filter")


def test_an_error_inside_a_200_is_tried_again(make_request: Make, scripted: Any, connect: Connect, good: Any) -> None:
    def script(body: dict[str, Any], attempt: int) -> tuple[int, Any]:
        return 200, ({"error": {"message": "overloaded", "code": 503}} if attempt == 0 else good())

    engine = connect(scripted(script)[1])
    (done,) = engine.generate([make_request(1)])
    assert done.text == "fine"
    assert engine.stats["retries"] == {"http_503": 1}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {"error": {"message": "Incorrect key sk-hun***er2"}}, r"refused \$SOME_KEY \(401\)"),
        (403, {"error": {"message": "not allowed"}}, r"refused \$SOME_KEY \(403\)"),
        (402, {"error": {"message": "no money"}}, "credit"),
        (429, {"error": {"message": "quota", "code": "insufficient_quota"}}, "credit"),
        (404, {"error": {"message": "no"}}, "did you mean 'echo'"),
    ],
)
def test_what_no_sample_can_get_past_ends_the_run_at_once(
    status: int, body: Any, words: str, make_request: Make, scripted: Any, connect: Connect
) -> None:
    app, url = scripted(lambda _body, _attempt: (status, body))
    engine = connect(url, {"SOME_KEY": "sk-hunter2"}, api_key_env="SOME_KEY", model="ecko", concurrency=2)
    with pytest.raises(RunError, match=words) as caught:
        list(engine.generate(make_request(i) for i in range(50)))
    assert app.counts.calls <= 2
    assert "sk-hun" not in "".join(traceback.format_exception(caught.value))


def test_answers_that_are_there_are_handed_out_before_the_run_ends(
    make_request: Make, scripted: Any, connect: Connect, good: Any
) -> None:
    refuse, answer = threading.Event(), threading.Event()

    def script(body: dict[str, Any], attempt: int) -> tuple[int, Any]:
        if "number 0:" in str(body):
            refuse.wait(10)
            return 401, {}
        assert "number 1:" in str(body) or answer.wait(10)
        return 200, good()

    engine = connect(scripted(script)[1], concurrency=4, timeout_s=20.0)

    def while_the_first_is_looked_at(n: int) -> None:
        """The refusal comes in, then the other answers: they stand behind it when the run must end."""
        if n == 1:
            refuse.set()
            time.sleep(0.3)
            answer.set()
            wait_for(lambda: engine.stats["answers"] == 3)
            time.sleep(0.1)  # counted a moment before it is handed on

    got, _ = until_error(engine.generate(make_request(i) for i in range(4)), while_the_first_is_looked_at)
    assert sorted(c.request_id for c in got) == ["r1", "r2", "r3"]


def test_many_losses_in_a_row_end_the_run(make_request: Make, scripted: Any, connect: Connect) -> None:
    url = scripted(lambda body, attempt: (400, {"error": {"message": "unknown field: seed"}}))[1]
    engine = connect(url, give_up_after=3, concurrency=1)
    got, error = until_error(engine.generate(make_request(i) for i in range(50)))
    assert re.search(r"none of the last 3 samples .*unknown field: seed.*`omit`", error)
    assert [c.finish for c in got] == [Finish.ERROR, Finish.ERROR]


def test_retry_after_is_obeyed(make_request: Make, scripted: Any, connect: Connect, good: Any) -> None:
    times: list[float] = []

    def script(body: dict[str, Any], attempt: int) -> tuple[Any, ...]:
        times.append(time.monotonic())
        return (429, {}, {"Retry-After": "0.4"}) if attempt == 0 else (200, good())

    list(connect(scripted(script)[1]).generate([make_request(1)]))
    assert times[1] - times[0] >= 0.4


def test_a_wait_beyond_patience_ends_the_run(make_request: Make, scripted: Any, connect: Connect) -> None:
    url = scripted(lambda body, attempt: (429, {"message": "daily limit"}, {"Retry-After": "7200"}))[1]
    with pytest.raises(RunError, match=r"asks to wait 7200 s \(daily limit\).*start the same run again"):
        list(connect(url).generate([make_request(1)]))


def test_nothing_at_the_address_is_said_at_once_and_waited_for_briefly(
    make_request: Make, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    engine = connect(f"http://127.0.0.1:{port}/v1", first_contact_s=0.3, outage_s=60.0, backoff_s=40.0)
    start = time.monotonic()
    with pytest.raises(RunError, match=r"nothing answered at .* for 0.3 s .*is the server running"):
        list(engine.generate(make_request(i) for i in range(10)))
    assert time.monotonic() - start < 20  # a back-off of 20 s and more would pass it
    (said,) = (r.getMessage() for r in caplog.records if r.name.startswith("noisyjax"))
    assert re.search(rf":{port}/v1 does not answer \(.*\): trying again for 0.3 s$", said)


@pytest.fixture
def server_process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "noisyjax.engine.server", "--port", "0", "--delay", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[0]
        process.kill()


def test_a_server_that_dies_midway_ends_the_run_with_the_way_to_resume(
    make_request: Make, connect: Connect, server_process: tuple[subprocess.Popen[str], str]
) -> None:
    process, url = server_process
    engine = connect(url, concurrency=2, timeout_s=30.0)
    completions = engine.generate(make_request(i) for i in range(500))
    got, error = until_error(completions, lambda n: process.kill() if n == 5 else None)
    assert re.search(r"has refused connections for 1 s .*start the same run again", error)
    assert 5 <= len(got) <= 7
    assert all(c.finish is Finish.STOP for c in got)


def test_a_server_that_comes_back_in_time_costs_nothing(make_request: Make, connect: Connect, serve: Serve) -> None:
    app = ChatApp(EchoResponder(delay_s=0.02))
    with running(app) as url:
        completions = connect(url, outage_s=30.0, concurrency=2).generate(make_request(i) for i in range(20))
        first = [next(completions) for _ in range(4)]
    port = int(url.split(":")[2].split("/")[0])
    with running(ChatApp(EchoResponder()), port=port):
        rest = list(completions)
    assert {c.request_id for c in first + rest} == {f"r{i}" for i in range(20)}
    assert all(c.finish is Finish.STOP for c in rest)
