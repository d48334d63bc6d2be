"""Find a dataset's files in a folder, or its rows on the hub. The layouts are declared by the task."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisyjax.bench.questions.rows import Row
from noisyjax.bench.task import Hub, Layout, Task
from noisyjax.errors import UsageError, nearest


@dataclass(frozen=True)
class Found:
    """The first layout of a task whose files are all there."""

    layout: Layout
    files: tuple[Path, ...]


def data_folder(data: str) -> Path:
    """The folder `data` names. Raises UsageError when there is none."""
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise UsageError(f"data={data} is not a folder{_near_folder(folder)}")
    return folder


def _near_folder(folder: Path) -> str:
    """Folders beside the one that is not there, if their names are like its name; a parent may hold thousands."""
    if folder.exists():
        return " but a file: give the folder it lies in"
    parent = next((p for p in folder.parents if p.is_dir()), None)
    if parent is None:
        return ""
    missing = folder.relative_to(parent).parts[0]
    near = difflib.get_close_matches(missing, [p.name for p in parent.iterdir() if p.is_dir()], n=3)
    if near:
        return f"; did you mean {' or '.join(repr(str(parent / name)) for name in near)}?"
    return f"; {parent} holds no folder of a name like '{missing}'"


def find_files(task: Task, folder: Path, layout: str | None = None, only: Sequence[str] = ()) -> Found | None:
    """Files of `task` under `folder/<task.folder>` or `folder` itself; None when no layout is complete.

    `layout` takes one layout only; `only` keeps files whose name matches one of its globs.
    Raises UsageError for an unknown layout and for an `only` that matches nothing.
    """
    layouts = [entry for entry in task.layouts if layout in (None, entry.name)]
    if not layouts:
        raise UsageError(
            f"{task.name} has no layout '{layout}': {nearest(str(layout), [e.name for e in task.layouts])}"
        )
    for root in dict.fromkeys((folder / task.folder, folder)):
        for entry in layouts:
            matched = [_first_match(root, globs) for globs in entry.files]
            if all(matched):
                extra = [_first_match(root, globs) for globs in entry.optional]
                files = [path for group in (*matched, *extra) for path in group]
                return Found(entry, _keep(task, tuple(dict.fromkeys(files)), only))
    return None


def missing_message(task: Task, folder: Path) -> str:
    """What was looked for and where, for a dataset whose files are not there."""
    wanted = "; or ".join(" and ".join(entry.files) for entry in task.layouts)
    places = " or ".join(str(p) for p in dict.fromkeys((folder / task.folder, folder)))
    where = "bench.data=FOLDER, or --data of `bench`, says where its files lie, bench.datasets=[...] goes without"
    return f"{task.name}: no data in {places} ({where}). Looked for {wanted}"


def _first_match(root: Path, globs: str) -> list[Path]:
    for pattern in globs.split():
        found = sorted(path for path in root.glob(pattern) if path.is_file())
        if found:
            return found
    return []


def _keep(task: Task, files: tuple[Path, ...], only: Sequence[str]) -> tuple[Path, ...]:
    if not only:
        return files
    kept = tuple(path for path in files if any(path.match(pattern) for pattern in only))
    if not kept:
        names = [path.name for path in files]
        raise UsageError(f"{task.name}: files={list(only)} matches nothing; {nearest(only[0], names)}")
    return kept


def hub_rows(hub: Hub, name: str, *, stream: bool = False) -> Iterator[Row]:
    """Rows of a hub dataset; `stream` reads on demand instead of fetching all of it.

    Raises UsageError when `datasets` is absent or the hub refuses.
    """
    try:
        import datasets
    except ImportError as error:
        raise UsageError(f"{name}: data=hub needs the extra: pip install 'noisyjax[hub]'") from error
    try:
        table: Any = datasets.load_dataset(
            hub.dataset,
            hub.config,
            split=hub.split,
            revision=hub.revision,
            data_files=hub.data_files,
            streaming=stream,
        )
    except (OSError, ValueError, RuntimeError) as error:
        way = "accept its terms and set HF_TOKEN, or leave it out of bench.datasets"
        gated = f" (gated: {way})" if hub.gated else ""
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{name}: the hub dataset '{hub.dataset}' could not be read{gated}: {first}") from error
    for number, values in enumerate(table, 1):
        if all(values.get(column) == value for column, value in hub.where.items()):
            yield Row(values, f"{hub.dataset} row {number}", hub.config or hub.split)
