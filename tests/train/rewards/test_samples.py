import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.chat.thoughts import FAMILIES
from noisyjax.records import Finish
from noisyjax.train.rewards.config import RewardConfig
from noisyjax.train.rewards.samples import Case, Fault, read_sample

R, E = "<reference>", "</reference>"
PLAIN = RewardConfig(combination="outcome")
RARE = RewardConfig()

NO_THOUGHT, SEVERAL, NO_ANSWER, NO_REF, TAG = Fault


@pytest.mark.parametrize(
    ("completion", "faults", "answer"),
    [
        (f"<think>a {R}b{E}</think>4", [], "4"),
        (f"a {R}b{E}</think>4", [], "4"),  # the prompt may have opened the thought
        (f"<think>a</think>{R}b{E} 4", [], " 4"),
        (f"<think>a</think>{R}b{E} 4 {R}c{E}", [], " 4 "),
        ("<think>a</think>4", [NO_REF], "4"),
        (f"<think>a {R}b</think>4", [NO_REF], "4"),
        (f"<think>a {R} {E}</think>4", [NO_REF], "4"),
        (f"<think>{R}b{E} {R}c</think>4", [], "4"),  # one closed span is enough
        (f"{R}b{E} 4", [NO_THOUGHT], " 4"),
        (f"<think>{R}b{E} 4", [NO_THOUGHT, NO_ANSWER], None),
        (f"<think>{R}b{E}</think>4</think>5", [SEVERAL], "5"),
        (f"<think>{R}b{E}</think></think>5", [SEVERAL], "5"),
        (f"<think>{R}b{E}</think>write `</think>`", [SEVERAL, TAG], "write `</think>`"),
        (f"<think>{R}b{E}</think>4 <think> 5", [TAG], "4 <think> 5"),
        (f"<think>{R}b{E}</think> \n ", [NO_ANSWER], " \n "),
        (f"<think>{R}b{E}</think>", [NO_ANSWER], ""),
        (f"<think>a</think>{R}b{E}\n", [NO_ANSWER], "\n"),  # a reference is no answer
        (f"<think>{R}b{E}</think>4{E}", [TAG], f"4{E}"),
        (f"<think>{R}b{E}</think>{R}4", [TAG], f"{R}4"),
        (f"<think>{R}b{E}</think>{R}{R}c{E}4", [TAG], f"{R}4"),
        (f"<think>{R}b{E}</think>< /REFERENCE >4", [TAG], "< /REFERENCE >4"),
        ("", [NO_THOUGHT, NO_ANSWER, NO_REF], ""),
    ],
)
def test_faults_of_form(case, completion, faults, answer):
    sample = read_sample(case(), completion, Finish.STOP, RARE)
    assert list(sample.faults) == faults
    assert sample.answer == answer
    assert sample.answered == (Fault.NO_ANSWER not in faults)


def test_a_thought_that_the_prompt_opened(case):
    opened = case(opened_by_prompt=True)
    assert read_sample(opened, f"a {R}b{E}</think>4", Finish.STOP, RARE).faults == ()
    cut = read_sample(opened, f"a {R}b{E} The answer is 4", Finish.LENGTH, RARE)
    assert cut.faults == (NO_THOUGHT, NO_ANSWER)
    assert cut.answer is None, "thought is never read as an answer"
    assert cut.reference == "b"
    assert cut.cut


def test_models_that_answer_at_once(case):
    config = RewardConfig(combination="outcome", format={"thought": False})
    assert read_sample(case(), "4", Finish.STOP, config).faults == ()
    assert read_sample(case(), "<think>a</think>4", Finish.STOP, config).faults == ()
    assert read_sample(case(), "<think>a", Finish.STOP, config).faults == (NO_THOUGHT, NO_ANSWER)


def test_scope_of_references(case):
    in_answer = f"<think>a</think>{R}b{E}4"
    think = RewardConfig(reference={"scope": "think"})
    assert read_sample(case(), in_answer, Finish.STOP, think).faults == (NO_REF, TAG)
    assert read_sample(case(), in_answer, Finish.STOP, RewardConfig(reference={"scope": "answer"})).faults == ()
    assert read_sample(case(), f"<think>{R}b{E}</think>4", Finish.STOP, think).faults == ()
    cut = read_sample(case(opened_by_prompt=True), f"a {R}b{E} c", Finish.LENGTH, think)
    assert cut.reference == "b", "what the prompt opened is thought, also for the references"
    other = read_sample(case(), f"[THINK]{R}b{E}[/THINK]4", Finish.STOP, think, tags=FAMILIES["mistral"])
    assert other.reference == "b"


