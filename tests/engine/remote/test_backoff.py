from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.engine.remote.backoff import asked_wait, delay, unit


def test_waits_double_up_to_the_cap_within_their_jitter() -> None:
    for attempt, full in enumerate([1, 2, 4, 8, 10, 10]):
        wait = delay(attempt, "a", base_s=1.0, cap_s=10.0)
        assert full / 2 <= wait <= full


def test_jitter_depends_on_names_only_and_differs_between_them() -> None:
    waits = [delay(3, f"sample {i}", base_s=1.0, cap_s=60.0) for i in range(50)]
    assert waits == [delay(3, f"sample {i}", base_s=1.0, cap_s=60.0) for i in range(50)]
    assert len(set(waits)) == 50
    assert unit("backoff", "a", 0) != unit("backoff", "a", 1)


@given(st.integers(0, 10_000), st.floats(0, 1e6))
def test_an_asked_wait_is_never_undercut(attempt: int, asked: float) -> None:
    assert delay(attempt, "x", base_s=0.5, cap_s=60.0, asked_s=asked) >= asked


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2020 07:28:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_reads_what_the_endpoint_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_wait(headers, datetime(2026, 10, 21, 7, 28, tzinfo=UTC)) == seconds
