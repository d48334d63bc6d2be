"""Progress lines, and signals that arrive at the wrong moment."""

import os
import signal

import pytest

from noisyjax.evaluate.progress import RunProgress
from noisyjax.interrupts import Interrupts, Stopped
from noisyjax.records import Completion, Finish, Score, State


def test_plain_lines_say_pace_states_and_time_left(capsys):
    now = [0.0]
    with RunProgress("run", total=100, done=20, clock=lambda: now[0]) as progress:
        assert progress.seconds_left() is None
        for i in range(20):
            now[0] += 1.0
            state = State.TRUNCATED if i % 5 == 0 else State.SCORED
            progress.add(Completion("r", 0, "", Finish.STOP, completion_tokens=30), Score(state, None), "musique RD")
        assert progress.figures() == "30 tokens/s, 4 truncated"
        assert progress.seconds_left() == pytest.approx(60.0)
        assert progress.line() == "run: 40/100 samples, 30 tokens/s, 4 truncated, about 1 min 00 s left"
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "run: 80 of 100 samples to do"
    assert lines[1].endswith("at musique RD")
    assert len(lines) == 3  # a line every fifteen seconds, and the last one


def test_live_line_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with RunProgress("run [x] {y}", total=2, done=0) as progress:
        progress.add(Completion("r", 0, "", Finish.STOP, completion_tokens=3), Score(State.SCORED, 1.0), "bbq ND")
        progress.say("a word [not markup], \x1b]0;title\x07")
    err = capsys.readouterr().err
    assert "run [x] {y}" in err
    assert "␛]0;title␇" in err
    assert "a word [not markup]" in err
    assert "1/2" in err


def test_signal_while_working_is_kept_until_the_next_wait():
    seen = []

    def items():
        yield from range(5)

    def work():
        with Interrupts() as interrupts:
            for item in interrupts.watch(items()):
                seen.append(item)
                if item == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                    seen.append("still here")

    with pytest.raises(Stopped) as caught:
        work()
    assert seen == [0, 1, "still here"]
    assert caught.value.exit_code == 143


def test_signal_while_waiting_stops_at_once_and_closes_the_engine():
    closed = []

    def items():
        try:
            yield 0
            os.kill(os.getpid(), signal.SIGINT)
            yield 1
        finally:
            closed.append(True)

    with pytest.raises(Stopped) as caught, Interrupts() as interrupts:
        assert list(interrupts.watch(items())) == []
    assert caught.value.exit_code == 130
    assert closed == [True]


def test_second_signal_does_not_wait():
    def work():
        with Interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the second one should have ended this")

    with pytest.raises(Stopped):
        work()
