"""Rows of one file by their number, in three formats, and the files of a folder of shards.

JSON lines stay on disk (memory-mapped, one offset a line), ArrayRecord too; a Parquet file is held in memory as Arrow
columns, since a row in it cannot be reached alone: sets larger than memory belong in ArrayRecord.
"""

import json
import mmap
import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from noisyjax.errors import UsageError, nearest

_BOM = b"\xef\xbb\xbf"
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\..*)?$")
FORMATS = (".jsonl", ".parquet", ".array_record")


class Rows(Protocol):
    """The rows of a file as plain data. `row` raises UsageError that names the row; safe to call from threads."""

    def __len__(self) -> int: ...

    def row(self, i: int) -> Mapping[str, Any]: ...

    def where(self, i: int) -> str:
        """The file and the line or record (counted from 1) of row i, for messages."""
        ...


def file_format(path: Path) -> str | None:
    """The format that a file's name declares, shard numbers aside (`x.array_record-00000-of-00002`)."""
    shard = _SHARD.match(path.name)
    name = f"{shard['stem']}{shard['suffix'] or ''}" if shard else path.name
    return next((suffix for suffix in FORMATS if name.endswith(suffix)), None)


def open_rows(path: Path) -> Rows:
    """The rows of one file. Raises UsageError for a file that cannot be read at all or holds nothing."""
    opened: Rows
    match file_format(path):
        case ".jsonl":
            opened = JsonLines(path)
        case ".parquet":
            opened = ParquetRows(path)
        case ".array_record":
            opened = ArrayRecordRows(path)
        case _:
            raise UsageError(f"{path}: unknown format; known: {', '.join(FORMATS)}")
    if not len(opened):
        raise UsageError(f"{path}: no record in it; was the file cut short?")
    return opened


def find_shards(names: Sequence[str]) -> tuple[Path, ...]:
    """The files that `names` (files or folders) stand for, those of a folder sorted by name.

    Raises UsageError for what is not there, a folder that holds none or several formats, and a missing shard.
    """
    found = [path for name in names for path in _files_of(name)]
    twice = [path for path in dict.fromkeys(found) if found.count(path) > 1]
    if twice:
        raise UsageError(f"{twice[0]}: named twice")
    _check_complete(found)
    return tuple(found)


def _files_of(name: str) -> list[Path]:
    if "://" in name:
        raise UsageError(f"{name}: only local files can be read; copy it to a local disk first")
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        near = nearest(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
        raise UsageError(f"{name}: no such file or folder. {near}".rstrip())
    files = sorted(file for file in path.iterdir() if file.is_file() and file_format(file))
    formats = sorted({str(file_format(file)) for file in files})
    if len(formats) != 1:
        what = f"both {' and '.join(formats)} files; name those that are meant" if files else "no file that can be read"
        raise UsageError(f"{name}: the folder holds {what} (known: {', '.join(FORMATS)})")
    return files


def _check_complete(files: Sequence[Path]) -> None:
    """Files that call themselves one of n must be all there: a lost shard must not change the training set."""
    sets: dict[tuple[Path, str, str, str], set[int]] = {}
    for path in files:
        shard = _SHARD.match(path.name)
        if shard:
            key = (path.parent, shard["stem"], shard["count"], shard["suffix"] or "")
            sets.setdefault(key, set()).add(int(shard["number"]))
    for (folder, stem, count, suffix), numbers in sets.items():
        missing = set(range(int(count))) - numbers
        if missing:
            names = ", ".join(f"{stem}-{n:05d}-of-{count}{suffix}" for n in sorted(missing)[:3])
            raise UsageError(f"{folder}: {len(missing)} of {int(count)} shards are missing ({names})")


class JsonLines:
    """UTF-8 lines that end in "\\n" alone; blank lines are passed over, and the last one may lack its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                empty = file.seek(0, 2) == 0
                self._bytes: mmap.mmap | bytes = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        spans = array("q")
        start = len(_BOM) if self._bytes[: len(_BOM)] == _BOM else 0
        number = 1
        while start < len(self._bytes):
            end = self._bytes.find(b"\n", start)
            end = len(self._bytes) if end < 0 else end
            # A look at the first bytes tells most lines from blank ones without copying them.
            if self._bytes[start : min(start + 16, end)].strip() or self._bytes[start:end].strip():
                spans.extend((start, end, number))
            start, number = end + 1, number + 1
        self._spans = np.frombuffer(spans, np.int64).reshape(-1, 3)  # start, end, line number of each row

    def __len__(self) -> int:
        return len(self._spans)

    def row(self, i: int) -> Mapping[str, Any]:
        start, end, _ = self._spans[i]
        return parse_json(self._bytes[start:end], self.where(i))

    def where(self, i: int) -> str:
        return f"{self._path.name}:{self._spans[i][2]}"


class ArrayRecordRows:
    """One UTF-8 JSON object a record."""

    def __init__(self, path: Path) -> None:
        try:
            import grain
        except ImportError as error:
            raise UsageError(f"{path}: reading ArrayRecord needs the extra: pip install 'noisyjax[train]'") from error
        self._path = path
        try:
            self._source = grain.sources.ArrayRecordDataSource([str(path)])
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"{path}: not an ArrayRecord file that can be read ({short(error)})") from error

    def __len__(self) -> int:
        return len(self._source)

    def row(self, i: int) -> Mapping[str, Any]:
        try:
            raw = self._source[i]
        except (RuntimeError, ValueError, IndexError) as error:  # what the C++ reader raises for damaged blocks
            raise UsageError(f"{self.where(i)}: damaged ({short(error)})") from error
        return parse_json(raw, self.where(i))

    def where(self, i: int) -> str:
        return f"{self._path.name} record {i + 1}"


class ParquetRows:
    """One column a field, `meta` as JSON text; see `writers.arrow_schema` for the types."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise UsageError(f"{path}: reading Parquet needs the extra: pip install 'noisyjax[train]'") from error
        self._path = path
        try:
            self._table = parquet.read_table(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: not a Parquet file that can be read ({short(error)})") from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def row(self, i: int) -> Mapping[str, Any]:
        try:
            (row,) = self._table.slice(i, 1).to_pylist()
        except (ValueError, OSError) as error:  # text that is not UTF-8
            raise UsageError(f"{self.where(i)}: damaged ({short(error)})") from error
        row = _without_nulls(row)
        if isinstance(row.get("meta"), str):
            row["meta"] = parse_json(row["meta"].encode(), f"{self.where(i)}: meta")
        return row

    def where(self, i: int) -> str:
        return f"{self._path.name} record {i + 1}"


def _without_nulls(value: Any) -> Any:
    """A table has every field in every row: null stands for what JSON would leave out."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def parse_json(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `raw`. Raises UsageError that begins with `where`."""
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not valid JSON ({short(error)})") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: an object was expected, found a {type(value).__name__}")
    return value


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def short(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
