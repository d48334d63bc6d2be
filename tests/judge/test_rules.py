import pytest

from noisyjax.config import load
from noisyjax.errors import UsageError
from noisyjax.judge import OutcomeItem, RationaleItem, RuleJudge, RuleJudgeConfig
from noisyjax.records import Verdict

Q, GOLD = "What is anna code ?", "anna code 7 .\nanna age 3 ."


def judge(**options: object) -> RuleJudge:
    return RuleJudge(RuleJudgeConfig.model_validate(options))


def outcome(candidate: str, *answers: str, **options: object) -> Verdict:
    return judge(**options).outcomes([OutcomeItem(Q, answers, candidate)])[0]


def rationale(candidate: str, gold: str = GOLD, **options: object) -> Verdict:
    return judge(**options).rationales([RationaleItem(Q, gold, candidate)])[0]


def test_answers() -> None:
    assert outcome("The 7.", "seven", "VII") == Verdict(True, judge().name, reason="correct", score=1.0)
    assert outcome("vii", "seven", "VII").value is True
    assert outcome("8", "seven").reason == "incorrect"
    assert outcome(" \n", "seven") == Verdict(False, judge().name, reason="not_attempted", score=0.0)
    assert outcome("It is 7, I think", "7").value is False
    assert outcome("It is 7, I think", "7", answer="contains").value is True


@pytest.mark.parametrize("answers", [(), ("", " ")])
def test_no_accepted_answer_is_no_verdict(answers: tuple[str, ...]) -> None:
    assert outcome("7", *answers) == Verdict(None, judge().name, reason="nothing to compare with")


@pytest.mark.parametrize(
    ("passes_at", "candidate", "value", "score", "reason"),
    [
        (1.0, GOLD, True, 1.0, "2 of 2 facts, 0 others"),
        (1.0, "anna code 7", False, 2 / 3, "1 of 2 facts, 0 others"),
        (0.6, "anna code 7", True, 2 / 3, "1 of 2 facts, 0 others"),
        (0.6, "anna code 7 . bob age 3 .", False, 0.5, "1 of 2 facts, 1 others"),
        (0.5, "anna code 7 . bob age 3 .", True, 0.5, "1 of 2 facts, 1 others"),
        (0.1, "", False, 0.0, "0 of 2 facts, 0 others"),
    ],
)
def test_the_grade_is_kept_whatever_passes(
    passes_at: float, candidate: str, value: bool, score: float, reason: str
) -> None:
    verdict = rationale(candidate, passes_at=passes_at)
    assert verdict == Verdict(value, verdict.judge, reason=reason, score=pytest.approx(score))


@pytest.mark.parametrize("gold", ["", " \n", "..."])
def test_no_gold_reference_is_no_verdict(gold: str) -> None:
    assert rationale(GOLD, gold) == Verdict(None, judge().name, reason="nothing to compare with")


def test_other_measures() -> None:
    more = GOLD + "\nbob code 1"
    assert rationale(more).score == pytest.approx(4 / 5)
    assert rationale(more, reference="fact_recall").score == 1.0
    assert rationale("7 3", reference="token_f1").score == pytest.approx(4 / 5)  # age is missing
    assert rationale("7 3", reference="token_f1").reason == "2 of 3 words, 0 others"


def test_sentences_of_running_text() -> None:
    gold = "The bridge opened in 1932. It is 503 m long!"
    ends = [". ", "! ", "? ", "\n"]
    assert rationale("It is 503 m long. The bridge opened in 1932.", gold, fact_ends=ends).value is True
    assert rationale("It is 503 m long. The bridge opened in 1932.", gold).score == 0.0


def test_many_items_keep_their_order() -> None:
    items = [RationaleItem(Q, GOLD, f"anna code {i} .") for i in range(10)]
    assert [v.score for v in judge().rationales(items)] == [pytest.approx(2 / 3 if i == 7 else 0.0) for i in range(10)]


def test_a_name_stands_for_the_rules() -> None:
    assert judge().name == judge().name
    assert len({judge().name, judge(passes_at=0.5).name, judge(reference="token_f1").name}) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("reference=f1", "reference"),
        ("passes_at=0", "passes_at"),
        ("passes_at=1.5", "passes_at"),
        ("fact_ends=[]", "fact_ends"),
        ("fact_ends=['']", "fact_ends"),
        ("mask=true", "mask_question"),
    ],
)
def test_settings_that_make_no_sense_are_named(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(RuleJudgeConfig, None, [words])
