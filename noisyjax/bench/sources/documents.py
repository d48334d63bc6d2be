"""Random documents from files in HotPotQA's layout, in RULER's form (NVIDIA/RULER, scripts/data/synthetic/qa.py):
a document is its title, a line break and its sentences joined without anything; the set of all, sorted.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from noisyjax.bench.questions.rows import BadRows, Row
from noisyjax.bench.readers.base import BadRowError, need
from noisyjax.bench.seeds import content_id
from noisyjax.records import Unit


def read_documents(rows: Iterable[Row], bad: BadRows) -> list[tuple[Unit, ...]]:
    """Every different document of HotPotQA-layout rows, as RD groups of one unit, sorted by text."""
    texts: set[str] = set()
    for row in rows:
        try:
            texts.update(_documents(row))
        except BadRowError as error:
            bad.report(row.where, str(error))
    return [(Unit(id=f"rd-{content_id(text)}", kind="RD", text=text),) for text in sorted(texts)]


def _documents(row: Row) -> list[str]:
    return [f"{title}\n{''.join(sentences)}" for title, sentences in _pairs(need(row.data, "context"))]


def _pairs(context: Any) -> Iterator[tuple[str, list[str]]]:
    """(title, sentences) of upstream's list of pairs or of the hub's two parallel lists."""
    if isinstance(context, dict):
        pairs = list(zip(need(context, "title"), need(context, "sentences"), strict=True))
    elif isinstance(context, list):
        pairs = context
    else:
        raise BadRowError(f"'context' must be a list of [title, sentences], found {context!r:.60}")
    for pair in pairs:
        match pair:
            case [str(title), list(sentences)] if all(isinstance(s, str) for s in sentences):
                yield title, sentences
            case _:
                raise BadRowError(f"an entry of 'context' must be [title, [sentence, ...]], found {pair!r:.60}")
