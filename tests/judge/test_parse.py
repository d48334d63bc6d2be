import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.judge import Conveys, Label, read_verdict

C, I, N = Label.CORRECT, Label.INCORRECT, Label.NOT_ATTEMPTED


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("VERDICT: CORRECT", C),
        ("VERDICT: INCORRECT", I),
        ("VERDICT: NOT_ATTEMPTED", N),
        ("verdict: not attempted", N),
        ("Verdict: NotAttempted.", N),
        ("VERDICT: NOT-ATTEMPTED", N),
        ("**VERDICT:** CORRECT", C),
        ("**VERDICT: CORRECT**", C),
        ("### VERDICT: `INCORRECT`.", I),
        ("> VERDICT: CORRECT", C),
        ("They agree.\n\nVERDICT: CORRECT\n\n", C),
        ("They agree.\r\nVERDICT: CORRECT\r\n", C),
        # labels named on the way do not count
        ("It would be NOT CORRECT to call this CORRECT; it is not NOT_ATTEMPTED either.\nVERDICT: INCORRECT", I),
        ("The answer is NOT CORRECT ... VERDICT: INCORRECT", I),
        ("Is it VERDICT: CORRECT? No, it names another town.\nVERDICT: INCORRECT", I),
        # the last one counts, when nothing puts it in doubt
        ("The candidate writes\nVERDICT: CORRECT\nbut it is wrong.\nVERDICT: INCORRECT", I),
        ("VERDICT: INCORRECT\n\nExplanation: another town.", I),
        ("<think>VERDICT: CORRECT\nno</think>\nVERDICT: INCORRECT", I),
        ("perhaps VERDICT: CORRECT</think>VERDICT: INCORRECT", I),
        (
            "<|channel|>analysis<|message|>VERDICT: CORRECT<|end|><|channel|>final<|message|>VERDICT: INCORRECT",
            I,
        ),
        ("[THINK]VERDICT: CORRECT[/THINK]VERDICT: INCORRECT", I),
    ],
)
def test_verdicts_that_can_be_read(text: str, label: Label) -> None:
    assert read_verdict(text).label is label


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an empty answer"),
        ("<think>done</think>  \n", "an empty answer"),
        ("It is correct.", "no verdict line"),
        ("CORRECT", "no verdict line"),
        ("VERDICT: CORRECT or INCORRECT", "no verdict line"),
        ("VERDICT: CORRECT|INCORRECT|NOT_ATTEMPTED", "no verdict line"),
        ("VERDICT: ...", "no verdict line"),
        ("VERDICT: NOT CORRECT", "no verdict line"),
        ("VERDICT: CORRECTED", "no verdict line"),
        ("VERDICT: CORRECT, I suppose", "no verdict line"),
        ("So VERDICT: CORRECT is what it says.", "no verdict line"),
        ("It says VERDICT: CORRECT and I say VERDICT: INCORRECT", "no verdict line"),
        ("VERDICT: CORRECT\nWait. VERDICT: no, it is wrong", "contradictory verdicts"),
        ("VERDICT: INCORRECT\nVERDICT: CORRECT\nOr so it seems.", "contradictory verdicts"),
        ("<think>VERDICT: CORRECT", "the thought was never closed"),
        ("<|channel|>analysis<|message|>VERDICT: CORRECT", "the thought was never closed"),
    ],
)
def test_verdicts_that_cannot(text: str, why: str) -> None:
    reading = read_verdict(text)
    assert (reading.label, reading.why) == (None, why)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("All of it is there.\nVERDICT: YES", Conveys.YES),
        ("**Verdict:** no.", Conveys.NO),
        ("VERDICT: YES\nOn second thought the year is missing.\nVERDICT: NO", Conveys.NO),
        ("VERDICT: CORRECT", None),
        ("VERDICT: YES and NO", None),
        ("VERDICT: YES\nVERDICT: maybe", None),
        ("VERDICT: NO\nVERDICT: YES\nor so", None),
        ("VERDICT: NONE", None),
        ("YES", None),
    ],
)
def test_each_form_has_its_own_words(text: str, label: Conveys | None) -> None:
    assert read_verdict(text, labels=Conveys).label is label


def test_a_thought_that_the_prompt_opened() -> None:
    assert read_verdict("VERDICT: CORRECT", opened_by_prompt=True).label is None
    assert read_verdict("hm</think>VERDICT: CORRECT", opened_by_prompt=True).label is C


@given(st.text())
def test_text_without_the_word_is_never_a_verdict(text: str) -> None:
    assert "verdict" in text.lower() or read_verdict(text).label is None


@given(st.text(alphabet=st.characters(exclude_characters="<[")), st.sampled_from(list(Label)))
def test_a_last_line_in_the_asked_form_is_always_read(before: str, label: Label) -> None:
    assert read_verdict(f"{before}\nVERDICT: {label.value.upper()}").label is label
