"""Sampled completions as rows to look at: what was asked, what came, which spans, which verdicts, what it earned."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np

from noisyjax.records import LABELS, NoisyPrompt, Verdict
from noisyjax.train.grading import Graded
from noisyjax.train.objective.advantages import Advantages
from noisyjax.train.watch.log import finite


def sample_rows(graded: Graded, advantages: Advantages, most: int) -> list[Mapping[str, Any]]:
    """The first `most` completions of a batch, JSON-ready; what is undefined is null."""
    flat = [(group, g) for group in graded.judged for g in range(len(group.samples))][:most]
    total_n = graded.rewards.total_n
    rows: list[Mapping[str, Any]] = []
    for i, (group, g) in enumerate(flat):
        sample, completion, asked = group.samples[g], group.rollout.completions[g], group.rollout.asked
        record = asked.record
        rows.append(
            {
                "record": record.id,
                "setting": record.setting,
                "composition": record.composition,
                "sample": completion.sample,
                "question": record.question,
                "gold": record.answers[0],
                "hint": record.hint,
                "spans": list(_spans(asked.prompt)),
                "completion": completion.text,
                "finish": str(completion.finish),
                "tokens": completion.completion_tokens,
                "references": [span.text for span in sample.references.spans],
                "answer": sample.answer,
                "faults": [str(fault) for fault in sample.faults],
                "outcome": _said(group.outcomes[g]),
                "rationale": _said(group.rationales[g]),
                "distraction": _said(group.distractions[g]),
                "rewards": {
                    name: finite(graded.rewards.reward_nc[i, c]) for c, name in enumerate(graded.rewards.names)
                },
                "reward": finite(total_n[i]),
                "advantage": finite(advantages.advantage_n[i]) if advantages.defined_n[i] else None,
            }
        )
    return rows


def _spans(prompt: NoisyPrompt) -> Iterator[tuple[str, int]]:
    """(label, tokens) of each run of equal labels, in order."""
    for label, run in groupby(np.asarray(prompt.labels).tolist()):
        yield LABELS[label].value, sum(1 for _ in run)


def _said(verdict: Verdict | None) -> Mapping[str, Any] | None:
    return None if verdict is None else {"value": verdict.value, "score": verdict.score, "reason": verdict.reason[:200]}
