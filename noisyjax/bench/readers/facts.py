"""The project's own small benchmark: JSON lines `{id, question, answer, aliases, evidence, negatives, choices}`.

The layout also serves anyone who brings a data set of their own: only `id`, `question` and `answer` are needed. With
`choices` the answer is one of them, word for word, and their order is drawn by (seed, id).
"""

from collections.abc import Mapping
from typing import Any

from noisyjax.bench.questions.rows import Row
from noisyjax.bench.readers.base import LETTERS, BadRowError, Context, Item, Reader, need, need_text
from noisyjax.bench.seeds import content_id, permutation
from noisyjax.records import Document, Question


def parse(row: Row, context: Context) -> Item:
    data = row.data
    identity = str(need(data, "id"))
    answer = need_text(data, "answer")
    aliases = tuple(str(a) for a in data.get("aliases") or ())
    stored = [str(c) for c in data.get("choices") or ()]
    meta: dict[str, Any] = dict(data.get("meta") or {})
    if stored:
        if stored.count(answer) != 1:
            raise BadRowError(f"'answer' must be exactly one of the choices, found {answer!r:.40}")
        order = permutation(len(stored), context.seed, "options", identity)
        answers: tuple[str, ...] = (LETTERS[order.index(stored.index(answer))],)
        choices = tuple(stored[i] for i in order)
        meta["permutation"] = list(order)
    else:
        answers, choices = (answer, *aliases), ()
    question = Question(
        dataset=context.dataset,
        id=identity,
        text=need_text(data, "question").strip(),
        answers=answers,
        choices=choices,
        evidence=tuple(document(d, identity) for d in data.get("evidence") or ()),
        meta=meta,
    )
    return Item(question, tuple(document(d, identity) for d in data.get("negatives") or ()))


def document(raw: Any, owner: str) -> Document:
    if not isinstance(raw, Mapping):
        raise BadRowError(f"a document must be an object, found {raw!r:.60}")
    title, text = str(raw.get("title") or ""), need_text(raw, "text")
    return Document(id=f"{owner}/{raw.get('id') or content_id('doc', title, text)}", text=text, title=title)


READER = Reader(parse)
