"""The tiny world's questions: a handful of facts about people, and a question that some of them answer.

    Document 1:                                  facts (gold and bystanders, in a drawn order)
    age bob 3 . room carl 5 . code anna 7 .
    code anna + age bob ?                        question
    <think> <reference> code anna 7 . age bob 3 . </reference> 7 + 3 = 10 </think> 10      what a good answer looks like

The name stands beside the value, so a tiny model learns to look names up long before it heeds attributes. It is nearly
always right without noise, and wrong where facts look alike.

Training and evaluation never share a question: a question belongs to one or the other by a hash of its kind and gold
facts, whatever the seed, so any two seeds may be trained and evaluated on.
"""

from dataclasses import dataclass
from typing import Literal

from noisyjax.bench.seeds import digest
from noisyjax.world.draw import Draw
from noisyjax.world.words import ASKED, ATTRIBUTES, NAMES, QUALIFIERS

Kind = Literal["lookup", "sum2", "compare", "sum3"]
KINDS: tuple[Kind, ...] = ("lookup", "sum2", "compare", "sum3")
GOLD_FACTS = {"lookup": 1, "sum2": 2, "compare": 2, "sum3": 3}

Split = Literal["train", "eval"]
HELD_OUT = 4
"""One question in this many is for evaluation."""
BYSTANDERS = (1, 3)


@dataclass(frozen=True)
class Fact:
    """One person's one value. A qualified fact ("old code anna 3") is about the past and answers nothing."""

    name: str
    attribute: str
    value: int
    qualifier: str = ""

    @property
    def key(self) -> str:
        return f"{self.attribute} {self.name}"

    @property
    def text(self) -> str:
        return f"{self.qualifier} {self.key} {self.value} .".lstrip()


@dataclass(frozen=True)
class Puzzle:
    """A question with its facts. `gold` are those it asks about, in the order asked; `facts` are all, as shown."""

    id: str
    kind: Kind
    gold: tuple[Fact, ...]
    facts: tuple[Fact, ...]

    @property
    def question(self) -> str:
        sign = " > " if self.kind == "compare" else " + "
        return sign.join(fact.key for fact in self.gold) + " ?"

    @property
    def evidence(self) -> str:
        """The text of the one document that the question comes with."""
        return " ".join(fact.text for fact in self.facts)

    @property
    def reference(self) -> str:
        """The gold rationale: the facts asked about and no other."""
        return " ".join(fact.text for fact in self.gold)

    @property
    def answer(self) -> str:
        values = [fact.value for fact in self.gold]
        if self.kind == "compare":
            return "yes" if values[0] > values[1] else "no"
        return str(sum(values))

    @property
    def working(self) -> str:
        """The step from the reference to the answer: `7 + 3 = 10`, `7 > 3 = yes`, `7`."""
        sign = " > " if self.kind == "compare" else " + "
        values = sign.join(str(fact.value) for fact in self.gold)
        return values if self.kind == "lookup" else f"{values} = {self.answer}"

    @property
    def target(self) -> str:
        """The completion that supervised training aims at."""
        return f"<think> <reference> {self.reference} </reference> {self.working} </think> {self.answer}"


def split_of(kind: Kind, gold: tuple[Fact, ...]) -> Split:
    """Which side a question is on; the order in which its facts are asked for does not matter."""
    held_out = digest("tiny world", kind, *sorted(fact.text for fact in gold)) % HELD_OUT == 0
    return "eval" if held_out else "train"


def puzzle(seed: int, stream: str, number: int) -> Puzzle:
    """Question `number` of a stream: a function of the three arguments alone. Kinds take turns.

    The stream `eval` holds the held-out questions, every other one holds questions to train on.
    """
    kind = KINDS[number % len(KINDS)]
    split: Split = "eval" if stream == "eval" else "train"
    draw = Draw(("world", seed, stream, number))
    attempt = 0
    while split_of(kind, gold := _gold(kind, draw.at("gold", attempt))) != split:
        attempt += 1
    extra = draw.between(*BYSTANDERS, "bystanders")
    facts = (*gold, *_others(gold, extra, draw.at("bystander")))
    return Puzzle(f"w{seed}-{stream}-{number:05d}", kind, gold, tuple(draw.some(len(facts), facts, "order")))


def _gold(kind: Kind, draw: Draw) -> tuple[Fact, ...]:
    n = GOLD_FACTS[kind]
    keys = draw.some(n, ASKED_KEYS, "keys")
    # A comparison of equal values would have two right readings.
    values = draw.some(n, range(10), "values") if kind == "compare" else [draw.below(10, "value", i) for i in range(n)]
    return tuple(Fact(*key, value) for key, value in zip(keys, values, strict=True))


def _others(gold: tuple[Fact, ...], n: int, draw: Draw) -> list[Fact]:
    """`n` facts under other keys than those of `gold`; one in four is about the past."""
    taken = {(fact.name, fact.attribute) for fact in gold}
    keys = [key for key in draw.some(n + len(gold), KEYS, "keys") if key not in taken][:n]
    return [
        Fact(*key, draw.below(10, "value", i), draw.pick((*QUALIFIERS, *[""] * 6), "past", i))
        for i, key in enumerate(keys)
    ]


ASKED_KEYS = tuple((name, attribute) for name in ASKED for attribute in ATTRIBUTES)
KEYS = tuple((name, attribute) for name in NAMES for attribute in ATTRIBUTES)
