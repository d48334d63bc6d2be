"""How many rollouts reason with the noise: the distracted-thought proportion, as a lexical figure and as a judgement.

The paper plots such a proportion and does not define it. Here a rollout is distracted or not, and the proportion is the
mean. Rollouts whose prompt holds no distractor are left out: they cannot be distracted, and counting them as 0 would
make the figure depend on the mixture of settings.

Lexical: a sentence is compared by the share of its n-grams that stand in a text. It is distracted when some distractor
holds more of it than question, evidence and hint together do; a tie is not. The rollout is distracted when the share of
such sentences among those long enough to be compared reaches tau.

Legend: N samples.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from noisyjax.chat.reference import without_tags
from noisyjax.judge import DistractionItem
from noisyjax.records import Verdict
from noisyjax.train.objective.metrics import Mean, Metrics, Reducer
from noisyjax.train.rewards.config import DistractionConfig, RewardConfig
from noisyjax.train.rewards.ngrams import Gram, gram_set, grams
from noisyjax.train.rewards.samples import Sample
from noisyjax.train.rewards.total import verdict_values


class Compared(StrEnum):
    """Whether a rollout could be compared, and if not, why."""

    YES = "yes"
    NO_DISTRACTOR = "no_distractor"
    NO_REASONING = "no_reasoning"
    """Nothing was reasoned, or no sentence is long enough."""
    UNSCORED = "unscored"
    """The judge gave no verdict."""


@dataclass(frozen=True)
class Distraction:
    """Of N samples: value_n float64 [N], 1 distracted, 0 not, nan undefined; compared_n says why it is undefined.

    share_n float64 [N]: the share of distracted sentences, nan where undefined; None for the judge's form.
    """

    value_n: np.ndarray
    share_n: np.ndarray | None
    compared_n: tuple[Compared, ...]

    def metrics(self, name: str) -> Metrics:
        """The proportion, and of the rollouts that had a distractor the share that could not be compared."""
        had_n = np.array([c is not Compared.NO_DISTRACTOR for c in self.compared_n], bool)
        found: dict[str, Reducer] = {
            name: Mean.of(self.value_n, ~np.isnan(self.value_n)),
            f"{name}_undefined": Mean.of(np.isnan(self.value_n), had_n),
        }
        if self.share_n is not None:
            found[f"{name}_sentences"] = Mean.of(self.share_n, ~np.isnan(self.share_n))
        return found


_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")


def sentences(reasoning: str) -> list[str]:
    """The sentences and lines of a thought; a reference tag ends one. "3.5" and "e.g.x" do not."""
    return [s.strip() for s in _SENTENCE_END.split(without_tags(reasoning, "\n")) if s.strip()]


def lexical_distraction(samples: Sequence[Sample], config: DistractionConfig) -> Distraction:
    """The lexical form for a batch; a case's texts are cut into n-grams once."""
    known: dict[str, tuple[frozenset[Gram], Holders]] = {}
    shares: list[float] = []
    compared: list[Compared] = []
    for sample in samples:
        case = sample.case
        if not case.noise:
            share, state = None, Compared.NO_DISTRACTOR
        else:
            if case.id not in known:
                known[case.id] = gram_set(case.relevant, config.ngram), _holders(case.noise, config.ngram)
            share = distracted_share(sample.reasoning, *known[case.id], config.ngram)
            state = Compared.NO_REASONING if share is None else Compared.YES
        shares.append(np.nan if share is None else share)
        compared.append(state)
    share_n = np.array(shares, np.float64)
    value_n = np.where(np.isnan(share_n), np.nan, share_n >= config.tau)
    return Distraction(value_n, share_n, tuple(compared))


Holders = Mapping[Gram, Sequence[int]]
"""For each n-gram of the noise the distractors that hold it: one look-up, however many distractors there are."""


def _holders(noise: Sequence[str], n: int) -> Holders:
    holders: dict[Gram, list[int]] = {}
    for i, text in enumerate(noise):
        for gram in gram_set([text], n):
            holders.setdefault(gram, []).append(i)
    return holders


def distracted_share(reasoning: str, relevant: frozenset[Gram], noise: Holders, n: int) -> float | None:
    """The share of distracted sentences among those of at least `n` words; None where there is none."""
    compared = [found for sentence in sentences(reasoning) if (found := grams(sentence, n))]
    if not compared:
        return None
    return sum(_is_distracted(found, relevant, noise) for found in compared) / len(compared)


def _is_distracted(found: Sequence[Gram], relevant: frozenset[Gram], noise: Holders) -> bool:
    by_distractor = Counter(i for gram in found for i in noise.get(gram, ()))
    return max(by_distractor.values(), default=0) > sum(gram in relevant for gram in found)


def wants_judgement(sample: Sample, config: RewardConfig) -> bool:
    """Whether a judge is asked if this rollout leans on its noise."""
    return config.distraction.judged and _comparable(sample) is Compared.YES


def distraction_item(sample: Sample) -> DistractionItem:
    """What a judge is shown of a sample."""
    case = sample.case
    question = "\n\n".join((case.question, *case.evidence))
    return DistractionItem(question, case.noise, without_tags(sample.reasoning), case.gold)


def judged_distraction(samples: Sequence[Sample], verdicts: Sequence[Verdict | None]) -> Distraction:
    """The judge's form for a batch: its verdict on each sample, None where it was not asked."""
    compared = [_comparable(sample) for sample in samples]
    value_n = verdict_values(verdicts)
    states = (
        Compared.UNSCORED if state is Compared.YES and np.isnan(value) else state
        for state, value in zip(compared, value_n, strict=True)
    )
    return Distraction(value_n, None, tuple(states))


def _comparable(sample: Sample) -> Compared:
    """Whether a judge could decide."""
    if not sample.case.noise:
        return Compared.NO_DISTRACTOR
    return Compared.YES if without_tags(sample.reasoning).strip() else Compared.NO_REASONING
