"""Scoring: answer extraction, the scorers, pass@k, BBQ's bias scores and paired intervals. No model is called here."""

from noisyjax.scoring.bbq import BBQScores, bbq_scores
from noisyjax.scoring.math import MathPool, MathVerdict
from noisyjax.scoring.metrics import pass_at_k, pass_hat_k, per_question
from noisyjax.scoring.scorers import METRICS, ScoreOptions, Scorer, headline, scorer
from noisyjax.scoring.stats import CellValues, Interval, Summary, summarise

__all__ = [
    "METRICS",
    "BBQScores",
    "CellValues",
    "Interval",
    "MathPool",
    "MathVerdict",
    "ScoreOptions",
    "Scorer",
    "Summary",
    "bbq_scores",
    "headline",
    "pass_at_k",
    "pass_hat_k",
    "per_question",
    "scorer",
    "summarise",
]
