"""Verdicts on answers and references: by a model, any `Engine`, with defences against the judged text; or by rule."""

from noisyjax.judge.asking import JudgeConfig, judge_items
from noisyjax.judge.cache import VerdictCache
from noisyjax.judge.distraction import DistractionItem, judge_distractions
from noisyjax.judge.judges import AnyJudgeConfig, EngineJudge, EngineJudgeConfig, Judge, open_judge
from noisyjax.judge.outcome import OutcomeItem, judge_id, judge_outcomes
from noisyjax.judge.parse import Label, Reading, read_verdict
from noisyjax.judge.rationale import Conveys, RationaleItem, judge_rationales
from noisyjax.judge.rules import RuleJudge, RuleJudgeConfig

__all__ = [
    "AnyJudgeConfig",
    "Conveys",
    "DistractionItem",
    "EngineJudge",
    "EngineJudgeConfig",
    "Judge",
    "JudgeConfig",
    "Label",
    "OutcomeItem",
    "RationaleItem",
    "Reading",
    "RuleJudge",
    "RuleJudgeConfig",
    "VerdictCache",
    "judge_distractions",
    "judge_id",
    "judge_items",
    "judge_outcomes",
    "judge_rationales",
    "open_judge",
    "read_verdict",
]
