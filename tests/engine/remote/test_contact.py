"""Silences of an endpoint, by a clock of our own."""

import pytest

from noisyjax.engine.remote import RemoteConfig
from noisyjax.engine.remote.contact import Contact
from noisyjax.errors import RunError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def contact(clock: Clock, **settings: float) -> Contact:
    return Contact(RemoteConfig(base_url="http://h/v1", model="m", **settings), clock)


def test_the_first_contact_may_take_ten_seconds_whatever_a_call_takes(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    subject = contact(clock)
    clock.now = 104.0  # the call took four seconds to fail: they are part of the silence
    assert subject.refused(100.0, "no route") == 6.0
    clock.now = 109.5
    assert subject.refused(108.0, "no route") == 0.5
    clock.now = 110.0
    with pytest.raises(RunError, match=r"nothing answered at http://h/v1 for 10 s \(no route\).*first_contact_s"):
        subject.refused(109.5, "no route")
    assert [r.getMessage() for r in caplog.records] == ["http://h/v1 does not answer (no route): trying again for 10 s"]


def test_who_has_answered_may_be_away_for_longer(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    subject = contact(clock)
    subject.answered()
    assert subject.refused(100.0, "refused") == 120.0
    clock.now = 219.0
    assert subject.refused(219.0, "refused") == 1.0
    subject.answered()
    clock.now = 400.0
    assert subject.refused(400.0, "refused") == 120.0  # a silence of its own
    clock.now = 520.0
    with pytest.raises(RunError, match=r"has refused connections for 120 s \(refused\)\. .*start the same run again"):
        subject.refused(520.0, "refused")
    away, back = "http://h/v1 answers no more (refused): trying again for 120 s", "http://h/v1 answers now"
    assert [r.getMessage() for r in caplog.records] == [away, back, away]


def test_a_short_outage_bounds_the_first_contact_too() -> None:
    assert contact(Clock(), outage_s=3.0).refused(100.0, "x") == 3.0
