"""Where a model looked while it answered: attention mass per label, by setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from noisyjax.records import LABELS
from noisyjax.report.data import RunReport
from noisyjax.report.gallery import attention
from noisyjax.report.training.run import TrainingRun
from noisyjax.store import decode_completion


@dataclass(frozen=True)
class Attention:
    """Means over `n` samples of the shares of each label (they sum to 1); a label that no sample has is not there."""

    shares: Mapping[str, float]
    n: int


def attention_by_setting(report: RunReport) -> dict[str, Attention]:
    """Setting -> mean attention over its samples, each of which weighs alike. {} where no mass was stored."""
    setting_of = {cell.id: cell.setting for cell in report.results.cells}
    kept = {s.key for cell in report.results.cells for s in report.results.kept(cell)}
    rows: dict[str, list[np.ndarray]] = {}
    for reader in report.results.readers:
        for key, record in reader.latest("samples").items():
            if key not in kept or "mass" not in record:
                continue
            shares = dict(attention(decode_completion(record)))
            if shares:
                row = np.array([shares.get(label.value, 0.0) for label in LABELS])
                rows.setdefault(setting_of[key.cell], []).append(row)
    return {setting: _mean(rows[setting]) for setting in report.settings if setting in rows}


Looked = tuple[TrainingRun, tuple[dict[str, Attention], ...]]
"""A training run, and its attention by setting at each of its `ends`."""


def before_and_after(runs: Sequence[TrainingRun]) -> list[Looked]:
    return [(run, tuple(attention_by_setting(report) for report in run.ends)) for run in runs]


def _mean(rows: list[np.ndarray]) -> Attention:
    mean_l = np.mean(rows, axis=0)
    return Attention({label.value: float(m) for label, m in zip(LABELS, mean_l, strict=True) if m > 0}, len(rows))
