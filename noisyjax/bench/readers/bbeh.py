"""BBEH-Mini: 460 hard reasoning items. Upstream: google-deepmind/bbeh, bbeh/mini/data.json.

Two rows share one input and differ in their target, so the target is part of a row's id; at most one of the two can
be answered rightly, which is upstream's own ambiguity.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from noisyjax.bench.questions.rows import BadRows, Row, read_rows
from noisyjax.bench.readers.base import Context, Item, Reader, need_text
from noisyjax.bench.seeds import content_id
from noisyjax.records import Question


def rows(files: Sequence[Path], bad: BadRows) -> Iterator[Row]:
    for path in files:
        yield from read_rows(path, bad, inside="examples")


def parse(row: Row, context: Context) -> Item:
    text, target = need_text(row.data, "input"), need_text(row.data, "target")
    return Item(
        Question(dataset=context.dataset, id=content_id("bbeh", text, target), text=text.strip(), answers=(target,))
    )


READER = Reader(parse, rows=rows)
