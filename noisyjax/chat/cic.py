"""Corpus-in-context prompting: documents as an addressed corpus, the question after it.

After LOFT (Lee et al., 2024, arXiv 2406.13121): a task instruction, a formatting instruction, one line per document
with its id at both ends, the query last, and the model first names the documents it uses. What differs here: noise
stands in the corpus beside real documents under ids that say nothing about which is which; the model may name no
document at all (else the format itself would force the use of a distractor); and the answer takes the form that the
dataset's own instruction asks for, which therefore stays the last thing said.

A corpus has LOFT's titled lines where every document has a title, and its untitled ones otherwise: a placeholder in
some of the lines would tell chats and noise from evidence.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from noisyjax.records import Document, Label, Part, Unit

_IDS = 9000
"""Ids are the four-digit numbers, 1000 to 9999."""

_TASK = (
    "Below is a corpus of numbered documents, and after it a question. Read the documents first. Some may help with "
    "the question, and often none of them does.\n\n"
)
_FORMAT = (
    'Before you answer, write one line that starts with "Documents used:" and lists the {fields} of every '
    'document that your answer rests on. If no document is useful, write "Documents used: none" and answer from your '
    "own knowledge; never bend an answer to fit a document. Then answer the question in the form that the question "
    "itself asks for.\n\n"
)
_TITLED = "ID: {id} | TITLE: {title} | CONTENT: {content} | END ID: {id}\n"
_UNTITLED = "ID: {id} | CONTENT: {content} | END ID: {id}\n"
_EMPTY = "(The corpus holds no documents.)\n"


def cic_parts(
    question: Sequence[Part],
    evidence: Sequence[Document],
    units: Sequence[Unit],
    *,
    seed: int,
    key: str,
) -> tuple[Part, ...]:
    """The user message of a CiC prompt, as labelled parts.

    `question` are the parts that the plain prompt would put after its context, the dataset's answer instruction
    included; they come last, as they are. Distractor lines carry their unit's id, evidence lines their document's.
    Units have no titles, so that lines are titled only in a corpus of titled evidence alone; elsewhere a title opens
    the content of its line.

    Ids are drawn by (seed, key) and line number alone, so that leaving out lines at the end changes none that stay;
    with one `key` for all questions of a shared block the corpus is the same for all. With evidence the order of the
    lines is drawn too, by (seed, key) and the documents' ids; without it the units keep their order.
    Raises ValueError for more than 9,000 lines.
    """
    lines = [*_evidence_lines(evidence), *_unit_lines(units)]
    if len(lines) > _IDS:
        raise ValueError(f"a corpus holds at most {_IDS} documents, not {len(lines)}")
    if evidence:
        lines.sort(key=lambda line: _digest(seed, key, "order", line[0], line[3]))
    ids = np.random.default_rng(int.from_bytes(_digest(seed, key, "ids")[:8], "big")).permutation(_IDS) + 1000
    titled = bool(lines) and all(title for _, title, _, _ in lines)
    corpus = [
        Part(_line(number, title, content, titled), label, owner)
        for number, (owner, title, content, label) in zip(ids, lines, strict=False)
    ]
    asked = _FORMAT.format(fields="TITLE and ID" if titled else "ID")
    return (
        Part(f"{_TASK}{asked}Corpus:\n", Label.TEMPLATE),
        *(corpus or [Part(_EMPTY, Label.TEMPLATE)]),
        Part("\nEnd of the corpus.\n\n", Label.TEMPLATE),
        *question,
    )


def _evidence_lines(documents: Sequence[Document]) -> Iterator[tuple[str, str, str, Label]]:
    for document in documents:
        yield document.id, document.title, document.text, Label.EVIDENCE


def _unit_lines(units: Sequence[Unit]) -> Iterator[tuple[str, str, str, Label]]:
    for unit in units:
        said = " ".join(f"{role.capitalize()}: {text}" for role, text in unit.turns)
        yield unit.id, "", said or unit.text, Label.DISTRACTOR


def _line(number: int, title: str, content: str, titled: bool) -> str:
    if titled:
        return _TITLED.format(id=number, title=_one_line(title), content=_one_line(content))
    return _UNTITLED.format(id=number, content=_one_line(f"{title}\n{content}"))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _digest(seed: int, *words: str) -> bytes:
    return hashlib.sha256("\x1f".join([str(seed), *words]).encode("utf-8", errors="surrogatepass")).digest()
