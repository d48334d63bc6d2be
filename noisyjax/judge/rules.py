"""A judge without a model: the embedded default, and the cheap check beside a model's word."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from noisyjax.config import Schema, config_hash
from noisyjax.judge.distraction import DistractionItem
from noisyjax.judge.matching import Match, equals, match_facts, match_tokens, states
from noisyjax.judge.outcome import OutcomeItem
from noisyjax.judge.parse import Label
from noisyjax.judge.rationale import RationaleItem
from noisyjax.records import Verdict


class RuleJudgeConfig(Schema):
    """Verdicts by rule: normalised answers, and references as sets of facts."""

    kind: Literal["rules"] = "rules"
    answer: Literal["exact", "contains"] = "exact"
    """exact: the same words and numbers as an accepted answer. contains: or a short text that states one; a policy can
    learn to list several there."""
    reference: Literal["fact_f1", "fact_recall", "token_f1"] = "fact_f1"
    """What grades a reference. Two are there to be compared with, and mislead as rewards: fact_recall is full for
    whoever copies everything, and token_f1 passes nearly every reference, right or wrong, since the words around a
    value outnumber it."""
    passes_at: float = Field(default=1.0, gt=0, le=1)
    """The grade from which a reference passes; 1 is an exact match."""
    fact_ends: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = Field(default=(" .", "\n"), min_length=1)
    """Where a fact ends. For the sentences of running text: `[". ", "! ", "? ", "\\n"]`."""
    mask_question: bool = True
    """Leave out what the question holds already: facts made of its words only (fact_*), or its words (token_f1)."""


class RuleJudge:
    """`judge.Judge` by rule; pure, so that nothing is cached. References are graded: `Verdict.score` is in [0, 1].

    What has nothing to be compared with (no accepted answer, a gold reference without a word) is None, never a no.
    """

    def __init__(self, config: RuleJudgeConfig | None = None) -> None:
        self.config = config or RuleJudgeConfig()
        self.name = f"rules-{config_hash(self.config)[:8]}"

    def outcomes(self, items: Sequence[OutcomeItem]) -> list[Verdict]:
        """True where the candidate is an accepted answer; `score` is 1 or 0."""
        return [self._outcome(item) for item in items]

    def rationales(self, items: Sequence[RationaleItem]) -> list[Verdict]:
        """True where the grade reaches `passes_at`; `score` is the grade. A distractor is not looked at: whatever of
        it was copied is a fact too many (not under fact_recall).
        """
        return [self._rationale(item) for item in items]

    def distractions(self, items: Sequence[DistractionItem]) -> list[Verdict]:
        """None for all: whether a thought leans on noise is no matter of rules; see the lexical figure of training."""
        return [Verdict(None, self.name, reason="there is no rule for this") for _ in items]

    def _outcome(self, item: OutcomeItem) -> Verdict:
        golds = [gold for gold in item.answers if gold.strip()]
        if not golds:
            return Verdict(None, self.name, reason="nothing to compare with")
        if not item.candidate.strip():
            return Verdict(False, self.name, reason=Label.NOT_ATTEMPTED.value, score=0.0)
        rule = equals if self.config.answer == "exact" else states
        right = any(rule(item.candidate, gold) for gold in golds)
        return Verdict(right, self.name, reason=(Label.CORRECT if right else Label.INCORRECT).value, score=float(right))

    def _rationale(self, item: RationaleItem) -> Verdict:
        match, what = self._match(item)
        if not match.gold:
            return Verdict(None, self.name, reason="nothing to compare with")
        grade = match.recall if self.config.reference == "fact_recall" else match.f1
        reason = f"{match.shared} of {match.gold} {what}, {match.candidate - match.shared} others"
        return Verdict(grade >= self.config.passes_at, self.name, reason=reason, score=grade)

    def _match(self, item: RationaleItem) -> tuple[Match, str]:
        config, texts = self.config, (item.question, item.gold, item.candidate)
        if config.reference == "token_f1":
            return match_tokens(*texts, config.mask_question), "words"
        return match_facts(*texts, config.fact_ends, config.mask_question), "facts"
