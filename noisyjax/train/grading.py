"""Completions of a step, read, judged and rewarded. One call of the judge for all outcomes, one for all rationales."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from noisyjax.chat import ChatTokenizer
from noisyjax.chat.reference import clip_tokens
from noisyjax.instruct import Asked, PromptConfig, instruction
from noisyjax.judge import Judge, OutcomeItem, RationaleItem
from noisyjax.records import Verdict
from noisyjax.train.objective import metrics
from noisyjax.train.objective.metrics import Metrics
from noisyjax.train.rewards.config import RewardConfig
from noisyjax.train.rewards.custom import call_reward_fn, load_reward_fn
from noisyjax.train.rewards.distraction import lexical_distraction
from noisyjax.train.rewards.guards import measure_guards
from noisyjax.train.rewards.samples import Case, Sample, read_sample
from noisyjax.train.rewards.total import (
    Rewards,
    combine,
    reward_metrics,
    verdict_values,
    wants_outcome,
    wants_rationale,
)
from noisyjax.train.rollout import Rollout


@dataclass(frozen=True)
class Graded:
    """N samples, those of one prompt after another, with what was found about each."""

    samples: tuple[Sample, ...]
    outcomes: tuple[Verdict | None, ...]
    rationales: tuple[Verdict | None, ...]
    rewards: Rewards
    metrics: Metrics
    figures: Mapping[str, float] = field(default_factory=dict)
    """Verdicts asked for and the seconds they took."""
    notes: tuple[str, ...] = ()
    """What a person should read, such as a reward function that failed."""


class Grader:
    """Grades the rollouts of every step by one config. Raises UsageError for a reward function that is not there."""

    def __init__(self, config: RewardConfig, prompt: PromptConfig, tokenizer: ChatTokenizer, judge: Judge) -> None:
        self.config, self.tokenizer, self.judge = config, tokenizer, judge
        self._instruction = instruction(prompt)
        self._clip = clip_tokens(tokenizer)
        self._function = load_reward_fn(config.reward_fn) if config.reward_fn else None

    def grade(self, rollouts: Sequence[Rollout], penalties: Mapping[str, np.ndarray] | None = None) -> Graded:
        """Samples in the order of the rollouts; `penalties` (float [N] each) join those of the guards.

        RunError when the user's reward function fails too often.
        """
        samples = [s for rollout in rollouts for s in self._read(rollout)]
        begin = time.perf_counter()
        custom = None
        if self._function is not None:
            custom = call_reward_fn(self._function, samples, self.config.max_failed)
            outcomes: list[Verdict | None] = [None] * len(samples)
            outcome_n = custom.value_n
        else:
            outcomes = self._judged(samples, wants_outcome, _outcome_item, self.judge.outcomes)
            outcome_n = verdict_values(outcomes)
        rationales = self._judged(samples, wants_rationale, _rationale_item, self.judge.rationales)
        rationale_n = verdict_values(rationales, self.config.rationale == "graded")
        seconds = time.perf_counter() - begin

        guards = measure_guards(samples, self.config.guards, self.tokenizer.count_tokens)
        taken = guards.penalties(self.config.guards) | dict(penalties or {})
        rewards = combine(samples, outcome_n, rationale_n, self.config, taken)
        found: list[Metrics] = [
            reward_metrics(samples, rewards, self.config),
            guards.metrics(self.config.guards),
            lexical_distraction(samples, self.config.distraction).metrics(),
            _exact(rationales),
        ]
        verdicts = sum(v is not None for v in (*outcomes, *rationales))
        return Graded(
            tuple(samples),
            tuple(outcomes),
            tuple(rationales),
            rewards,
            metrics.merge(found),
            {"verdicts": float(verdicts), "seconds": seconds},
            (str(custom),) if custom is not None and str(custom) else (),
        )

    def _read(self, rollout: Rollout) -> list[Sample]:
        case = self._case(rollout.id, rollout.asked)
        tags = self.tokenizer.thought_tags
        return [
            read_sample(case, c.text, c.finish, self.config, clip=self._clip, tags=tags) for c in rollout.completions
        ]

    def _case(self, name: str, asked: Asked) -> Case:
        record, prompt = asked.record, asked.prompt
        dropped = set(prompt.dropped)
        return Case(
            id=name,
            prompt="\n".join(m.content for m in prompt.messages),
            question=record.question,
            answers=record.answers,
            hint=record.hint,
            evidence=tuple(d.text for d in record.evidence),
            distractors=tuple(u.text for u in record.distractors if u.id not in dropped),
            instruction=self._instruction,
            opened_by_prompt=self.tokenizer.opens_thought(prompt.ids),
            setting=record.setting,
            meta=record.meta,
        )

    def _judged[I](
        self,
        samples: Sequence[Sample],
        wanted: Callable[[Sample, RewardConfig], bool],
        item: Callable[[Sample], I],
        ask: Callable[[Sequence[I]], list[Verdict]],
    ) -> list[Verdict | None]:
        at = [i for i, sample in enumerate(samples) if wanted(sample, self.config)]
        verdicts: list[Verdict | None] = [None] * len(samples)
        if at:
            for i, verdict in zip(at, ask([item(samples[i]) for i in at]), strict=True):
                verdicts[i] = verdict
        return verdicts


def _outcome_item(sample: Sample) -> OutcomeItem:
    return OutcomeItem(sample.case.question, sample.case.answers, sample.answer or "")


def _rationale_item(sample: Sample) -> RationaleItem:
    noise = "\n\n".join(sample.case.noise)
    return RationaleItem(sample.case.question, sample.case.gold or "", sample.reference or "", noise or None)


def _exact(verdicts: Sequence[Verdict | None]) -> Metrics:
    """The share of judged references that hold all of the gold and nothing else, where the judge grades."""
    score_n = verdict_values(verdicts, graded=True)
    return {"reference/exact": metrics.Mean.of(score_n == 1.0, ~np.isnan(score_n))}
