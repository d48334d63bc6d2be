"""Records to files. A file appears under its name only when it is whole."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from noisyjax.errors import UsageError
from noisyjax.instruct.record import ChatRecord, InstructRecord
from noisyjax.instruct.shards import FORMATS, file_format

Record = InstructRecord | ChatRecord


def write_records(path: Path | str, records: Iterable[Record]) -> int:
    """Write `records` in the format that the name of `path` declares; how many they were.

    Raises UsageError for an unknown ending, a missing extra and an empty set (no reader would take the file).
    """
    path = Path(path)
    writer = {".jsonl": _jsonl, ".parquet": _parquet, ".array_record": _array_record}.get(file_format(path) or "")
    if writer is None:
        raise UsageError(f"{path}: unknown format; known: {', '.join(FORMATS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.writing")
    try:
        count = writer(unfinished, records)
        if not count:
            raise UsageError(f"{path}: no record to write")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _line(record: Record) -> bytes:
    return json.dumps(record.row(), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _jsonl(path: Path, records: Iterable[Record]) -> int:
    count = 0
    with path.open("wb") as file:
        for record in records:
            file.write(_line(record) + b"\n")
            count += 1
    return count


def _array_record(path: Path, records: Iterable[Record]) -> int:
    try:
        from array_record.python.array_record_module import ArrayRecordWriter
    except ImportError as error:
        raise UsageError("writing ArrayRecord needs the extra: pip install 'noisyjax[train]'") from error
    writer = ArrayRecordWriter(str(path), "group_size:1")  # one record a group: reached alone, in any order
    count = 0
    try:
        for record in records:
            writer.write(_line(record))
            count += 1
    finally:
        writer.close()
    return count


def _parquet(path: Path, records: Iterable[Record]) -> int:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError("writing Parquet needs the extra: pip install 'noisyjax[train]'") from error
    rows = []
    schema = None
    for record in records:
        schema = schema or arrow_schema(type(record), pyarrow)
        row = record.row()
        rows.append(row | ({"meta": json.dumps(row["meta"], ensure_ascii=False)} if "meta" in row else {}))
    if schema is not None:
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path)
    return len(rows)


def arrow_schema(kind: type[Record], pyarrow: Any) -> Any:
    """The columns of a Parquet file of these records; what a row leaves out is null."""
    text: Callable[[], Any] = pyarrow.string
    if kind is ChatRecord:
        message = pyarrow.struct([("role", text()), ("content", text())])
        return pyarrow.schema([("id", text()), ("messages", pyarrow.list_(message)), ("meta", text())])
    document = pyarrow.struct([("id", text()), ("title", text()), ("text", text())])
    turns = pyarrow.list_(pyarrow.list_(text()))
    unit = pyarrow.struct([("id", text()), ("kind", text()), ("text", text()), ("turns", turns)])
    return pyarrow.schema(
        [
            *((name, text()) for name in ("id", "question")),
            ("answers", pyarrow.list_(text())),
            *((name, text()) for name in ("hint", "working")),
            ("evidence", pyarrow.list_(document)),
            ("distractors", pyarrow.list_(unit)),
            *((name, text()) for name in ("domain", "composition", "setting", "meta")),
        ]
    )
