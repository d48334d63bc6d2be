"""Hard negatives from JSON lines: `{dataset, question_id, text, title?, id?}`, several lines a question allowed.

`question_id` is the id that `noisyjax bench show` prints. Fields beyond these are kept by whoever wrote the file.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from noisyjax.bench.questions.rows import BadRows, Row
from noisyjax.bench.readers.base import BadRowError, need, need_text
from noisyjax.bench.seeds import content_id
from noisyjax.records import Document, Question


@dataclass(frozen=True)
class NegativeFile:
    """Documents by (dataset, question id)."""

    documents: dict[tuple[str, str], tuple[Document, ...]]

    def datasets(self) -> frozenset[str]:
        return frozenset(dataset for dataset, _ in self.documents)

    def of(self, question: Question) -> tuple[Document, ...]:
        return self.documents.get((question.dataset, question.id), ())

    def orphans(self, dataset: str, known: Iterable[str]) -> list[str]:
        """Question ids of `dataset` in the file that no question has: written for another release or sample."""
        return sorted({q for d, q in self.documents if d == dataset} - set(known))


def read_negatives(rows: Iterable[Row], bad: BadRows) -> NegativeFile:
    """Group the rows by question; equal texts once, in the order of ids."""
    found: dict[tuple[str, str], dict[str, Document]] = defaultdict(dict)
    for row in rows:
        try:
            key = need_text(row.data, "dataset"), str(need(row.data, "question_id"))
            text = need_text(row.data, "text").strip()
        except BadRowError as error:
            bad.report(row.where, str(error))
            continue
        title = str(row.data.get("title") or "")
        identity = f"{key[1]}/{row.data.get('id') or content_id('hn', title, text)}"
        found[key][identity] = Document(id=identity, text=text, title=title)
    return NegativeFile({key: tuple(docs[i] for i in sorted(docs)) for key, docs in found.items()})
