"""A training set: one or more files as a sequence of checked records with a fingerprint.

Opening reads every row once, so that a broken one is named before anything is compiled, and hashes every byte, so
that a run is never gone on with on other data than it began with.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from noisyjax.errors import UsageError
from noisyjax.instruct.shards import Rows, find_shards, open_rows

SHOWN = 3
"""Broken rows that a message shows; all are kept in `RecordFiles.bad`."""


class Identified(Protocol):
    @property
    def id(self) -> str: ...


class RecordFiles[R: Identified](Sequence[R]):
    """The sound records of some files, in the order of files and rows; read on demand, from any thread.

    `bad` says of every row that was left out where it is and why. `fingerprint` is a function of the files' bytes,
    their order and the rows left out, and of no path, so that a set may be moved.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        parse: Callable[[Mapping[str, Any], str], R],
        *,
        skip_bad: bool = False,
        check: bool = True,
    ) -> None:
        self.files = tuple(paths)
        self._parse = parse
        self._rows: list[Rows] = [open_rows(path) for path in paths]
        self._ends = np.cumsum([len(rows) for rows in self._rows])
        self._index = np.arange(self._ends[-1])
        self.bad: tuple[str, ...] = ()
        if check:
            self._check(skip_bad)
        self.fingerprint = self._fingerprint()

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return self._read(int(self._index[i]))

    def where(self, i: int) -> str:
        """The file and the line or record that record i stands in."""
        rows, at = self._locate(int(self._index[i]))
        return rows.where(at)

    def _locate(self, number: int) -> tuple[Rows, int]:
        file = int(np.searchsorted(self._ends, number, side="right"))
        return self._rows[file], number - (int(self._ends[file - 1]) if file else 0)

    def _read(self, number: int) -> R:
        rows, at = self._locate(number)
        return self._parse(rows.row(at), rows.where(at))

    def _check(self, skip_bad: bool) -> None:
        """Read everything once; keep the rows that are sound and the only ones with their id."""
        keep = np.ones(len(self._index), bool)
        first: dict[str, int] = {}
        bad: list[str] = []
        for number in range(len(self._index)):
            rows, at = self._locate(number)
            try:
                id = self._read(number).id
                if id in first:
                    other, there = self._locate(first[id])
                    raise UsageError(f"{rows.where(at)}: the id {id!r} is that of {other.where(there)} too")
                first[id] = number
            except UsageError as error:
                bad.append(str(error))
                keep[number] = False
        if bad and not skip_bad:
            more = f"\n  and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
            listed = "\n  ".join(bad[:SHOWN])
            raise UsageError(
                f"{len(bad)} of {len(self._index)} records cannot be used. Mend the file, or go on without them "
                f"with skip_bad=true\n  {listed}{more}"
            )
        self.bad = tuple(bad)
        self._index = np.flatnonzero(keep)
        if not len(self._index):
            raise UsageError(f"{', '.join(p.name for p in self.files)}: no record can be used; the first: {bad[0]}")

    def _fingerprint(self) -> str:
        """Twenty hexadecimal digits."""
        digests = []
        for path in self.files:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        left_out = np.setdiff1d(np.arange(self._ends[-1]), self._index).tolist()
        return hashlib.sha256(json.dumps([digests, left_out]).encode()).hexdigest()[:20]


def open_files[R: Identified](
    names: Sequence[str],
    parse: Callable[[Mapping[str, Any], str], R],
    *,
    skip_bad: bool = False,
    check: bool = True,
) -> RecordFiles[R]:
    """The records of files or folders of shards (JSON lines, Parquet, ArrayRecord).

    `parse` is `parse_instruct` or `parse_chat`. `skip_bad` goes on without broken rows and counts them. `check=False`
    leaves out the first reading, for sets that take minutes to read: a broken row then stops the run when it is met,
    and nobody looks for ids that occur twice. Raises UsageError that names files and rows.
    """
    if skip_bad and not check:
        raise UsageError("skip_bad=true needs check=true: which rows are left out must be known beforehand")
    if not names:
        raise UsageError("no training data: set files=[FILE or FOLDER, ...]")
    return RecordFiles(find_shards(names), parse, skip_bad=skip_bad, check=check)
