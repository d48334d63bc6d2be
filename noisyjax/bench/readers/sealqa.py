"""SealQA (Seal-0, Seal-Hard, LongSeal): short factual questions on which web search misleads.

Upstream: hub `vtllms/sealqa`. The field is `question`; a common copy spells it `Question`. Only LongSeal rows hold
documents: `golds` and `12_docs`, `20_docs`, `30_docs`, in which one document helps and the others are look-alikes.
"""

from typing import Any, Literal

from noisyjax.bench.questions.rows import Row
from noisyjax.bench.readers.base import BadRowError, Context, Item, Reader, need, need_text
from noisyjax.bench.seeds import content_id
from noisyjax.config import Schema
from noisyjax.records import Document, Question

META = ("freshness", "question_types", "effective_year", "search_results", "topic", "canary")


class Options(Schema):
    evidence: Literal["gold", "none"] = "gold"
    """gold: LongSeal's helpful documents stand in the prompt of all settings. none: closed book."""
    docs: Literal["12_docs", "20_docs", "30_docs"] = "12_docs"
    """The LongSeal column that the hard negatives come from."""


def parse(row: Row, context: Context) -> Item:
    options: Options = context.options
    text = need_text(row.data, "question", "Question")
    # The carrier's running `id` is a position, so the question itself names the row.
    identity = content_id("sealqa", text.strip())
    gold, others = _split_documents(row.data, options.docs)
    question = Question(
        dataset=context.dataset,
        id=identity,
        text=text.strip(),
        answers=(str(need(row.data, "answer")).strip(),),
        evidence=gold if options.evidence == "gold" else (),
        meta={name: row.data[name] for name in META if row.data.get(name) is not None},
    )
    if not question.answers[0]:
        raise BadRowError("'answer' is blank")
    return Item(question, others)


def _split_documents(data: Any, column: str) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
    """Helpful and misleading documents. A document helps when it is in `golds` or its address is among `urls`."""
    golds = [_document(d) for d in data.get("golds") or ()]
    addresses = {_bare(u) for u in data.get("urls") or ()}
    helpful = {d.text for d in golds}
    others = []
    for raw in data.get(column) or ():
        document = _document(raw)
        if document.text in helpful:
            continue
        if _bare(str(raw.get("url") or "")) in addresses:
            golds.append(document)
            helpful.add(document.text)
        else:
            others.append(document)
    return tuple(golds), tuple(others)


def _document(raw: Any) -> Document:
    if not isinstance(raw, dict):
        raise BadRowError(f"a document must be an object, found {raw!r:.60}")
    title, text = str(raw.get("title") or "").strip(), need_text(raw, "text").strip()
    return Document(id=content_id("sealqa-doc", title, text), text=text, title=title)


def _bare(url: str) -> str:
    """An address without its text fragment and trailing slash, so that equal pages compare equal."""
    return url.partition("#")[0].rstrip("/")


READER = Reader(parse, Options)
