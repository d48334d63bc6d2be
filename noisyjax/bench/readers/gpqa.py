"""GPQA-Diamond: `Question`, `Correct Answer`, `Incorrect Answer 1..3`. Upstream: hub `Idavidrein/gpqa` (gated).

The options have no stored order. They are permuted by (seed, question id) and the permutation is kept with the
question, so that a cached answer is always read against the letters it was given to.
"""

import re

from noisyjax.bench.questions.rows import Row
from noisyjax.bench.readers.base import LETTERS, Context, Item, Reader, need_text
from noisyjax.bench.seeds import content_id, permutation
from noisyjax.records import Question

FIELDS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def parse(row: Row, context: Context) -> Item:
    text = clean(need_text(row.data, "Question"))
    stored = [clean(need_text(row.data, name)) for name in FIELDS]
    identity = str(row.data.get("Record ID") or "").strip() or content_id("gpqa", text, *stored)
    order = permutation(len(stored), context.seed, "gpqa-options", identity)
    question = Question(
        dataset=context.dataset,
        id=identity,
        text=text,
        # By index, never by text: two options may read alike.
        answers=(LETTERS[order.index(0)],),
        choices=tuple(stored[i] for i in order),
        meta={
            "permutation": list(order),
            **{
                k: row.data[name]
                for k, name in (("domain", "High-level domain"), ("subdomain", "Subdomain"))
                if row.data.get(name)
            },
        },
    )
    return Item(question)


def clean(text: str) -> str:
    """Without wiki markup (" [title]") and runs of blanks; line breaks stay."""
    return re.sub(r"[ \t]{2,}", " ", text.replace(" [title]", ". ").strip())


READER = Reader(parse)
