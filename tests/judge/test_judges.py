"""One protocol over rules and models, opened from one config, and what is special about judging references."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from noisyjax.config import Schema, load
from noisyjax.engine.config import LocalConfig
from noisyjax.engine.remote import RemoteConfig
from noisyjax.errors import UsageError
from noisyjax.judge import (
    AnyJudgeConfig,
    EngineJudge,
    EngineJudgeConfig,
    Judge,
    JudgeConfig,
    OutcomeItem,
    RationaleItem,
    RuleJudge,
    RuleJudgeConfig,
    VerdictCache,
    judge_rationales,
    open_judge,
)
from noisyjax.judge.asking import judge_prompt
from noisyjax.judge.outcome import INSTRUCTION as OUTCOME_INSTRUCTION
from noisyjax.judge.outcome import OUTCOME
from noisyjax.judge.rationale import INSTRUCTION, RATIONALE, WITH_DISTRACTOR
from noisyjax.records import Completion, Finish, Request
from noisyjax.store import open_folder

ITEM = RationaleItem("How long is it?", "It is 503 m long.", "503 m in length")


class Model:
    """Says `reply(prompt)`; notes what it was asked, one list a call."""

    name = "model"

    def __init__(self, reply: Callable[[str], str]) -> None:
        self.reply = reply
        self.calls: list[list[str]] = []

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        asked = [(r.id, r.prompt.messages[-1].content) for r in requests]
        self.calls.append([text for _, text in asked])
        for name, text in reversed(asked):
            yield Completion(name, 0, self.reply(text), Finish.STOP)

    def close(self) -> None:
        raise AssertionError("the engine belongs to the caller")


def strict(prompt: str) -> str:
    return (
        "VERDICT: YES"
        if "503 m" in prompt.rpartition("candidate reference]\n")[0].rpartition("]\n")[2]
        else "VERDICT: NO"
    )


def references(*candidates: str) -> list[RationaleItem]:
    return [RationaleItem(ITEM.question, ITEM.gold, c) for c in candidates]


def test_hundreds_of_verdicts_are_one_call() -> None:
    model = Model(strict)
    items = references(*(f"{i if i % 3 else 503} m" for i in range(300)))
    verdicts = EngineJudge(model).rationales(items)
    assert [v.value for v in verdicts] == [i % 3 == 0 for i in range(300)]
    assert {v.reason for v in verdicts} == {"yes", "no"}
    assert {v.score for v in verdicts} == {None}
    assert [len(call) for call in model.calls] == [201]  # a hundred of them are the same item


def test_an_instruction_is_the_common_beginning() -> None:
    least = LocalConfig(model=Path("x")).min_prefix
    for text in (OUTCOME_INSTRUCTION, INSTRUCTION, WITH_DISTRACTOR):
        assert len(text.split()) > least + 32  # at least a token a word, whatever the tokenizer
    for form, item, text in (
        (RATIONALE, ITEM, INSTRUCTION),
        (RATIONALE, RationaleItem("q", "g", "c", "d"), WITH_DISTRACTOR),
        (OUTCOME, OutcomeItem("q", ("a",), "c"), OUTCOME_INSTRUCTION),
    ):
        assert judge_prompt(form, item, JudgeConfig()).startswith(f"{text}\n\n[")


def test_distractors_are_shown_only_where_the_config_says_so() -> None:
    local = LocalConfig(model=Path("x"))
    items = [RationaleItem("q?", "gold text", "a candidate", "noise noise noise")]
    for fails, shown in ((False, False), (True, True)):
        model = Model(lambda prompt: "VERDICT: NO")
        EngineJudge(model, config=EngineJudgeConfig(engine=local, distractor_fails=fails)).rationales(items)
        ((prompt,),) = model.calls
        assert ("noise noise noise" in prompt) is shown
        assert ("distractor text is a NO" in prompt) is shown
    model = Model(lambda prompt: "VERDICT: NO")
    EngineJudge(model).rationales(items)
    assert "noise" not in model.calls[0][0]


def test_verdicts_are_cached_on_all_that_was_compared(tmp_path: Path) -> None:
    cache = VerdictCache(open_folder(tmp_path).log("judge"))
    items = [
        ITEM,
        RationaleItem("Another question?", ITEM.gold, ITEM.candidate),
        RationaleItem(ITEM.question, "Another gold.", ITEM.candidate),
        RationaleItem(ITEM.question, ITEM.gold, "another candidate"),
        RationaleItem(ITEM.question, ITEM.gold, ITEM.candidate, "a distractor"),
        RationaleItem(ITEM.question, ITEM.gold, ITEM.candidate, "another distractor"),
    ]
    model = Model(strict)
    first = judge_rationales(model, items, cache)
    assert [len(call) for call in model.calls] == [6]
    again = Model(strict)
    reopened = VerdictCache(open_folder(tmp_path).log("judge"))
    assert judge_rationales(again, [*items, *references("one more")], reopened)[:6] == first
    assert [len(call) for call in again.calls] == [1]


def test_outcomes_and_references_of_one_judge_share_no_verdicts(tmp_path: Path) -> None:
    cache = VerdictCache(open_folder(tmp_path).log("judge"))
    model = Model(lambda prompt: "VERDICT: NO" if "gold reference" in prompt else "VERDICT: CORRECT")
    judge = EngineJudge(model, cache=cache)
    (reference,) = judge.rationales([ITEM])
    (outcome,) = judge.outcomes([OutcomeItem(ITEM.question, (ITEM.gold,), ITEM.candidate)])
    assert (reference.value, outcome.value) == (False, True)
    assert reference.judge != outcome.judge
    assert len(cache) == 2


def test_what_cannot_be_read_is_repeated_once_then_unscored() -> None:
    model = Model(lambda prompt: "VERDICT: YES\nVERDICT: perhaps")
    (verdict,) = EngineJudge(model).rationales([ITEM])
    assert (verdict.value, verdict.reason, len(model.calls)) == (None, "contradictory verdicts", 2)


@pytest.mark.parametrize("gold", ["", " \n"])
def test_a_missing_gold_reference_is_no_verdict_and_no_call(gold: str) -> None:
    model = Model(strict)
    (verdict,) = EngineJudge(model).rationales([RationaleItem(ITEM.question, gold, ITEM.candidate, "distractor")])
    assert (verdict.value, verdict.reason, model.calls) == (None, "nothing to compare with", [])


# -- opening -----------------------------------------------------------------------------------------------------


class Run(Schema):
    judge: AnyJudgeConfig = RuleJudgeConfig()


def test_rules_are_the_default() -> None:
    judge: Judge = open_judge(load(Run, None).judge)
    assert isinstance(judge, RuleJudge)
    assert judge.rationales([RationaleItem("q", "a b .", "a b .")])[0].value is True


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("judge={kind: engine, max_tokens: 64, engine: {kind: local, model: some/folder}}", LocalConfig),
        ("judge={kind: engine, engine: {kind: remote, base_url: 'http://localhost:1/v1', model: m}}", RemoteConfig),
    ],
)
def test_a_model_is_opened_by_the_caller(words: str, kind: type, tmp_path: Path) -> None:
    config = load(Run, None, [words]).judge
    assert isinstance(config, EngineJudgeConfig)
    assert isinstance(config.engine, kind)
    model = Model(strict)
    judge: Judge = open_judge(config, model, cache=VerdictCache(open_folder(tmp_path).log("judge")))
    assert [v.value for v in judge.rationales(references("503 m", "5 m"))] == [True, False]
    assert judge.name.startswith("model-")
    with pytest.raises(UsageError, match="was not opened"):
        open_judge(config)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("judge={kind: engines}", "did you mean 'engine'"),
        ("judge={kind: engine}", r"judge\.engine .*required"),
        ("judge={kind: rules, max_tokens: 64}", "max_tokens"),
        ("judge={kind: engine, engine: {kind: local, model: x}, passes_at: 0.5}", "passes_at"),
    ],
)
def test_a_config_that_cannot_work_is_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(Run, None, [words])
