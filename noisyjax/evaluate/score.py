"""From stored completions to scores: thoughts off, then the task's scorer, then what the judge said."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from noisyjax.bench import Task
from noisyjax.chat import ThoughtTags, split
from noisyjax.chat.thoughts import FAMILIES
from noisyjax.judge import OutcomeItem, VerdictCache
from noisyjax.judge.cache import verdict_key
from noisyjax.records import Completion, Finish, Question, Score, State, Verdict
from noisyjax.scoring import Scorer, scorer

JUDGE = "judge"
"""Name of the judge's word among a score's values."""
NO_VERDICT = "no verdict:"
"""How the note of a score begins that waits for its judge."""


@dataclass(frozen=True)
class Presented:
    """What a scorer reads of a prompt: the options as they were shown, and the gold under that order."""

    choices: tuple[str, ...]
    gold: str


@dataclass(frozen=True)
class Reading:
    """How completions of one engine are read; stored with the run, so that a rescore reads them alike."""

    opens_thought: bool
    tags: str
    """Family of thought tags, a key of `noisyjax.chat.thoughts.FAMILIES`."""

    @property
    def thought_tags(self) -> ThoughtTags:
        return FAMILIES[self.tags]

    def answer(self, completion: Completion) -> tuple[str, bool]:
        """The answer part, and whether it is finished: the thought closed and the model ended by itself."""
        # An endpoint that returns thoughts in a field of their own has taken them out of the text.
        opened = self.opens_thought and completion.reasoning is None
        thoughts = split(completion.text, opened, self.thought_tags)
        return thoughts.answer or "", thoughts.closed and completion.finish is Finish.STOP


@dataclass(frozen=True)
class TaskScorer:
    """The scorer of one dataset."""

    task: Task
    reading: Reading

    @cached_property
    def _score(self) -> Scorer:
        assert self.task.score is not None  # of a task that is ready
        return scorer(self.task.score)

    def __call__(self, question: Question, presented: Presented, completion: Completion) -> Score:
        """The rules' word on one completion. Nothing that went wrong becomes a number."""
        if completion.finish is Finish.OVER_LENGTH:
            return Score(State.OVER_LENGTH, None)
        if completion.finish is Finish.ERROR:
            return Score(State.UNSCORED, None, note=completion.error or "the engine failed")
        answer, finished = self.reading.answer(completion)
        return self._score(question, presented, answer, finished=finished)

    def to_judge(self, question: Question, completion: Completion, score: Score) -> OutcomeItem | None:
        """What to ask a judge about this sample; None when there is nothing to ask.

        Asked about free-form answers that the rules call wrong or cannot read. An answer that was cut is no answer.
        """
        wrong = score.state is State.NO_ANSWER or (score.state is State.SCORED and score.value == 0)
        if not wrong or not self.task.judge:
            return None
        answer, finished = self.reading.answer(completion)
        return OutcomeItem(question.text, question.answers, answer.strip()) if finished else None


def judged(score: Score, verdict: Verdict | None) -> Score:
    """The rules' score after the judge's word. No readable verdict leaves the sample unscored: absent, not wrong."""
    if verdict is None or verdict.value is None:
        reason = verdict.reason if verdict else "not judged yet"
        return replace(score, state=State.UNSCORED, value=None, note=f"{NO_VERDICT} {reason}")
    value = float(verdict.value)
    values = {**score.values, "rules": score.value, JUDGE: value}
    # An answer that the rules could not read stays without one unless the judge accepts it.
    state = State.SCORED if verdict.value else score.state
    return replace(score, state=state, value=value if state is State.SCORED else None, values=values)


def stored_verdict(cache: VerdictCache, judge: str, item: OutcomeItem) -> Verdict | None:
    return cache.get(verdict_key(judge, item.question, item.answers, item.candidate))


def presented_of(record: Mapping[str, Any]) -> Presented:
    """From a stored prompt."""
    return Presented(tuple(record["choices"]), record["gold"])
