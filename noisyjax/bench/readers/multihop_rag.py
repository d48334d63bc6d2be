"""MultiHop-RAG: questions whose evidence is spread over two to four news articles. Upstream: yixuantt/MultiHop-RAG.

Three layouts: upstream's MultiHopRAG.json (+ corpus.json), a sample split into queries.json + ground_truth.json, and
upstream's retrieval output. Hard negatives are retrieved passages that hold no gold fact: the retriever's own where
the file has them, else the best BM25 matches among the corpus (or, without one, among all evidence of the file) that
come from none of the question's gold articles.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from noisyjax.bench.noise.retrieve import Bm25
from noisyjax.bench.questions.rows import BadRows, Row, read_object, read_rows
from noisyjax.bench.readers.base import BadRowError, Context, Item, Negatives, Reader, need_list, need_text
from noisyjax.bench.seeds import content_id
from noisyjax.config import Schema
from noisyjax.errors import UsageError
from noisyjax.records import Document, Question

TOP = 10
"""Negatives kept for a question, as upstream's retrieval depth."""
PASSAGE_WORDS = 200


class Options(Schema):
    evidence: Literal["gold", "none"] = "gold"
    """gold: the evidence facts stand in the prompt of all settings. none: closed book."""
    question_types: tuple[Literal["inference", "comparison", "temporal", "null"], ...] = (
        "inference",
        "comparison",
        "temporal",
        "null",
    )


def rows(files: Sequence[Path], bad: BadRows) -> Iterator[Row]:
    named = {path.name: path for path in files}
    if "queries.json" in named:
        yield from _sample_rows(named["queries.json"], named["ground_truth.json"], bad)
        return
    for path in files:
        if not path.name.startswith("corpus"):
            yield from read_rows(path, bad)


def _sample_rows(queries: Path, truths: Path, bad: BadRows) -> Iterator[Row]:
    """Join the two files of the sample by id."""
    truth = read_object(truths)
    for row in read_rows(queries, bad, inside="queries"):
        key = str(row.data.get("id"))
        if isinstance(truth.get(key), Mapping):
            yield Row({**row.data, **truth[key]}, row.where, row.file)
        else:
            bad.report(row.where, f"{truths.name} has no entry for id {key!r}")


def parse(row: Row, context: Context) -> Item | None:
    options: Options = context.options
    data = row.data
    text, answer = need_text(data, "query", "question").strip(), need_text(data, "answer").strip()
    kind = need_text(data, "question_type").removesuffix("_query")
    if kind not in options.question_types:
        return None
    evidence = tuple(_fact(e) for e in need_list(data, "evidence_list", "gold_list"))
    facts = [_bare(need_text(e, "fact")) for e in need_list(data, "evidence_list", "gold_list")]
    passages = dict.fromkeys(_passage_text(r) for r in data.get("retrieval_list") or ())
    clean = [p for p in passages if not any(fact in _bare(p) for fact in facts)]
    question = Question(
        dataset=context.dataset,
        id=content_id("multihop_rag", text),
        text=text,
        answers=(answer,),
        evidence=evidence if options.evidence == "gold" else (),
        meta={"question_type": kind, "gold_titles": sorted({d.title for d in evidence})},
    )
    return Item(question, tuple(Document(content_id("multihop-passage", p), p) for p in clean))


def search(items: Sequence[Item], files: Sequence[Path], bad: BadRows) -> Negatives | None:
    """Retrieve negatives for a layout that ships none. The index is built when the first question asks."""
    if any(item.negatives for item in items):
        return None
    corpus = [path for path in files if path.name.startswith("corpus")]
    index: list[Bm25] = []

    def negatives(question: Question) -> tuple[Document, ...]:
        if not index:
            index.append(Bm25(_corpus_passages(corpus[0], bad) if corpus else _all_evidence(items)))
        gold = set(question.meta["gold_titles"])
        return tuple(index[0].top(question.text, TOP, keep=lambda document: document.title not in gold))

    return negatives


def _all_evidence(items: Sequence[Item]) -> list[Document]:
    pool = {document.id: document for item in items for document in item.question.evidence}
    return sorted(pool.values(), key=lambda document: document.id)


def _corpus_passages(path: Path, bad: BadRows) -> list[Document]:
    """Articles cut into runs of about PASSAGE_WORDS words, at paragraph or sentence ends where there are any."""
    found = {}
    for row in read_rows(path, bad):
        body = row.data.get("body")
        if not isinstance(body, str):
            bad.report(row.where, "no 'body'")
            continue
        for text in _cut(body):
            document = _titled(row.data, text)
            found[document.id] = document
    if not found:
        raise UsageError(f"{path}: no articles found")
    return sorted(found.values(), key=lambda document: document.id)


def _cut(body: str) -> Iterator[str]:
    words = 0
    held: list[str] = []
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", body):
        held.append(sentence)
        words += len(sentence.split())
        if words >= PASSAGE_WORDS:
            yield " ".join(held).strip()
            held, words = [], 0
    if "".join(held).strip():
        yield " ".join(held).strip()


def _fact(evidence: Any) -> Document:
    if not isinstance(evidence, Mapping):
        raise BadRowError(f"evidence must be an object, found {evidence!r:.60}")
    return _titled(evidence, need_text(evidence, "fact").strip())


def _titled(article: Mapping[str, Any], text: str) -> Document:
    """Questions speak of sources and dates, so both stand above the passage."""
    head = ", ".join(str(article[k]) for k in ("source", "published_at") if article.get(k))
    title = str(article.get("title") or "").strip()
    body = f"{head}\n{text}" if head else text
    return Document(id=content_id("multihop-doc", title, body), text=body, title=title)


def _passage_text(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        raise BadRowError(f"a retrieved passage must be an object, found {entry!r:.60}")
    return need_text(entry, "text").strip()


def _bare(text: str) -> str:
    """Without any blanks: upstream compares facts and passages so."""
    return "".join(text.split())


READER = Reader(parse, Options, rows, search)
