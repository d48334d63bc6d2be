"""Signs that a reference was copied together rather than found: metrics first, penalties where a config asks for them.

| figure          | what                                                               | besides, undefined without   |
|-----------------|--------------------------------------------------------------------|------------------------------|
| prompt_copied   | share of the prompt's n-grams that stand in the reference          | n words in the prompt        |
| token_ratio     | tokens of the reference / tokens of the prompt                     | a prompt                     |
| from_distractor | share of the reference's n-grams that stand in a distractor only   | n words in it, a distractor  |
| from_relevant   | share of the reference's n-grams in question, evidence or hint     | n words in it                |
| identical       | 1 where another sample of its group has the same reference, else 0 | a second one in the group    |

Without a reference all of them are undefined (nan).
"A distractor only": not in question, evidence or hint as well. An n-gram never crosses from one span to the next.

Legend: N samples.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from noisyjax.train.objective.metrics import Mean, Metrics
from noisyjax.train.rewards.config import GuardConfig, GuardsConfig
from noisyjax.train.rewards.ngrams import Gram, gram_set, grams, share_within, words
from noisyjax.train.rewards.samples import Case, Sample

Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass(frozen=True)
class Guards:
    """The figures of N samples, float64 [N] each, nan where undefined."""

    prompt_copied_n: np.ndarray
    token_ratio_n: np.ndarray
    from_distractor_n: np.ndarray
    from_relevant_n: np.ndarray
    identical_n: np.ndarray

    def flagged(self, config: GuardsConfig) -> dict[str, np.ndarray]:
        """By guard, bool [N]: whose figure is above the limit. An undefined figure flags nobody."""
        return {name: figure_n > guard.limit for name, guard, figure_n in self._limited(config)}

    def penalties(self, config: GuardsConfig) -> dict[str, np.ndarray]:
        """By guard with a penalty, float64 [N]: minus the penalty where flagged, else 0."""
        return {
            name: np.where(figure_n > guard.limit, -guard.penalty, 0.0)
            for name, guard, figure_n in self._limited(config)
            if guard.penalty
        }

    def metrics(self, config: GuardsConfig) -> Metrics:
        """Means over the defined figures, and the share of these that is flagged."""
        figures = {name.removesuffix("_n"): figure_n for name, figure_n in vars(self).items()}
        means = {f"guard/{name}": Mean.of(figure_n, ~np.isnan(figure_n)) for name, figure_n in figures.items()}
        flags = {
            f"guard/{name}_flagged": Mean.of(flagged_n, ~np.isnan(figures[name]))
            for name, flagged_n in self.flagged(config).items()
        }
        return means | flags

    def _limited(self, config: GuardsConfig) -> tuple[tuple[str, GuardConfig, np.ndarray], ...]:
        return (
            ("prompt_copied", config.prompt_copied, self.prompt_copied_n),
            ("token_ratio", config.token_ratio, self.token_ratio_n),
            ("from_distractor", config.from_distractor, self.from_distractor_n),
            ("identical", config.identical, self.identical_n),
        )


@dataclass(frozen=True)
class _Sources:
    """What the references of one case are held against; made once for its group."""

    prompt: list[Gram]
    prompt_tokens: int
    relevant: frozenset[Gram]
    distractors: frozenset[Gram]


def measure_guards(samples: Sequence[Sample], config: GuardsConfig, count: Count | None = None) -> Guards:
    """The figures of a batch. `count` counts tokens for `token_ratio`, words when it is None.

    What the references are held against is cut into n-grams once per case; samples may come in any order.
    """
    count = count or (lambda text: len(words(text)))
    sources: dict[str, _Sources] = {}
    columns: list[tuple[float, float, float, float]] = []
    for sample in samples:
        case = sample.case
        if sample.reference is None:
            columns.append((np.nan,) * 4)
            continue
        if case.id not in sources:
            sources[case.id] = _sources(case, config.ngram, count)
        columns.append(_figures(sample, sources[case.id], config.ngram, count))
    prompt_copied_n, token_ratio_n, from_distractor_n, from_relevant_n = np.array(columns, np.float64).reshape(-1, 4).T
    return Guards(prompt_copied_n, token_ratio_n, from_distractor_n, from_relevant_n, _identical(samples))


def _sources(case: Case, n: int, count: Count) -> _Sources:
    return _Sources(grams(case.prompt, n), count(case.prompt), gram_set(case.relevant, n), gram_set(case.noise, n))


def _figures(sample: Sample, sources: _Sources, n: int, count: Count) -> tuple[float, float, float, float]:
    """prompt_copied, token_ratio, from_distractor, from_relevant of a sample that has a reference."""
    copied = [gram for span in sample.references.spans for gram in grams(span.text, n)]
    nan = float("nan")
    return (
        share_within(sources.prompt, frozenset(copied)) if sources.prompt else nan,
        count(sample.reference or "") / sources.prompt_tokens if sources.prompt_tokens else nan,
        share_within(copied, sources.distractors, sources.relevant) if copied and sample.case.noise else nan,
        share_within(copied, sources.relevant) if copied else nan,
    )


def _identical(samples: Sequence[Sample]) -> np.ndarray:
    """float64 [N]; the comparison is of words, so that another full stop does not hide a copy."""
    keys = [None if s.reference is None else (s.case.id, tuple(words(s.reference))) for s in samples]
    times = Counter(key for key in keys if key is not None)
    in_group: Mapping[str, int] = Counter(key[0] for key in keys if key is not None)
    return np.array(
        [np.nan if key is None or in_group[key[0]] < 2 else float(times[key] > 1) for key in keys], np.float64
    )
