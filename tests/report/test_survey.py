"""What `noisyjax bench` prints is text, whatever stands in the data."""

import numpy as np
import pytest

from noisyjax.bench.survey import DatasetReport, PoolReport, Shown, Validation
from noisyjax.records import Label, Message, NoisyPrompt, Part, Question
from noisyjax.report.survey import print_prompt, print_validation

CLEAR = "[b]\x1b[2J\x1b]0;title\x07 \x9b31m \u202eright to left\u2069 \x00"
SHOWN = "[b]␛[2J␛]0;title␇ ⟨9B⟩31m ⟨202E⟩right to left⟨2069⟩ ␀"


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")


def raw(text: str) -> set[str]:
    """Control characters in a text, line breaks apart."""
    return {char for char in text if (ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0) and char != "\n"}


def test_a_prompt(capsys):
    parts = (Part(f"{CLEAR}\n", Label.DISTRACTOR, f"d{CLEAR}"), Part(CLEAR, Label.QUESTION))
    empty = np.empty(0, np.int32)
    messages = (Message("user", parts),)
    prompt = NoisyPrompt("x", "q", "RD", messages, empty, empty, dropped=(f"u{CLEAR}",), gold=f"g{CLEAR}")
    print_prompt(Shown(Question("x", f"q{CLEAR}", CLEAR, (CLEAR,)), prompt, {}))
    out = capsys.readouterr().out
    assert not raw(out)
    assert out.count(SHOWN) == 6
    assert f"⟨distractor d{SHOWN}⟩ {SHOWN}\n" in out


def test_a_validation(capsys):
    dataset = DatasetReport("x", error=CLEAR, bad=(f"file:3: {CLEAR}",))
    print_validation(Validation((PoolReport("RD", 2, 2, 2, ()),), (dataset,), (f"pool: {CLEAR}",)))
    out = capsys.readouterr().out
    assert not raw(out)
    assert out.count(SHOWN) == 3
    assert "RD: 2 groups (2 units), 2 in the pool" in out
