"""Rows of a data file, whatever it is: JSON lines (also when named .json), a JSON list, an object that holds a list,
CSV or Parquet. Each row knows where it came from, and a broken one is one readable error or one counted skip.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noisyjax.errors import UsageError


@dataclass(frozen=True)
class Row:
    """One record of a file. `where` is `name:line` (JSON lines, CSV) or `name item n` (lists), for messages."""

    data: Mapping[str, Any]
    where: str
    file: str = ""
    """The file's name without folders."""


@dataclass
class BadRows:
    """What to do with a row that cannot be read: stop with one readable error, or go on and keep the list."""

    skip: bool = False
    found: list[str] = field(default_factory=list)

    def report(self, where: str, why: str) -> None:
        """Record a bad row at `where`. Raises UsageError unless `skip`."""
        if not self.skip:
            raise UsageError(f"{where}: {why}. Mend the file, or go on without such rows with skip_bad=true")
        self.found.append(f"{where}: {why}")


def read_rows(path: Path, bad: BadRows, inside: str | None = None) -> Iterator[Row]:
    """Yield the rows of `path`. `inside` names the key that holds the list when the file is one JSON object.

    A file counts as JSON lines when its first line is whole JSON and more lines follow, whatever its name.
    Raises UsageError for a file that cannot be read at all, and for a bad row unless `bad.skip`.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if path.suffix == ".csv":
        yield from _csv(path, raw, bad)
    elif _is_json_lines(raw):
        yield from _json_lines(path, raw, bad)
    else:
        yield from _json_document(path, raw, bad, inside)


def read_object(path: Path) -> dict[str, Any]:
    """The one JSON object that `path` holds. Raises UsageError when it holds anything else."""
    try:
        value = json.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: a JSON object was expected, found a {type(value).__name__}")
    return value


def _is_json_lines(raw: bytes) -> bool:
    """Whether each line stands for itself. A broken first line is no reason to doubt it if the file is no document."""
    first, _, rest = raw.strip().partition(b"\n")
    if rest.strip() and _parses(first):
        return True
    return not raw.lstrip().startswith(b"[") and not _parses(raw)


def _parses(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _json_lines(path: Path, raw: bytes, bad: BadRows) -> Iterator[Row]:
    # Only "\n" ends a line: str.splitlines would also cut at U+2028, which JSON strings may hold.
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            bad.report(where, f"not valid JSON ({_short(error)})")
            continue
        yield from _checked(value, where, path, bad)


def _json_document(path: Path, raw: bytes, bad: BadRows, inside: str | None) -> Iterator[Row]:
    try:
        value = json.loads(raw)
    except ValueError as error:
        # A broken document has no rows to go on with, so skip_bad cannot help.
        raise UsageError(f"{path}: not valid JSON ({_short(error)})") from error
    if isinstance(value, dict) and not (inside is not None and inside in value):
        yield Row(value, f"{path.name}:1", path.name)
    else:
        yield from _items(path, value[inside] if isinstance(value, dict) else value, bad)


def _items(path: Path, values: Any, bad: BadRows) -> Iterator[Row]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise UsageError(f"{path}: a list of rows was expected, found a {type(values).__name__}")
    for number, value in enumerate(values, 1):
        yield from _checked(value, f"{path.name} item {number}", path, bad)


def _checked(value: Any, where: str, path: Path, bad: BadRows) -> Iterator[Row]:
    if isinstance(value, dict):
        yield Row(value, where, path.name)
    else:
        bad.report(where, f"an object was expected, found a {type(value).__name__}")


def _csv(path: Path, raw: bytes, bad: BadRows) -> Iterator[Row]:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from error
    csv.field_size_limit(1 << 30)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    for values in reader:
        where = f"{path.name}:{reader.line_num}"
        if None in values or None in values.values():
            bad.report(where, f"a row of {len(reader.fieldnames or ())} fields was expected")
        else:
            yield Row(values, where, path.name)


def _parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(f"{path}: reading Parquet needs the extra: pip install 'noisyjax[hub]'") from error
    try:
        values = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a Parquet file that can be read ({_short(error)})") from error
    for number, value in enumerate(values, 1):
        yield Row(value, f"{path.name} item {number}", path.name)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120]