def test_a_lenient_reference_counts_but_is_not_well_formed(case):
    lenient = RewardConfig(reference={"mode": "lenient"})
    sample = read_sample(case(), f"<think>{R}b</think>4", Finish.STOP, lenient)
    assert sample.reference == "b"
    assert sample.faults == (NO_REF,)


def test_an_echo_of_the_instruction_is_no_reference(case):
    asking = case(instruction=f"Use {R}helpful information{E} first.")
    sample = read_sample(asking, f"<think>I use {R}helpful information{E} first.</think>4", Finish.STOP, RARE)
    assert sample.reference is None
    assert sample.faults == (NO_REF,)


@pytest.mark.parametrize(
    ("combination", "setting", "asked_for", "demanded"),
    [
        ("additive", None, True, True),
        ("rationale_only", None, True, True),
        ("gated", None, False, False),  # the prompt never asked
        ("outcome", None, True, False),  # the control arm with RARE's prompt
        ("outcome", True, False, True),
        ("additive", False, True, False),
    ],
)
def test_when_a_reference_is_demanded(case, combination, setting, asked_for, demanded):
    config = RewardConfig(combination=combination, format={"reference": setting})
    prompt = case(instruction="Write what helps." if asked_for else " ")
    assert (read_sample(prompt, "<think>a</think>4", Finish.STOP, config).faults == (NO_REF,)) is demanded


def test_another_familys_marks(case):
    tags = FAMILIES["mistral"]
    assert read_sample(case(), f"[THINK]{R}b{E}[/THINK]4", Finish.STOP, RARE, tags=tags).faults == ()
    assert read_sample(case(), f"[THINK]{R}b{E}[/THINK]4[THINK]", Finish.STOP, RARE, tags=tags).faults == (TAG,)


def test_parts_of_a_case(case):
    assert case(hint=None).gold is None
    assert case(hint=" \n").gold is None
    assert case(hint="h").gold == "h"
    assert case(question="q", hint="h", evidence=("e",)).relevant == ("q", "e", "h")
    assert case(question="q", hint=None).relevant == ("q",)
    assert case(distractors=("", "d", " ")).noise == ("d",)


def test_reasoning(case):
    def reasoning(completion: str, **parts) -> str:
        return read_sample(case(**parts), completion, Finish.STOP, PLAIN).reasoning

    assert reasoning("<think>a</think>4") == "a"
    assert reasoning("a", opened_by_prompt=True) == "a"
    assert reasoning("because a, 4") == "because a, 4"


@pytest.mark.parametrize("finish", list(Finish))
def test_states(case, finish):
    sample = read_sample(case(), "", finish, PLAIN)
    assert sample.cut == (finish is Finish.LENGTH)
    assert sample.void == (finish in (Finish.ERROR, Finish.OVER_LENGTH))


SHARDS = st.lists(st.sampled_from([R, E, "<think>", "</think>", "a", " ", "\n", "`", "<refer", "ence>"]), max_size=14)


@given(
    words=SHARDS,
    opened=st.booleans(),
    scope=st.sampled_from(["think", "answer", "both"]),
    mode=st.sampled_from(["strict", "lenient"]),
)
def test_any_completion_is_read(words, opened, scope, mode):
    completion = "".join(words)
    config = RewardConfig(reference={"scope": scope, "mode": mode})
    prompt = Case("q", "p", "q", ("4",), instruction="Write what helps.", opened_by_prompt=opened)
    sample = read_sample(prompt, completion, Finish.STOP, config)
    if not sample.faults:  # each part of a good form, seen without the splitter and the parser
        thought, answer = completion.split("</think>")
        assert completion.count("</think>") == 1
        assert "<think>" not in answer
        assert answer.count(R) == answer.count(E)
        assert re.sub(rf"{R}.*?{E}", "", answer, flags=re.DOTALL).strip() or R in answer
        assert R in thought + answer
        assert E in thought + answer
