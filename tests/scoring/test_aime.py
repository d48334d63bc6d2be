r"""AIME integers: what is one, and where it is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.scoring.aime import integer, read_answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        (" 042 ", 42),
        ("000", 0),
        ("42.", 42),
        ("42.0", 42),
        ("42.00", 42),
        ("42.5", None),
        (r"336^\circ", 336),
        (r"336^{\circ}", 336),
        (r"336 ^\circ", 336),
        ("336°", 336),
        (r"336\degree", 336),
        ("336 degrees", 336),
        (r"42\text{ cm}", 42),
        (r"42 \, \mathrm{cm}^", None),
        (r"\text{42}", 42),
        (r"\textbf{(042)}", None),
        (r"\mathrm{042}", 42),
        ("$42$", 42),
        (r"\(42\)", 42),
        ("1,024", 1024),
        ("1{,}024", 1024),
        ("m+n = 42", 42),
        (r"m + n=\ 42", 42),
        ("25+45=70", None),
        ("-7", -7),
        ("−7", -7),
        ("{42}", 42),
        ("three", None),
        ("7/2", None),
        (r"\frac{84}{2}", None),
        ("2, 5", None),
        ("2 5", None),
        ("7x", None),
        ("10\\%", None),
        ("٤٢", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_integer(text, value):
    assert integer(text) == value


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        (r"\boxed{204} and \boxed{205}", "205", "205"),
        (r"\boxed{\text{070}}", r"\text{070}", r"\text{070}"),
        ("Answer: 70", None, "70"),
        ("The answer is 70.", None, "70"),
        ("We add.\nSo m + n = 25 + 45 = 70.", None, "70"),
        ("It is either 70 or 71.", None, None),
        ("x = 7/2", None, None),
        ("nothing", None, None),
        ("", None, None),
    ],
)
def test_read_answer(text, strict, flexible):
    for extraction, expected in (("strict", strict), ("flexible", flexible)):
        found = read_answer(text, extraction, finished=True)
        assert (found.text if found else None) == expected


def test_cut_text_has_no_last_line_answer():
    assert read_answer("so it is 70", "flexible", finished=False) is None
    assert read_answer(r"\boxed{70", "flexible", finished=False) is None
    assert read_answer(r"\boxed{70} because", "flexible", finished=False).text == "70"


@given(
    st.integers(0, 999),
    st.sampled_from(["{}", " {} ", "{:03d}", "{}.0", "${}$", r"{}^\circ", r"n={}", r"{}\text{{ cm}}"]),
)
def test_every_dress_of_an_integer(value, dress):
    assert integer(dress.format(value)) == value


@given(st.one_of(st.text(), st.text("0123456789.,{}\\^$ =-+textcirc")))
def test_never_raises(text):
    assert integer(text) == integer(f"  {text}\n")
    read_answer(text, "flexible", finished=True)
