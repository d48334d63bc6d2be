"""What every reader shares: a row goes in, an item comes out, and a row that lacks something says what."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisyjax.bench.questions.rows import BadRows, Row, read_rows
from noisyjax.config import Schema
from noisyjax.records import Document, Question

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class BadRowError(ValueError):
    """A row that cannot become a question; the message says why."""


class NoOptions(Schema):
    """A reader without options."""


@dataclass(frozen=True)
class Item:
    """A question and the hard negatives its benchmark ships for it, best first or in the file's order."""

    question: Question
    negatives: tuple[Document, ...] = ()


@dataclass(frozen=True)
class Context:
    """What a parse function may know beside its row. `seed` is the benchmark's, for options without an order."""

    dataset: str
    options: Any
    seed: int = 0


Negatives = Callable[[Question], tuple[Document, ...]]


def rows_of_files(files: Sequence[Path], bad: BadRows) -> Iterator[Row]:
    for path in files:
        yield from read_rows(path, bad)


def no_search(items: Sequence[Item], files: Sequence[Path], bad: BadRows) -> Negatives | None:
    return None


@dataclass(frozen=True)
class Reader:
    """parse: one row -> Item, None for a row that the options leave out; raises BadRowError.

    rows: files -> rows, where a dataset spreads over several files.

    search: for a benchmark whose negatives are retrieved from a pool instead of standing in the row.
    """

    parse: Callable[[Row, Context], Item | None]
    options: type[Schema] = NoOptions
    rows: Callable[[Sequence[Path], BadRows], Iterator[Row]] = rows_of_files
    search: Callable[[Sequence[Item], Sequence[Path], BadRows], Negatives | None] = no_search


def need(data: Mapping[str, Any], *names: str) -> Any:
    """The value under the first of `names` that is there: upstreams spell one field in several ways."""
    for name in names:
        if data.get(name) is not None:
            return data[name]
    spelled = " or ".join(f"'{n}'" for n in names)
    raise BadRowError(f"no {spelled} (fields: {', '.join(map(str, data)) or 'none'})")


def need_text(data: Mapping[str, Any], *names: str) -> str:
    """Like `need`, for a text that must not be blank; surrounding blanks are kept."""
    value = need(data, *names)
    if not isinstance(value, str) or not value.strip():
        raise BadRowError(f"'{names[0]}' must be a text that is not blank, found {value!r:.60}")
    return value


def need_list(data: Mapping[str, Any], *names: str) -> list[Any]:
    value = need(data, *names)
    if not isinstance(value, list):
        raise BadRowError(f"'{names[0]}' must be a list, found {value!r:.60}")
    return value
