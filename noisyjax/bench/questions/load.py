"""From a data folder or the hub to a dataset's questions, each once, with everything that was left out counted."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noisyjax.bench.questions.files import data_folder, find_files, hub_rows, missing_message
from noisyjax.bench.questions.rows import BadRows, Row
from noisyjax.bench.readers import READERS, BadRowError, Context, Item, Negatives, Reader
from noisyjax.bench.task import Task
from noisyjax.config import validate
from noisyjax.errors import UsageError
from noisyjax.records import Document, Question


@dataclass(frozen=True)
class Loaded:
    """Every question of one dataset, in the order of ids.

    `negatives` gives a question's own hard negatives, () where the data has none.
    """

    task: Task
    questions: tuple[Question, ...]
    negatives: Negatives
    files: tuple[str, ...] = ()
    layout: str = "hub"
    rows: int = 0
    duplicates: int = 0
    """Rows that say the same as another one: same text, options and gold."""
    left_out: int = 0
    """Rows that the reader's options exclude."""
    bad: tuple[str, ...] = ()
    has_negatives: bool = False


@dataclass
class _Collected:
    items: dict[str, Item] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    duplicates: int = 0
    left_out: int = 0


def load_questions(
    task: Task,
    data: str,
    *,
    seed: int = 0,
    layout: str | None = None,
    only: Iterable[str] = (),
    options: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> Loaded:
    """Read `task` from the folder `data`, or from the hub when `data` is `hub`.

    Raises UsageError when the files are missing, a row is broken (unless `skip_bad`) or an option is unknown.
    """
    reader, bad = READERS[task.reader], BadRows(skip_bad)
    rows: Iterable[Row]
    files: tuple[Path, ...] = ()
    if data == "hub":
        if task.hub is None:
            raise UsageError(f"{task.name} is not on the hub: give bench.data=FOLDER")
        name, rows = "hub", hub_rows(task.hub, task.name)
        declared = task.hub.options
    else:
        folder = data_folder(data)
        found = find_files(task, folder, layout, tuple(only))
        if found is None:
            raise UsageError(missing_message(task, folder))
        name, files = found.layout.name, found.files
        rows, declared = reader.rows(files, bad), found.layout.options
    merged = {**task.options, **declared, **(options or {})}
    checked = validate(reader.options, merged, f"options of {task.name}")
    collected = _collect(rows, reader, Context(task.name, checked, seed), bad)
    if not collected.items:
        where = ", ".join(path.name for path in files) or "the hub"
        raise UsageError(f"{task.name}: no question could be read from {where}")
    return _loaded(task, name, files, collected, reader, bad)


def _collect(rows: Iterable[Row], reader: Reader, context: Context, bad: BadRows) -> _Collected:
    """Parse every row. Of rows that say the same the one with the smallest id stays, whatever the file's order."""
    out = _Collected()
    for row in rows:
        out.rows += 1
        try:
            item = reader.parse(row, context)
        except BadRowError as error:
            bad.report(row.where, str(error))
            continue
        if item is None:
            out.left_out += 1
            continue
        question = item.question
        if question.id in out.items and _content(question) != _content(out.items[question.id].question):
            bad.report(row.where, f"the id {question.id!r} belongs to another question too")
            continue
        twin = out.seen.get(_content(question))
        if twin is not None:
            out.duplicates += 1
            if twin <= question.id:
                continue
            del out.items[twin]
        out.items[question.id] = item
        out.seen[_content(question)] = question.id
    return out


def _content(question: Question) -> str:
    """What makes two rows the same question. Where the order of options was drawn by id it does not count."""
    choices = sorted(question.choices) if "permutation" in question.meta else question.choices
    return json.dumps([question.text, choices, _gold_text(question), sorted(question.answers[1:])])


def _gold_text(question: Question) -> str:
    return gold_option(question) if question.choices else question.answers[0]


def gold_option(question: Question) -> str:
    """The text of the gold option of a multiple-choice question."""
    return question.choices[ord(question.answers[0]) - ord("A")]


def _loaded(
    task: Task, layout: str, files: tuple[Path, ...], collected: _Collected, reader: Reader, bad: BadRows
) -> Loaded:
    items = [collected.items[key] for key in sorted(collected.items)]
    search = reader.search(items, files, bad)
    table: dict[str, tuple[Document, ...]] = {item.question.id: item.negatives for item in items}
    return Loaded(
        task=task,
        questions=tuple(item.question for item in items),
        negatives=search or (lambda question: table[question.id]),
        files=tuple(str(path) for path in files),
        layout=layout,
        rows=collected.rows,
        duplicates=collected.duplicates,
        left_out=collected.left_out,
        bad=tuple(bad.found),
        has_negatives=search is not None or any(table.values()),
    )
