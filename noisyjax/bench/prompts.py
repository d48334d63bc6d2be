"""A question and its noise as labelled chat messages. Deterministic, and laid out so that prompts begin alike:

    [system] [chat turns: RC] [documents: RD] [text: RC] [documents: HN] [evidence] [question]      position=before

What all questions share (RC, RD blocks) comes first, what is the question's own (HN) last, whatever the order in
which a mixture names its kinds. With position=mixed an order of noise and evidence is drawn, so that place says nothing
about worth; chat turns stay in front. Documents are numbered through, noise and evidence alike, so that the form does
not give the noise away (RULER's form, "Document 3:", a line break, title, a line break, text).
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Literal

from noisyjax.bench.readers.base import LETTERS
from noisyjax.bench.schema import BenchConfig, Position
from noisyjax.bench.seeds import seeded_order
from noisyjax.bench.task import Task, template
from noisyjax.chat.cic import cic_parts
from noisyjax.records import Document, Label, Message, Part, Question, Unit

ORDER = {"RC": 0, "RD": 1, "HN": 2}
"""Shared kinds first, so that the common prefix is as long as it can be."""


def build_messages(question: Question, units: Sequence[Unit], task: Task, config: BenchConfig) -> tuple[Message, ...]:
    """The conversation that ends in the question, with `units` around it in the order given (sort with `arrange`)."""
    asked = Part(question_text(question, task), Label.QUESTION)
    if config.prompting == "cic":
        # Without evidence the corpus is the same for all questions of a block, so it is addressed alike for all.
        key = question.id if question.evidence else task.name
        parts = cic_parts([asked], _untitled(question.evidence), units, seed=config.seed, key=key)
        return (*_system(task.system), Message("user", parts))
    return lay_out(
        [asked],
        units,
        evidence=question.evidence,
        system=task.system,
        position=config.position,
        turns=config.rc.form == "turns",
        seed=config.seed,
        key=question.id,
    )


def lay_out(
    asked: Sequence[Part],
    units: Sequence[Unit],
    *,
    evidence: Sequence[Document] = (),
    system: str = "",
    position: Position = "before",
    turns: bool = True,
    seed: int = 0,
    key: str = "",
) -> tuple[Message, ...]:
    """The plain layout round the parts that ask, which keep their order; evaluation and training share it.

    `position` is where noise other than chat turns stands; `turns` lays chats out as turns of the conversation
    instead of as text; `seed` and `key` (the question's id) draw the order of position=mixed. Blank lines stand
    between all pieces of the last message.
    """
    messages = _system(system)
    as_turns = [u for u in units if u.turns and turns]
    for unit in as_turns:
        messages += [Message(_role(role), (Part(text, Label.DISTRACTOR, unit.id),)) for role, text in unit.turns]
    before, after = _halves([u for u in units if u not in as_turns], position)
    context: list[Unit | Document] = [*before, *evidence]
    if position == "mixed":
        context = seeded_order(context, lambda piece: piece.id, seed, "mixed", key)
    number = count(1)
    pieces = [*_pieces(context, number), *asked, *_pieces(after, number)]
    messages.append(Message("user", tuple(_spaced(pieces))))
    return tuple(messages)


def _system(text: str) -> list[Message]:
    return [Message("system", (Part(text, Label.SYSTEM),))] if text else []


def arrange(units: Sequence[Unit]) -> list[Unit]:
    """Units of a mixture in the order of the layout; the order within a kind stays."""
    return sorted(units, key=lambda unit: ORDER[unit.kind])


def question_text(question: Question, task: Task) -> str:
    """The question with its options and the answer instruction, from the task's template."""
    choices = list(zip(LETTERS, question.choices, strict=False))
    return template(task.prompt).render(text=question.text, choices=choices, evidence=bool(question.evidence)).strip()


def unit_text(unit: Unit, number: int = 1) -> str:
    """A unit as it stands in a message; what the token budget counts."""
    return unit.text if unit.turns else f"Document {number}:\n{unit.text}"


def _halves(units: list[Unit], position: Position) -> tuple[list[Unit], list[Unit]]:
    cut = {"after": 0, "both": (len(units) + 1) // 2}.get(position, len(units))
    return units[:cut], units[cut:]


def _pieces(pieces: Sequence[Unit | Document], number: Iterator[int]) -> Iterator[Part]:
    """Noise and evidence as they stand in a message; documents take their numbers from `number`."""
    for piece in pieces:
        if isinstance(piece, Unit):
            yield Part(unit_text(piece, 0 if piece.turns else next(number)), Label.DISTRACTOR, piece.id)
        else:
            text = f"{piece.title}\n{piece.text}" if piece.title else piece.text
            yield Part(f"Document {next(number)}:\n{text}", Label.EVIDENCE, piece.id)


def _untitled(documents: Sequence[Document]) -> list[Document]:
    """Evidence in the form of noise, whose units carry their title in the text: a titled line would give it away."""
    return [Document(id=d.id, text=f"{d.title}\n{d.text}" if d.title else d.text) for d in documents]


def _spaced(pieces: Sequence[Part]) -> Iterator[Part]:
    """Blank lines between the pieces, each counted to the piece before it."""
    for piece in pieces[:-1]:
        yield Part(f"{piece.text}\n\n", piece.label, piece.unit)
    yield pieces[-1]


def _role(role: str) -> Literal["user", "assistant"]:
    return "assistant" if role == "assistant" else "user"
