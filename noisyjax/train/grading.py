"""Completions of a step, read, judged and rewarded. One call of the judge for each kind of verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
from noisyjax.train.rewards.distraction import (
    distraction_item,
    judged_distraction,
    lexical_distraction,
    wants_judgement,
)
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
class Judged:
    """A rollout, its samples as they were read, and the verdicts on them; None where none was asked for.

    Legend: G samples of one prompt.
    """

    rollout: Rollout
    samples: tuple[Sample, ...]
    outcomes: tuple[Verdict | None, ...]
    rationales: tuple[Verdict | None, ...]
    distractions: tuple[Verdict | None, ...]
    outcome_g: np.ndarray
    """float64 [G]; the outcome in numbers, by verdict or by the user's function; nan where undefined."""

    @property
    def verdicts(self) -> int:
        """How many were asked for."""
        return sum(v is not None for v in (*self.outcomes, *self.rationales, *self.distractions))


@dataclass(frozen=True)
class Graded:
    """Judged rollouts in their order, with the rewards of their N samples, those of one prompt after another."""

    judged: tuple[Judged, ...]
    rewards: Rewards
    metrics: Metrics


class Grader:
    """Grades the rollouts of every step by one config. Raises UsageError for a reward function that is not there."""

    def __init__(self, config: RewardConfig, prompt: PromptConfig, tokenizer: ChatTokenizer, judge: Judge) -> None:
        self.config, self.tokenizer, self.asked = config, tokenizer, judge
        self._instruction = instruction(prompt)
        self._clip = clip_tokens(tokenizer)
        self._function = load_reward_fn(config.reward_fn) if config.reward_fn else None

    def judge(self, rollouts: Sequence[Rollout], say: Callable[[str], None]) -> list[Judged]:
        """Ask for all verdicts that these rollouts need, in their order: the slow half, and no rollout needs it twice.

        `say` is told what a person should read. RunError when the user's reward function fails too often.
        """
        read = [self._read(rollout) for rollout in rollouts]
        samples = [sample for group in read for sample in group]
        if self._function is None:
            outcomes = self._verdicts(samples, wants_outcome, _outcome_item, self.asked.outcomes)
            outcome_n = verdict_values(outcomes)
        else:
            custom = call_reward_fn(self._function, samples, self.config.max_failed)
            outcomes, outcome_n = [None] * len(samples), custom.value_n
            if str(custom):
                say(str(custom))
        rationales = self._verdicts(samples, wants_rationale, _rationale_item, self.asked.rationales)
        distractions = self._verdicts(samples, wants_judgement, distraction_item, self.asked.distractions)
        judged, end = [], 0
        for rollout, group in zip(rollouts, read, strict=True):
            own = slice(end, end := end + len(group))
            judged.append(
                Judged(
                    rollout,
                    tuple(group),
                    tuple(outcomes[own]),
                    tuple(rationales[own]),
                    tuple(distractions[own]),
                    outcome_n[own],
                )
            )
        return judged

    def grade(self, judged: Sequence[Judged], penalties: Mapping[str, np.ndarray] | None = None) -> Graded:
        """Rewards and metrics of a batch: arithmetic alone. `penalties` (float [N] each) join those of the guards."""
        samples = [sample for group in judged for sample in group.samples]
        rationales = [verdict for group in judged for verdict in group.rationales]
        outcome_n = np.concatenate([np.zeros(0), *(group.outcome_g for group in judged)])
        rationale_n = verdict_values(rationales, self.config.rationale == "graded")
        guards = measure_guards(samples, self.config.guards, self.tokenizer.count_tokens)
        taken = guards.penalties(self.config.guards) | dict(penalties or {})
        rewards = combine(samples, outcome_n, rationale_n, self.config, taken)
        found: list[Metrics] = [
            reward_metrics(samples, rewards, self.config),
            guards.metrics(self.config.guards),
            lexical_distraction(samples, self.config.distraction).metrics("distraction/lexical"),
            _exact(rationales),
        ]
        if self.config.distraction.judged:
            verdicts = [verdict for group in judged for verdict in group.distractions]
            found.append(judged_distraction(samples, verdicts).metrics("distraction/judged"))
        return Graded(tuple(judged), rewards, metrics.merge(found))

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

    def _verdicts[I](
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
