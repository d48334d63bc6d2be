import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from noisyjax.visible import visible


def test_what_commands_a_terminal_is_shown():
    assert visible("a\x1b[2Jb\x00\x07\x7f\r!") == "a␛[2Jb␀␇␡␍!"
    assert visible("\x9b31m \u202eevil\u2069 \ud800") == "⟨9B⟩31m ⟨202E⟩evil⟨2069⟩ \ufffd"


def test_what_is_text_stays():
    text = "Zeile\n\tä 字 עברית 👩\u200d🔬 nbsp\u00a0"
    assert visible(text) == text
    assert visible("two\r\nlines") == "two\nlines"
    assert visible("\u202eabc\x1b", bidi=False) == "\u202eabc␛"


@given(st.text(st.characters()))
def test_no_control_character_is_left(text):
    shown = visible(text)
    assert all(char in "\t\n" or unicodedata.category(char) not in ("Cc", "Cs") for char in shown)
    assert visible(shown) == shown
    shown.encode("utf-8")
