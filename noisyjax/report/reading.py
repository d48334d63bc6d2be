"""From folders to what a report is made of: evaluation runs, training runs, or both together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from noisyjax.evaluate.results import load_results
from noisyjax.report.data import RunReport, distinct, once, run_report
from noisyjax.report.training.run import MARK, TrainingRun, read_config, training_run
from noisyjax.store import Folder, is_run, open_folder

DEEP = 4
"""Folders inside each other that are searched for the runs of a sweep: one for each axis."""


@dataclass(frozen=True)
class Found:
    """What some folders hold, each kind in the order in which they were named."""

    reports: tuple[RunReport, ...]
    """Evaluation runs that were named themselves."""
    training: tuple[TrainingRun, ...]

    @property
    def shown(self) -> tuple[RunReport, ...]:
        """The evaluation runs, and the last evaluation of each training run."""
        return (*self.reports, *(run.last for run in self.training if run.last is not None))


def read(urls: Sequence[str], draws: int = 2000) -> Found:
    """Evaluation and training runs, labels made different where names are equal. A folder that is no run but holds
    some, as a sweep's does, stands for all of them.

    Raises UsageError for what is neither, RunError for a log that cannot be read.
    """
    folders = [run for url in urls for run in _runs(open_folder(str(url)))]
    urls = [folder.url for folder in folders]
    once(urls)
    marks = [folder.read(MARK) for folder in folders]
    results = [load_results(str(url)) if mark is None else None for url, mark in zip(urls, marks, strict=True)]
    configs = [{} if mark is None else read_config(folder) for folder, mark in zip(folders, marks, strict=True)]
    names = [
        result.name if result else str(config.get("name") or PurePosixPath(str(url)).name)
        for url, result, config in zip(urls, results, configs, strict=True)
    ]
    labels = distinct(names, urls)
    return Found(
        tuple(run_report(r, label, draws) for r, label in zip(results, labels, strict=True) if r is not None),
        tuple(
            training_run(folder, mark, config, label, draws)
            for folder, mark, config, label in zip(folders, marks, configs, labels, strict=True)
            if mark is not None
        ),
    )


def _runs(folder: Folder) -> list[Folder]:
    """The folder itself where it is a run, or holds none; else the runs inside, in the order of their names."""

    def inside(here: Folder, deep: int) -> list[Folder]:
        if is_run(here) or here.read(MARK) is not None:
            return [here]
        return [run for name in here.children() for run in inside(here.child(name), deep - 1)] if deep else []

    return inside(folder, DEEP) or [folder]
