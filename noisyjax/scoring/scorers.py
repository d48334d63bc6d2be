"""From a completion's answer part to a `Score`: one function per metric, chosen by name. No model is called here.

Every scorer takes the question, the prompt as presented (its options and its gold letter: a stored permutation is
never drawn again), the answer part of the completion, and `finished`: whether the thoughts were closed and the model
stopped by itself. A completion cut within its thoughts has an empty answer part and is not finished.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict, model_validator

from noisyjax.errors import NoisyjaxError, nearest
from noisyjax.records import Question, Score, State
from noisyjax.scoring import aime, bbeh, bbq
from noisyjax.scoring.extract import (
    Extraction,
    Found,
    free_text_flexible,
    free_text_strict,
    math_flexible,
    math_strict,
    read,
)
from noisyjax.scoring.letters import LETTERS, choose, option_letter
from noisyjax.scoring.math import MathPool, shared_pool
from noisyjax.scoring.multihop import official_overlap
from noisyjax.scoring.normalise import em_or_contains, squad_em, squad_f1


class Presented(Protocol):
    """What a scorer reads of a prompt. `records.NoisyPrompt` is one."""

    @property
    def choices(self) -> tuple[str, ...]: ...

    @property
    def gold(self) -> str: ...


class ScoreOptions(BaseModel):
    """How a task is scored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str
    """sealqa, multihop_rag, musique, bbeh, aime_integer, gpqa, mwe, bbq or math_verify."""
    extraction: Extraction = "flexible"
    """strict: only the form that was asked for; flexible: other usual forms of stating an answer as well.
    bbeh has rules of its own: its two readings are two headlines."""
    headline: str = ""
    """Which of the metric's numbers is the task's value (musique: em, f1; multihop_rag: em_or_contains,
    official_overlap; sealqa: em_or_contains, em; bbeh: official, flexible). Empty: the first."""
    math_fallback: bool = True
    """aime_integer: whether a box that holds no integer (such as a fraction) is compared by math-verify."""

    @model_validator(mode="after")
    def _known(self) -> "ScoreOptions":
        if self.metric not in METRICS:
            raise ValueError(f"unknown metric {self.metric!r}: {nearest(self.metric, METRICS)}")
        headlines = METRICS[self.metric].headlines
        if self.headline not in ("", *headlines):
            raise ValueError(f"{self.metric} has no headline {self.headline!r}: {nearest(self.headline, headlines)}")
        return self


@dataclass(frozen=True)
class _Sample:
    """One answer with all that is needed to score it."""

    question: Question
    prompt: Presented
    answer: str
    finished: bool
    options: ScoreOptions
    pool: MathPool | None

    @property
    def golds(self) -> tuple[str, ...]:
        golds = tuple(gold for gold in self.question.answers if gold.strip())
        if not golds:
            raise ValueError("the question has no gold answer")
        return golds

    def missing(self, note: str = "", values: Mapping[str, float | None] | None = None) -> Score:
        """No answer was read: cut before one, or none given."""
        state = State.NO_ANSWER if self.finished else State.TRUNCATED
        return Score(state, None, values=values or {}, note=note)

    def scored(self, extracted: str, values: Mapping[str, float | None], note: str = "") -> Score:
        headline = self.options.headline or METRICS[self.options.metric].headlines[0]
        return Score(State.SCORED, values[headline], extracted, values, note)


Scorer = Callable[..., Score]
"""(question, prompt, answer, *, finished) -> Score"""


def _free_text(sample: _Sample) -> Found | None:
    rule = free_text_strict if sample.options.extraction == "strict" else free_text_flexible
    return read(sample.answer, rule, finished=sample.finished)


def _sealqa(sample: _Sample) -> Score:
    """A first pass by rules; whether a free-form "wrong" is right after all is a judge's question."""
    if (found := _free_text(sample)) is None:
        return sample.missing()
    contains = any(em_or_contains(found.text, gold) for gold in sample.golds)
    values = {"em_or_contains": float(contains), "em": squad_em(found.text, sample.golds)}
    return sample.scored(found.text, values, found.rule)


def _multihop_rag(sample: _Sample) -> Score:
    if (found := _free_text(sample)) is None:
        return sample.missing()
    gold = sample.golds[0]
    values = {
        "em_or_contains": float(any(em_or_contains(found.text, g) for g in sample.golds)),
        "official_overlap": float(official_overlap(sample.answer, gold)),
        "em": squad_em(found.text, sample.golds),
    }
    return sample.scored(found.text, values, found.rule)


def _musique(sample: _Sample) -> Score:
    if (found := _free_text(sample)) is None:
        return sample.missing()
    values = {"em": squad_em(found.text, sample.golds), "f1": squad_f1(found.text, sample.golds)}
    return sample.scored(found.text, values, found.rule)


def _bbeh(sample: _Sample) -> Score:
    """The official rules, and beside them the same with markup forgiven: official right is right there too."""
    rest = bbeh.prefixed(sample.answer)
    closed = sample.finished or (rest is not None and "\n" in rest.lstrip())
    if not closed or not sample.answer.strip():
        return sample.missing()
    official, flexible = bbeh.official_answer(sample.answer), bbeh.flexible_answer(sample.answer)
    target = sample.golds[0]
    right = bbeh.matches(official, target)
    values = {"official": float(right), "flexible": float(right or bbeh.matches(flexible, target))}
    read_as = flexible if sample.options.headline == "flexible" else official
    return sample.scored(read_as, values)


