import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.engine.remote import RemoteConfig
from noisyjax.engine.remote.wire import BadReply, Usage, call_body, read_reply, sample_seed
from noisyjax.records import Finish, Label, Message, Part, Request

Make = Callable[..., Request]
WHOLE: dict[str, Any] = {
    "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2},
}


def config(**settings: Any) -> RemoteConfig:
    return RemoteConfig(**{"base_url": "http://localhost:1/v1", "model": "m"} | settings)


def test_a_plain_call_holds_the_common_fields_only(make_request: Make) -> None:
    body = call_body(config(), make_request(1, max_tokens=7), 0, logprobs=False)
    assert body.pop("seed") == sample_seed(make_request(1), 0)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Question number 1: what is it?"}],
        "temperature": 0.0,
        "max_tokens": 7,
    }


def test_a_full_call(make_request: Make) -> None:
    settings = {
        "top_logprobs": 3,
        "reasoning_effort": "high",
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 0.5},
        "max_tokens_field": "max_completion_tokens",
        "omit": ("seed",),
        "send_stream": True,
    }
    request = make_request(1, temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, stop=("END",), ignore_eos=True)
    body = call_body(config(**settings), request, 4, logprobs=True)
    assert "seed" not in body
    assert body["stop"] == ["END"]
    assert (body["top_p"], body["top_k"], body["min_p"], body["ignore_eos"]) == (0.95, 20, 0.1, True)
    assert (body["logprobs"], body["top_logprobs"], body["reasoning_effort"]) == (True, 3, "high")
    assert body["max_completion_tokens"] == 1024
    assert body["temperature"] == 0.5  # extra_body has the last word
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["stream_ids"] == {"seed": 0, "step": 0, "key": "q1", "sample": 4}


def test_seeds_are_functions_of_seed_step_key_and_sample(make_request: Make) -> None:
    base = make_request(1)
    same = sample_seed(base, 3)
    assert sample_seed(replace(base, id="another id", n=9), 3) == same
    others = [replace(base, seed=1), replace(base, step=1), replace(base, key="q2")]
    assert len({same, sample_seed(base, 4), *(sample_seed(r, 3) for r in others)}) == 5
    assert all(0 <= sample_seed(base, i) < 2**31 for i in range(200))


def test_lone_surrogates_do_not_break_the_call(make_request: Make) -> None:
    request = make_request(1)
    message = Message("user", (Part("half \ud83d a pair, whole \ud83d\ude00", Label.QUESTION),))
    request = replace(request, prompt=replace(request.prompt, messages=(message,)))
    sent = call_body(config(), request, 0, logprobs=False)["messages"][0]["content"]
    assert sent == "half \ufffd a pair, whole \U0001f600"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", Finish.STOP), ("end_turn", Finish.STOP), ("LENGTH", Finish.LENGTH), ("max_tokens", Finish.LENGTH)]
    + [(word, None) for word in ("content_filter", "tool_calls", "abort")],
)
def test_finish_reasons(reason: str, finish: Finish | None, good: Callable[..., dict[str, Any]]) -> None:
    assert read_reply(json.dumps(good(finish_reason=reason)).encode()).finish is finish


def test_a_full_answer(good: Callable[..., dict[str, Any]]) -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    tokens = [
        {
            "token": "a",
            "logprob": -0.5,
            "top_logprobs": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -2}],
        },
        {"token": "b", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -1.0}]},
    ]
    body = good("ab", usage, logprobs={"content": tokens}, token_ids=[5, 6])
    body["choices"][0]["message"]["reasoning_content"] = "hm"
    reply = read_reply(json.dumps(body).encode())
    assert (reply.text, reply.reasoning, reply.usage) == ("ab", "hm", Usage(10, 3, 4, 2))
    assert reply.ids is not None
    assert reply.logprobs is not None
    np.testing.assert_array_equal(reply.ids, np.array([5, 6], np.int32))
    np.testing.assert_array_equal(reply.logprobs, np.array([-0.5, -1.0], np.float32))
    np.testing.assert_array_equal(reply.top_logprobs, np.array([[-0.5, -2.0], [-1.0, np.nan]], np.float32))


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": None, "reasoning": "only thoughts"}, "", "only thoughts"),
        ({"content": None, "refusal": "I will not."}, "I will not.", None),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}, "ab", None),
        ({"content": "x", "reasoning_content": None}, "x", None),
    ],
)
def test_shapes_of_content(
    message: dict[str, Any], text: str, reasoning: str | None, good: Callable[..., dict[str, Any]]
) -> None:
    reply = read_reply(json.dumps(good(message=message)).encode())
    assert (reply.text, reply.reasoning, reply.usage) == (text, reasoning, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": {"content": "a"}}]}',
        b'{"choices": [{"message": {"content": "a"}, "finish_reason": null}]}',
        b'{"choices": [{"message": {"content": 7}, "finish_reason": "stop"}]}',
        b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop", "logprobs": {"content": [{}]}}]}',
        b"\xff\xfe{",
        b"[" * 100_000,
    ],
)
def test_incomplete_bodies_are_bad_replies(body: bytes) -> None:
    with pytest.raises(BadReply):
        read_reply(body)


@given(st.integers(0, len(json.dumps(WHOLE)) - 1))
def test_no_cut_of_a_whole_body_passes_for_an_answer(length: int) -> None:
    with pytest.raises(BadReply):
        read_reply(json.dumps(WHOLE).encode()[:length])


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "finish_reason", "logprobs", "logprob", "usage", "token_ids"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(_json)
def test_any_json_is_an_answer_or_a_bad_reply(body: Any) -> None:
    try:
        reply = read_reply(json.dumps(body).encode())
    except BadReply:
        return
    assert isinstance(reply.text, str)
