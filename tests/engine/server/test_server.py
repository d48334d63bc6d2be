"""The server as other clients see it, and the engine behind it."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from hashlib import sha256
from typing import Any

import numpy as np
import openai
import pytest

from noisyjax.engine.remote import RemoteConfig, RemoteEngine
from noisyjax.engine.server import FAULTS, Chat, EchoResponder, EngineResponder, FaultPlan
from noisyjax.engine.server.app import ChatApp, bind, running
from noisyjax.errors import RunError
from noisyjax.records import Completion, Finish, Label, Message, NoisyPrompt, Part, Request, Sampling

Serve = Callable[[ChatApp], str]
ASK = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}], "temperature": 0}


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(running(app))


def fetch(url: str, content: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """(status, JSON) of a GET, or of a POST of `content`."""
    call = urllib.request.Request(url, content, headers or {})
    try:
        with urllib.request.urlopen(call, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    return fetch(f"{url}/chat/completions", json.dumps(body).encode(), headers)


def test_the_stock_client_can_drive_it(serve: Serve) -> None:
    client = openai.OpenAI(base_url=serve(ChatApp(EchoResponder())), api_key="none")
    assert [m.id for m in client.models.list()] == ["echo"]
    call: Any = ASK | {"n": 2, "logprobs": True, "top_logprobs": 2, "temperature": 1.0}
    done = client.chat.completions.create(**call)
    assert len({c.message.content for c in done.choices}) == 2
    assert done.usage is not None
    assert done.usage.prompt_tokens == 3
    first = done.choices[0]
    assert first.logprobs is not None
    assert "".join(t.token for t in first.logprobs.content or []) == first.message.content
    assert [len(t.top_logprobs) for t in first.logprobs.content or []] == [2] * len(first.logprobs.content or [])


def test_equal_calls_get_equal_bytes_from_any_server(serve: Serve) -> None:
    first, second = serve(ChatApp(EchoResponder())), serve(ChatApp(EchoResponder()))
    assert post(first, ASK) == post(first, ASK) == post(second, ASK)
    other = ASK | {"messages": [{"role": "user", "content": "one two four"}]}
    assert post(first, other)[1]["choices"] != post(first, ASK)[1]["choices"]


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"min_q": 0.1}, 400, "min_q: unknown field; did you mean 'min_p'?"),
        ({"stream": True}, 400, "stream: "),
        ({"messages": []}, 400, "messages: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text"),
        ({"temperature": -1}, 400, "temperature: "),
        ({"model": "gpt"}, 404, "the model 'gpt' does not exist; this server has 'echo'"),
    ],
)
def test_what_it_cannot_obey_it_refuses(change: dict[str, Any], status: int, words: str, serve: Serve) -> None:
    got, body = post(serve(ChatApp(EchoResponder())), ASK | change)
    assert got == status
    assert words in body["error"]["message"]


def test_other_refusals(serve: Serve) -> None:
    url = serve(ChatApp(EchoResponder(context=2)))
    assert post(url, ASK)[1]["error"]["code"] == "context_length_exceeded"
    assert fetch(f"{url}/chat/completions", b"{nope")[0] == 400
    assert fetch(f"{url}/chat/completions", b"[]")[0] == 400
    locked = serve(ChatApp(EchoResponder(), key="k"))
    assert post(locked, ASK)[0] == 401
    assert post(locked, ASK, authorization="Bearer k")[0] == 200


def test_parts_of_text_are_joined(serve: Serve) -> None:
    url = serve(ChatApp(EchoResponder()))
    parts = [{"type": "text", "text": "one two "}, {"type": "text", "text": "three"}]
    in_parts = ASK | {"messages": [{"role": "user", "content": parts}]}
    assert post(url, in_parts)[1]["choices"] == post(url, ASK)[1]["choices"]


def test_faults_are_a_function_of_body_and_attempt_at_about_the_rate_asked_for() -> None:
    plan = FaultPlan(rate=0.2, seed=3)
    drawn = [plan.pick(f"body {i}", 0) for i in range(4000)]
    assert drawn == [plan.pick(f"body {i}", 0) for i in range(4000)]
    assert 0.18 < sum(d is not None for d in drawn) / 4000 < 0.22
    assert set(drawn) == {None, *FAULTS}
    assert drawn != [FaultPlan(rate=0.2, seed=4).pick(f"body {i}", 0) for i in range(4000)]


def test_a_body_never_fails_more_often_in_a_row_than_promised() -> None:
    plan = FaultPlan(rate=1.0, most=3)
    assert [plan.pick("body", i) is None for i in range(8)] == [False, False, False, True] * 2


def test_counts_say_what_was_seen(serve: Serve) -> None:
    url = serve(ChatApp(EchoResponder(), FaultPlan(rate=1.0, kinds=("server_error",), most=1)))
    assert [post(url, ASK)[0] for _ in range(3)] == [500, 200, 500]
    counts = fetch(url.removesuffix("/v1") + "/counts")[1]
    assert counts == {"calls": 3, "bodies": 1, "in_flight": 0, "most_in_flight": 1, "faults": {"server_error": 2}}


def test_a_taken_port_is_one_clear_line() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(RunError, match=r"cannot listen on .*--port"):
        bind("127.0.0.1", taken.getsockname()[1])


def test_the_command_refuses_an_unknown_fault() -> None:
    command = [sys.executable, "-m", "noisyjax.engine.server", "--fail-kinds", "stal"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: unknown kind of failure 'stal'; did you mean 'stall'?\n"


def test_the_command_says_which_extra_is_missing() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv = ['server', '--port', '0'];"
        "from noisyjax.engine.server.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "needs starlette and uvicorn (uvicorn is missing)" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupted_server_ends_quietly() -> None:
    command = [sys.executable, "-m", "noisyjax.engine.server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        assert fetch(f"{url}/models")[0] == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    assert process.returncode in (0, 130)


# An engine behind the server. The fake below stands for a model: its tokens depend on all that a real one's depend on.


class FakeEngine:
    """Token i of a sample is a function of the prompt's ids and of (seed, step, key, sample). Remembers its batches."""

    name = "fake"

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        self.batches.append([])
        for r in requests:
            self.batches[-1].append(r.id)
            if "break" in r.prompt.messages[-1].content:
                raise ValueError("the model broke")
            if "long" in r.prompt.messages[-1].content:
                yield from (Completion(r.id, r.first_sample + i, "", Finish.OVER_LENGTH) for i in range(r.n))
                continue
            for sample in reversed(range(r.first_sample, r.first_sample + r.n)):
                name = f"{r.prompt.ids.tolist()}{r.seed}{r.step}{r.key}{sample}{r.sampling}"
                ids = np.frombuffer(sha256(name.encode()).digest()[:12], np.uint8).astype(np.int32)
                text, k = " ".join(map(str, ids)), np.stack([ids, ids + 1], 1)
                lp = -ids.astype(np.float32) / 100
                tops = np.stack([lp, lp - 1], 1)
                yield Completion(
                    r.id, sample, text, Finish.LENGTH, ids, lp, top_ids=k, top_logprobs=tops, completion_tokens=len(ids)
                )

    def close(self) -> None:
        pass