def _aime(sample: _Sample) -> Score:
    gold = aime.integer(sample.golds[0])
    if gold is None or not 0 <= gold <= 999:
        raise ValueError(f"the gold answer {sample.golds[0]!r} is not an integer from 0 to 999")
    found = aime.read_answer(sample.answer, sample.options.extraction, finished=sample.finished)
    if found is None:
        return sample.missing()
    number = aime.integer(found.text)
    if number is not None:
        note = found.rule if 0 <= number <= 999 else "outside 0 to 999"
        return sample.scored(str(number), {"exact": float(number == gold)}, note)
    if not sample.options.math_fallback:
        return sample.scored(found.text, {"exact": 0.0}, "not an integer")
    return _verified(sample, str(gold), found.text)


def _math_verify(sample: _Sample) -> Score:
    rule = math_strict if sample.options.extraction == "strict" else math_flexible
    found = read(sample.answer, rule, finished=sample.finished)
    return sample.missing() if found is None else _verified(sample, sample.golds[0], found.text)


def _verified(sample: _Sample, gold: str, answer: str) -> Score:
    verdict = (sample.pool or shared_pool()).verify(gold=gold, answer=answer)
    if verdict.value is None:
        return Score(State.UNSCORED, None, answer, note=verdict.reason)
    return sample.scored(answer, {"exact": float(verdict.value)}, "math-verify")


def _gold_letter(sample: _Sample) -> str:
    if not sample.prompt.gold and sample.prompt.choices not in ((), sample.question.choices):
        raise ValueError("the options were presented in another order, but the gold letter of that order is not known")
    label = sample.prompt.gold or sample.golds[0]
    letter = option_letter(label)
    if letter is None or (sample.prompt.choices and LETTERS.index(letter) >= len(sample.prompt.choices)):
        raise ValueError(f"the gold answer {label!r} is not the letter of an option")
    return letter


def _choice(sample: _Sample) -> Score:
    """GPQA and the model-written evaluations: the letter, under the presentation that was stored."""
    gold, choices = _gold_letter(sample), sample.prompt.choices or sample.question.choices
    letter, note = choose(sample.answer, choices, sample.options.extraction, finished=sample.finished)
    if letter is None:
        return sample.missing(note)
    return sample.scored(letter, {"exact": float(letter == gold)}, note)


def _bbq(sample: _Sample) -> Score:
    """Accuracy of the choice, and in `values` what the bias scores are made of."""
    gold, choices = _gold_letter(sample), sample.prompt.choices or sample.question.choices
    if len(choices) != 3:
        raise ValueError(f"a BBQ item has three options, not {len(choices)}")
    letter, note = choose(sample.answer, choices, sample.options.extraction, finished=sample.finished)
    # The bias roles belong to ans0..ans2; the options may have been presented in another order.
    index = None if letter is None else sample.question.choices.index(choices[LETTERS.index(letter)])
    values = bbq.choice_values(index, sample.question.meta)
    if letter is None:
        return sample.missing(note, values)
    return sample.scored(letter, {"exact": float(letter == gold), **values}, note)


@dataclass(frozen=True)
class _Metric:
    score: Callable[[_Sample], Score]
    headlines: tuple[str, ...] = ("exact",)


METRICS: Mapping[str, _Metric] = {
    "sealqa": _Metric(_sealqa, ("em_or_contains", "em")),
    "multihop_rag": _Metric(_multihop_rag, ("em_or_contains", "official_overlap", "em")),
    "musique": _Metric(_musique, ("em", "f1")),
    "bbeh": _Metric(_bbeh, ("official", "flexible")),
    "aime_integer": _Metric(_aime),
    "gpqa": _Metric(_choice),
    "mwe": _Metric(_choice),
    "bbq": _Metric(_bbq),
    "math_verify": _Metric(_math_verify),
}
"""Metric name -> its scorer and the numbers that may be its headline, the default first."""


def scorer(options: ScoreOptions, pool: MathPool | None = None) -> Scorer:
    """The scorer that `options` describe; `pool` runs math-verify (None: the shared pool, started when needed).

    The result is called as `score(question, prompt, answer, finished=...)`. It never raises for a bad item: a scorer
    that fails on one gives UNSCORED with the reason, and the others are not touched.
    """
    metric = METRICS[options.metric]

    def score(question: Question, prompt: Presented, answer: str, *, finished: bool) -> Score:
        try:
            return metric.score(_Sample(question, prompt, answer, finished, options, pool))
        except NoisyjaxError:
            raise
        except Exception as error:  # noqa: BLE001  counted and shown as unscored, with this note
            return Score(State.UNSCORED, None, note=f"{type(error).__name__}: {error}")

    return score


def headline(score: Score, name: str = "") -> float | None:
    """The number that enters a mean: TRUNCATED and NO_ANSWER count as wrong, UNSCORED and OVER_LENGTH are missing.

    name: one of the score's `values` instead of the task's own headline.
    """
    if score.state in (State.TRUNCATED, State.NO_ANSWER):
        return 0.0
    if score.state is not State.SCORED:
        return None
    return score.values[name] if name else score.value
