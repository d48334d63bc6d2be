"""MuSiQue-Ans: questions of two to four hops over twenty paragraphs. Upstream: StonyBrookNLP/musique.

The supporting paragraphs are the clean context; the others are the hard negatives the benchmark ships.
The file is JSON lines even where it is named .json.
"""

from typing import Literal

from noisyjax.bench.questions.rows import Row
from noisyjax.bench.readers.base import Context, Item, Reader, need, need_list, need_text
from noisyjax.config import Schema
from noisyjax.records import Document, Question


class Options(Schema):
    evidence: Literal["gold", "none"] = "gold"
    """gold: the supporting paragraphs stand in the prompt of all settings. none: closed book."""
    answerable_only: bool = True
    """The answerable set; rows of the Full set that lack support are left out, they are scored in pairs upstream."""


def parse(row: Row, context: Context) -> Item | None:
    options: Options = context.options
    data = row.data
    identity = need_text(data, "id")
    if options.answerable_only and not data.get("answerable", True):
        return None
    gold: list[Document] = []
    others: list[Document] = []
    for paragraph in need_list(data, "paragraphs"):
        document = Document(
            id=f"{identity}/{need(paragraph, 'idx')}",
            text=need_text(paragraph, "paragraph_text"),
            title=str(paragraph.get("title") or ""),
        )
        (gold if need(paragraph, "is_supporting") else others).append(document)
    aliases = tuple(str(alias) for alias in data.get("answer_aliases") or ())
    question = Question(
        dataset=context.dataset,
        id=identity,
        text=need_text(data, "question"),
        answers=(need_text(data, "answer"), *aliases),
        evidence=tuple(gold) if options.evidence == "gold" else (),
        meta={"hops": identity.partition("__")[0], "answerable": bool(data.get("answerable", True))},
    )
    return Item(question, tuple(others))


READER = Reader(parse, Options)
