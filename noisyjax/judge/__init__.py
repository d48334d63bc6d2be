"""Verdicts on answers by a model, any `Engine`: prompts, defences against the judged text, parsing, cache."""

from noisyjax.judge.cache import VerdictCache
from noisyjax.judge.outcome import JudgeConfig, OutcomeItem, judge_id, judge_outcomes
from noisyjax.judge.parse import Label, Reading, read_verdict

__all__ = [
    "JudgeConfig",
    "Label",
    "OutcomeItem",
    "Reading",
    "VerdictCache",
    "judge_id",
    "judge_outcomes",
    "read_verdict",
]
