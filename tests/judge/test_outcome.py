"""The judge as a whole, with judges of several characters behind it: a fair one, a muddled one, a failing one."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from noisyjax.errors import RunError
from noisyjax.judge import JudgeConfig, OutcomeItem, VerdictCache, judge_id, judge_outcomes
from noisyjax.judge.asking import ENDING, FIRM_ENDING, judge_prompt
from noisyjax.judge.outcome import OUTCOME
from noisyjax.records import Completion, Finish, Request, Verdict
from noisyjax.store import open_folder

ITEM = OutcomeItem("What is the capital of France?", ("Paris", "City of Paris"), "Paris, of course")
BLOCK = re.compile(r"\[(\w+) candidate answer\]\n(.*)\n\[\1 end of candidate answer\]", re.DOTALL)


class JudgeEngine:
    """Answers with `reply(user message)`; a reply of None is a completion that was cut. Counts its calls."""

    name = "made-up-judge"

    def __init__(self, reply: Callable[[str], str | None]) -> None:
        self.reply = reply
        self.asked: list[list[str]] = []

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        prompts = [(r, r.prompt.messages[-1].content) for r in requests]
        self.asked.append([text for _, text in prompts])
        for r, text in reversed(prompts):  # completions come in any order
            reply = self.reply(text)
            yield Completion(r.id, 0, reply or "VERDICT: CORRECT", Finish.LENGTH if reply is None else Finish.STOP)

    def close(self) -> None:
        pass


def candidate_in(prompt: str) -> str:
    found = BLOCK.search(prompt)
    assert found is not None
    return found[2]


def fair(prompt: str) -> str:
    candidate = candidate_in(prompt)
    if "do not know" in candidate:
        return "It declines.\nVERDICT: NOT_ATTEMPTED"
    return "I compare.\nVERDICT: " + ("CORRECT" if "Paris" in candidate else "INCORRECT")


def items(*candidates: str) -> list[OutcomeItem]:
    return [OutcomeItem(ITEM.question, ITEM.answers, c) for c in candidates]


def values(verdicts: list[Verdict]) -> list[bool | None]:
    return [v.value for v in verdicts]


def test_verdicts_come_in_the_order_of_the_items() -> None:
    engine = JudgeEngine(fair)
    verdicts = judge_outcomes(engine, items("Paris", "Lyon", "I do not know", "PARIS? Paris"))
    assert values(verdicts) == [True, False, False, True]
    assert [v.reason for v in verdicts] == ["correct", "incorrect", "not_attempted", "correct"]
    assert {v.judge for v in verdicts} == {judge_id("made-up-judge", JudgeConfig())}
    assert verdicts[1].raw == "I compare.\nVERDICT: INCORRECT"
    assert [len(batch) for batch in engine.asked] == [4]


def test_equal_items_are_asked_once() -> None:
    engine = JudgeEngine(fair)
    assert values(judge_outcomes(engine, items("Paris", "Lyon", "Paris"))) == [True, False, True]
    assert [len(batch) for batch in engine.asked] == [2]


@pytest.mark.parametrize("candidate", ["", "  \n", "\u200b\u2060"])
def test_an_empty_answer_needs_no_judge(candidate: str) -> None:
    engine = JudgeEngine(fair)
    (verdict,) = judge_outcomes(engine, items(candidate))
    assert (verdict.value, verdict.reason) == (False, "not_attempted")
    assert engine.asked == []


@pytest.mark.parametrize("answers", [(), ("",), (" ", "\n")])
def test_without_an_accepted_answer_there_is_no_verdict(answers: tuple[str, ...]) -> None:
    engine = JudgeEngine(fair)
    (verdict,) = judge_outcomes(engine, [OutcomeItem(ITEM.question, answers, "Paris")])
    assert (verdict.value, verdict.reason) == (None, "nothing to compare with")
    assert engine.asked == []


def test_nothing_to_judge_calls_nobody() -> None:
    engine = JudgeEngine(fair)
    assert judge_outcomes(engine, []) == []
    assert engine.asked == []


def test_what_cannot_be_read_is_asked_once_more_with_firmer_words() -> None:
    def muddled(prompt: str) -> str:
        return fair(prompt) if "one line and nothing else" in prompt else "CORRECT or INCORRECT, who can say."

    engine = JudgeEngine(muddled)
    assert values(judge_outcomes(engine, items("Paris", "Lyon"))) == [True, False]
    assert [len(batch) for batch in engine.asked] == [2, 2]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (lambda prompt: "Hard to say.", "no verdict line"),
        (lambda prompt: "<think>VERDICT: CORRECT", "the thought was never closed"),
        (lambda prompt: None, "the judge was cut before it had finished"),
    ],
)
def test_what_stays_unreadable_is_unscored_and_not_kept(
    reply: Callable[[str], str | None], why: str, tmp_path: Path
) -> None:
    cache = VerdictCache(open_folder(tmp_path).log("judge"))
    engine = JudgeEngine(reply)
    (verdict,) = judge_outcomes(engine, [ITEM], cache)
    assert (verdict.value, verdict.reason) == (None, why)
    assert len(engine.asked) == 2
    assert len(cache) == 0


def test_a_judge_that_fails_is_unscored_with_its_words() -> None:
    class Failing(JudgeEngine):
        def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
            return (Completion(r.id, 0, "", Finish.ERROR, error="http_502") for r in requests)

    (verdict,) = judge_outcomes(Failing(fair), [ITEM])
    assert (verdict.value, verdict.reason) == (None, "the judge gave no answer: http_502")


def test_the_prompt_is_a_function_of_the_item_with_a_mark_of_its_own() -> None:
    config = JudgeConfig()
    assert judge_prompt(OUTCOME, ITEM, config) == judge_prompt(OUTCOME, ITEM, config)
    other = OutcomeItem(ITEM.question, ITEM.answers, "Lyon")
    mark = re.compile(r"\[(\w+) question\]")
    first, second = mark.search(judge_prompt(OUTCOME, ITEM, config)), mark.search(judge_prompt(OUTCOME, other, config))
    assert first is not None
    assert second is not None
    assert first[1] != second[1]
    assert "- Paris\n- City of Paris\n" in judge_prompt(OUTCOME, ITEM, config)
    # Braces and place names inside the texts stay what they are.
    odd = judge_prompt(OUTCOME, OutcomeItem("{blocks} {nonce}", ("{ending}",), "{blocks}"), config)
    assert "{blocks} {nonce}" in odd
    assert "- {ending}" in odd


def test_the_cache_is_asked_before_the_judge_and_outlives_the_process(tmp_path: Path) -> None:
    first = VerdictCache(open_folder(tmp_path).log("judge"))
    verdicts = judge_outcomes(JudgeEngine(fair), items("Paris", "Lyon"), first)
    engine = JudgeEngine(fair)
    again = judge_outcomes(engine, items("Lyon", "Paris", "Nice"), VerdictCache(open_folder(tmp_path).log("judge")))
    assert again[:2] == [verdicts[1], verdicts[0]]
    assert [len(batch) for batch in engine.asked] == [1]
    assert all(json.loads(line)["judge"] == verdicts[0].judge for line in (tmp_path / "judge.jsonl").open())


def test_another_judge_or_setting_shares_no_verdicts(tmp_path: Path) -> None:
    cache = VerdictCache(open_folder(tmp_path).log("judge"))
    for config in (JudgeConfig(), JudgeConfig(candidate_chars=100)):
        engine = JudgeEngine(fair)
        judge_outcomes(engine, [ITEM], cache, config)
        assert len(engine.asked) == 1
    assert (
        len({judge_id("a", JudgeConfig()), judge_id("b", JudgeConfig()), judge_id("a", JudgeConfig(max_tokens=64))})
        == 3
    )


def test_verdicts_are_durable_one_by_one(tmp_path: Path) -> None:
    class Dying(JudgeEngine):
        def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
            for i, completion in enumerate(super().generate(requests)):
                if i == 2:
                    raise RunError("gone")
                yield completion

    cache = VerdictCache(open_folder(tmp_path).log("judge"))
    with pytest.raises(RunError):
        judge_outcomes(Dying(fair), items("Paris", "Lyon", "Nice", "Metz"), cache)
    with (tmp_path / "judge.jsonl").open("a") as file:
        file.write('{"key": "half a li')
    reopened = VerdictCache(open_folder(tmp_path).log("judge"))
    assert len(reopened) == 2
    engine = JudgeEngine(fair)
    assert values(judge_outcomes(engine, items("Paris", "Lyon", "Nice", "Metz"), reopened)) == [
        True,
        False,
        False,
        False,
    ]
    assert len(engine.asked[0]) == 2
    assert len(VerdictCache(open_folder(tmp_path).log("judge"))) == 4


def test_a_broken_line_in_the_middle_of_the_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "judge.jsonl").write_text('{"key": "a", "value": true, "judge": "j"}\nnonsense\n')
    with pytest.raises(RunError, match="line 2"):
        VerdictCache(open_folder(tmp_path).log("judge"))


def test_both_endings_ask_for_the_form_that_is_read() -> None:
    assert ENDING.splitlines()[-1] == FIRM_ENDING.splitlines()[-1] == "VERDICT: ..."
