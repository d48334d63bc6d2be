"""What `noisyjax bench ls | show | validate` tell, as data: the tasks, how a prompt looks, what is in the files."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisyjax.bench.build import Bench, Sources, load_dataset, load_sources
from noisyjax.bench.questions.files import data_folder, find_files, missing_message
from noisyjax.bench.quickstart import FOLDER as QUICKSTART
from noisyjax.bench.schema import BenchConfig
from noisyjax.bench.task import Task, all_tasks, get_task
from noisyjax.chat import ChatTokenizer
from noisyjax.errors import UsageError, nearest
from noisyjax.records import LABELS, NOISE_KINDS, SETTINGS, NoisyPrompt, Question


@dataclass(frozen=True)
class TaskRow:
    """A line of `bench ls`. `files` are those found in the data folder; `note` says what is missing."""

    task: Task
    layout: str = ""
    files: tuple[str, ...] = ()
    note: str = ""


def list_tasks(data: str | None = None) -> list[TaskRow]:
    """Every task; with `data` (a folder, `hub` or `quickstart`) also which of its files lie there."""
    folder = None if data in (None, "hub") else QUICKSTART if data == "quickstart" else data_folder(str(data))
    return [_task_row(task, folder, data) for task in all_tasks().values()]


def _task_row(task: Task, folder: Path | None, data: str | None) -> TaskRow:
    if task.status == "absent":
        return TaskRow(task, note=f"absent: {task.absent_because}")
    if folder is None:
        hub = f"hub {task.hub.dataset}" if task.hub else "not on the hub"
        return TaskRow(task, note=hub if data == "hub" else "")
    found = find_files(task, folder)
    if found is None and find_files(task, QUICKSTART):
        return TaskRow(task, note="comes with the package: bench.data=quickstart")
    if found is None:
        return TaskRow(task, note=missing_message(task, folder))
    return TaskRow(task, found.layout.name, tuple(str(path) for path in found.files))


@dataclass(frozen=True)
class Shown:
    """One prompt with its question; the prompt's messages hold the labelled parts."""

    question: Question
    prompt: NoisyPrompt
    label_tokens: Mapping[str, int]
    """Tokens per label; empty without a tokenizer."""


def show(
    bench: Bench,
    dataset: str,
    setting: str,
    question_id: str | None = None,
    tokenizer: ChatTokenizer | None = None,
) -> Shown:
    """The prompt of one question (the first by default). Raises UsageError for an unknown dataset or question."""
    if dataset not in bench.datasets:
        reason = bench.absent.get(dataset) or nearest(dataset, bench.datasets)
        raise UsageError(f"dataset '{dataset}' is not in this benchmark: {reason}")
    data = bench[dataset]
    wanted = question_id or data.questions[0].id
    question = next((q for q in data.questions if q.id == wanted), None)
    if question is None:
        gone = next((d for d in data.dropped if d.question_id == wanted), None)
        why = (
            f"it was dropped ({gone.reason}: {gone.detail})"
            if gone
            else nearest(wanted, (q.id for q in data.questions))
        )
        raise UsageError(f"{dataset} has no question '{wanted}': {why}")
    prompt = next(data.only([wanted]).prompts(setting, tokenizer))
    return Shown(question, prompt, _label_tokens(prompt))


def _label_tokens(prompt: NoisyPrompt) -> dict[str, int]:
    return {LABELS[i]: n for i, n in enumerate(np.bincount(prompt.labels).tolist()) if n}


@dataclass(frozen=True)
class DatasetReport:
    """What `bench validate` found in one dataset. `error` is set when it could not be read at all."""

    name: str
    error: str = ""
    layout: str = ""
    files: tuple[str, ...] = ()
    rows: int = 0
    questions: int = 0
    duplicates: int = 0
    left_out: int = 0
    bad: tuple[str, ...] = ()
    contaminated: Mapping[str, int] | None = None
    """Questions whose noise of each kind holds the answer; a kind that is not at hand is not in it."""
    no_negatives: int = 0
    unchecked: int = 0
    """Questions whose answer is too short to be looked for."""
    kept: int = 0
    orphans: tuple[str, ...] = ()
    """Question ids of the hard-negatives file that the dataset does not have."""
    missing: Mapping[str, str] | None = None
    """Settings that cannot be run, with the reason."""


@dataclass(frozen=True)
class PoolReport:
    kind: str
    groups: int
    units: int
    size: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class Validation:
    pools: tuple[PoolReport, ...]
    datasets: tuple[DatasetReport, ...]
    bad: tuple[str, ...]
    """Broken rows of pools and of the hard-negatives file."""

    @property
    def sound(self) -> bool:
        """Whether nothing was broken: every dataset read, no bad row anywhere."""
        return not self.bad and all(not d.error and not d.bad for d in self.datasets)


def validate_bench(config: BenchConfig) -> Validation:
    """Read everything that `config` names, all questions of it, and count; broken rows are listed, not raised."""
    whole = config.model_copy(
        update={
            "skip_bad": True,
            "questions": None,
            "overrides": {k: o.model_copy(update={"questions": None}) for k, o in config.overrides.items()},
        }
    )
    sources = load_sources(whole)
    pools = tuple(
        PoolReport(kind, len(pool.groups), sum(map(len, pool.groups)), pool.size, pool.files)
        for kind, pool in sources.pools.items()
    )
    tasks = [get_task(name) for name in whole.datasets]
    reports = tuple(_report(task, whole, sources) for task in tasks if task.status == "ready")
    return Validation(pools, reports, sources.bad)


def _report(task: Task, config: BenchConfig, sources: Sources) -> DatasetReport:
    try:
        data = load_dataset(task, config, sources)
    except UsageError as error:
        return DatasetReport(task.name, error=str(error))
    loaded = data.loaded
    kinds = [kind for kind in NOISE_KINDS if data.missing(kind) is None]
    known = {q.id for q in loaded.questions}
    return DatasetReport(
        name=task.name,
        layout=loaded.layout,
        files=loaded.files,
        rows=loaded.rows,
        questions=len(loaded.questions),
        duplicates=loaded.duplicates,
        left_out=loaded.left_out,
        bad=loaded.bad,
        contaminated=dict.fromkeys(kinds, 0)
        | Counter(kind for d in data.dropped if d.reason == "contaminated" for kind in d.kinds),
        no_negatives=sum(d.reason == "no_negatives" for d in data.dropped),
        unchecked=sum(not data.checker.terms(q) for q in loaded.questions),
        kept=len(data.questions),
        orphans=tuple(sources.negatives.orphans(task.name, known)) if sources.negatives else (),
        missing={s: reason for s in dict.fromkeys((*SETTINGS, *config.settings)) if (reason := data.missing(s))},
    )
