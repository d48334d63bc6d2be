"""Accuracy by the type of question, where the questions of a data set say of which type they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from noisyjax.report import words
from noisyjax.report.data import RunReport
from noisyjax.scoring import CellValues, Summary, summarise

FIELDS = ("kind", "type", "question_type")
"""Names of the field of a question's `meta`, the first that is there counts."""


@dataclass(frozen=True)
class Kinds:
    """One data set of a run. `summaries` has one entry a type, in the order of their names."""

    dataset: str
    summaries: Mapping[str, Summary]


def kinds(report: RunReport) -> list[Kinds]:
    """Per data set whose questions have a type; [] where none has. Intervals as in the main table."""
    typed = _types(report)
    found = []
    for dataset, types in typed.items():
        cells = [report.results.values(cell.info) for key, cell in report.cells.items() if key[0] == dataset]
        names = sorted(set(types.values()))
        summary = report.summary
        by_type = {
            name: summarise(
                [part for cell in cells if (part := _part(cell, types, name)).question_ids],
                seed=summary.seed,
                draws=summary.draws,
                level=summary.level,
                baseline=summary.baseline,
            )
            for name in names
        }
        found.append(Kinds(dataset, by_type))
    return found


def kind_tables(reports: Sequence[RunReport]) -> list[words.Extra]:
    """Accuracy by type of question and setting, a table per data set; [] where no question has a type."""
    tables: dict[str, list[list[str]]] = {}
    settings = list(dict.fromkeys(s for report in reports for s in report.settings))
    for report in reports:
        for found in kinds(report):
            rows = tables.setdefault(report.short(found.dataset), [])
            for name, summary in found.summaries.items():
                results = [summary.cells.get((found.dataset, setting)) for setting in settings]
                cells = [words.ABSENT if r is None else f"{words.interval(r.mean)}\nn {r.n}" for r in results]
                rows.append([name, report.label, *cells])
    for rows in tables.values():
        # One type beside another run's same type; the order of the runs stays.
        rows.sort(key=lambda row: row[0])
    head = ["type", "", *settings]
    return [(f"{short}: accuracy by type of question, %", head, rows) for short, rows in tables.items()]


def _types(report: RunReport) -> dict[str, dict[str, str]]:
    """Data set -> question -> its type."""
    types: dict[str, dict[str, str]] = {}
    for reader in report.results.readers:
        for record in reader.records("questions"):
            meta = record.get("meta") or {}
            named = next((meta[field] for field in FIELDS if isinstance(meta.get(field), str)), None)
            if named is not None:
                types.setdefault(record["dataset"], {})[record["question"]] = named
    return types


def _part(cell: CellValues, types: Mapping[str, str], name: str) -> CellValues:
    at = [i for i, question in enumerate(cell.question_ids) if types.get(question) == name]
    return CellValues(
        cell.dataset,
        cell.setting,
        [cell.question_ids[i] for i in at],
        np.asarray(cell.values_q)[at],
        None if cell.clusters is None else [cell.clusters[i] for i in at],
    )