def render(messages: Any, chat: Chat) -> NoisyPrompt:
    joined = "".join(m.content for m in messages)
    ids = np.frombuffer(joined.encode(), np.uint8).astype(np.int32)
    parts = tuple(Message(m.role, (Part(m.content, Label.QUESTION),)) for m in messages)
    return NoisyPrompt("d", "q", "ND", parts, ids, np.zeros(len(ids), np.uint8))


def question(i: int, text: str = "") -> Request:
    message = Message("user", (Part(text or f"question {i}", Label.QUESTION),))
    return Request(f"r{i}", render([message], Chat(**ASK)), Sampling(max_tokens=9), n=2, seed=5, step=2, key=f"q{i}")


def test_an_engine_gives_the_same_tokens_through_the_server_as_directly(serve: Serve) -> None:
    requests = [question(i) for i in range(6)]
    direct = {(c.request_id, c.sample): c for c in FakeEngine().generate(requests)}
    config = RemoteConfig(
        base_url=serve(ChatApp(EngineResponder(FakeEngine(), render, top=2))),
        model="fake",
        send_stream=True,
        top_logprobs=2,
        extra_body={"return_token_ids": True},
        concurrency=4,
    )
    with closing(RemoteEngine(config, {})) as engine:
        through = {(c.request_id, c.sample): c for c in engine.generate(requests)}
    assert through.keys() == direct.keys()
    for key, there in direct.items():
        here = through[key]
        assert (here.text, here.finish, here.completion_tokens) == (there.text, there.finish, there.completion_tokens)
        assert here.prompt_tokens == len(f"question {key[0][1:]}")
        for name in ("ids", "logprobs", "top_logprobs"):
            np.testing.assert_array_equal(getattr(here, name), getattr(there, name))


@pytest.mark.parametrize(("top", "asked", "words"), [(None, 0, "gives none"), (1, 2, "gives at most 1")])
def test_log_probabilities_that_the_engine_lacks_are_refused(
    top: int | None, asked: int, words: str, serve: Serve
) -> None:
    url = serve(ChatApp(EngineResponder(FakeEngine(), render, top=top)))
    status, body = post(url, ASK | {"model": "fake", "logprobs": True, "top_logprobs": asked})
    assert (status, words in body["error"]["message"]) == (400, True)


def test_several_choices_of_one_call_come_in_order(serve: Serve) -> None:
    url = serve(ChatApp(EngineResponder(FakeEngine(), render)))
    call = ASK | {"model": "fake", "n": 3, "seed": 1}
    texts = [c["message"]["content"] for c in post(url, call)[1]["choices"]]
    assert len(set(texts)) == 3
    assert texts == [c["message"]["content"] for c in post(url, call)[1]["choices"]]


def test_an_engine_that_breaks_is_a_500_and_the_server_goes_on(serve: Serve) -> None:
    url = serve(ChatApp(EngineResponder(FakeEngine(), render)))

    def ask(text: str) -> tuple[int, Any]:
        return post(url, {"model": "fake", "messages": [{"role": "user", "content": text}]})

    status, body = ask("break")
    assert (status, body["error"]["message"]) == (500, "ValueError: the model broke")
    assert ask("long")[1]["error"]["code"] == "context_length_exceeded"
    assert ask("fine")[0] == 200
