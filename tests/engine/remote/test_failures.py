import pytest

from noisyjax.engine.remote.failures import Action, decide, error_words, from_status, one_line


@pytest.mark.parametrize(
    ("status", "code", "words", "action"),
    [
        (400, "context_length_exceeded", "too much", Action.OVER_LENGTH),
        (
            400,
            "",
            "This model's maximum context length is 4096 tokens. However, you requested 5000",
            Action.OVER_LENGTH,
        ),
        (400, "", "the request exceeds the available context size", Action.OVER_LENGTH),
        (400, "", "prompt is too long: 210000 tokens > 200000 maximum", Action.OVER_LENGTH),
        (413, "", "Input is too large for this model", Action.OVER_LENGTH),
        (422, "", "unknown field: min_p", Action.REJECTED),
        (400, "", "logprobs are not available", Action.REJECTED),
        (400, "content_filter", "the prompt was filtered", Action.FILTERED),
        (403, "", "the input was flagged by moderation", Action.FILTERED),
        (403, "", "no access", Action.REFUSED),
        (401, "", "bad key", Action.REFUSED),
        (402, "", "pay", Action.REFUSED),
        (429, "insufficient_quota", "You exceeded your current quota", Action.REFUSED),
        (429, "", "slow down", Action.RETRY),
        (408, "", "", Action.RETRY),
        (500, "", "", Action.RETRY),
        (503, "", "the context length service is down", Action.RETRY),
        (529, "", "overloaded", Action.RETRY),
        (404, "", "Not Found", Action.UNKNOWN_MODEL),
        (400, "model_not_found", "", Action.UNKNOWN_MODEL),
    ],
)
def test_what_is_done_about_it(status: int, code: str, words: str, action: Action) -> None:
    assert decide(status, code, words) is action


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"message": "m", "code": "c", "type": "t"}, ("c", "m")),
        ({"message": "m", "code": None, "type": "t"}, ("t", "m")),
        ({"error": {"message": "m", "code": 7}}, ("7", "m")),
        ({"error": "plain"}, ("", "plain")),
        ({"detail": [{"loc": ["body"], "msg": "bad"}]}, ("", '[{"loc": ["body"], "msg": "bad"}]')),
        ({"odd": 1}, ("", '{"odd": 1}')),
        ("<html>\n  <h1>Bad\nGateway</h1>", ("", "<html> <h1>Bad Gateway</h1>")),
        (None, ("", "(no message)")),
        ("", ("", "(no message)")),
    ],
)
def test_the_endpoints_words(body: object, expected: tuple[str, str]) -> None:
    assert error_words(body) == expected


def test_words_are_one_short_line() -> None:
    assert len(one_line("x" * 10_000)) == 300
    failure = from_status(429, {"message": "wait"}, {"retry-after": "3"})
    assert (failure.kind, failure.asked_s, failure.status) == ("http_429", 3.0, 429)


def test_an_endpoint_cannot_command_the_terminal() -> None:
    failure = from_status(500, {"message": "busy\x1b[2J\r\n\x07 \u202etxet"}, {})
    assert failure.words == "busy␛[2J ␇ ⟨202E⟩txet"
