"""The tiny world's training records: a question with its evidence, its gold reference and one kind of noise."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from noisyjax.instruct.record import InstructRecord, said
from noisyjax.records import Document, Unit
from noisyjax.world import noise
from noisyjax.world.draw import Draw
from noisyjax.world.facts import Puzzle, puzzle

RD_DOCUMENTS = 3
TALK = "talk"
"""Small talk: RC in form, but harmless."""
TALK_EXCHANGES = (1, 2)


@dataclass(frozen=True)
class Mix:
    """A training set: how many records, and in which shares they come."""

    records: int
    shares: Mapping[str, int]


MIXES: Mapping[str, Mix] = MappingProxyType(
    {
        "sparse": Mix(24_000, {"ND": 85, TALK: 15}),
        "strong": Mix(8_000, {"ND": 81, TALK: 15, "RD": 1, "RC": 1, "HN": 2}),
        "noise": Mix(4_000, {"ND": 25, "RD": 25, "RC": 25, "HN": 25}),
        "grpo": Mix(4_000, {"ND": 25, "RD": 25, "RC": 25, "HN": 25}),
    }
)
"""sparse, strong: the two warm starts. noise: supervised training on noise, for comparison. grpo: for rollouts."""


def mix_records(name: str, seed: int) -> Iterator[InstructRecord]:
    """The records of a mix, each a function of (seed, name, number)."""
    mix = MIXES[name]
    kinds = [kind for kind, share in mix.shares.items() for _ in range(share)]
    for number in range(mix.records):
        # A block of all kinds in a drawn order, four questions of one kind (one of each type) at a time.
        block, at = divmod(number // 4, len(kinds))
        order = Draw(("mix", seed, name, block)).some(len(kinds), kinds)
        yield record(puzzle(seed, name, number), order[at])


def record(p: Puzzle, kind: str) -> InstructRecord:
    """`p` under one kind of noise: ND, RD, RC, HN or talk."""
    units = distractors(p, kind)
    return InstructRecord(
        id=f"{p.id}-{kind}",
        question=p.question,
        answers=(p.answer,),
        hint=p.reference,
        distractors=units,
        domain="tiny world",
        composition="A|Q,D" if units else "A|Q",
        setting=units[0].kind if units else "ND",
        meta={"type": p.kind, "noise": kind},
        evidence=(Document("facts", p.evidence),),
        working=p.working,
    )


def distractors(p: Puzzle, kind: str) -> tuple[Unit, ...]:
    """The noise of a question: a function of its id and the kind."""
    draw = Draw(("noise", p.id, kind))
    if kind == "RD":
        documents = (noise.document(draw.at(i)) for i in range(RD_DOCUMENTS))
        return tuple(
            Unit(f"rd{i}", "RD", f"{title}\n{' '.join(sentences)}") for i, (title, sentences) in enumerate(documents)
        )
    if kind == "HN":
        return tuple(Unit(f"hn{i}", "HN", text) for i, text in enumerate(noise.lookalikes(p, draw)))
    if kind == "RC":
        return _turns(noise.chat(draw))
    if kind == TALK:
        return _turns(noise.small_talk(draw, draw.between(*TALK_EXCHANGES, "exchanges")))
    return ()


def _turns(exchanges: list[noise.Exchange]) -> tuple[Unit, ...]:
    turns = [(("user", asked), ("assistant", answered)) for asked, answered in exchanges]
    return tuple(Unit(f"rc{i}", "RC", said(pair), pair) for i, pair in enumerate(turns))
