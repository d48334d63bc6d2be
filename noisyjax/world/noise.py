"""The tiny world's noise: texts that hold digits and answer nothing.

    RD  the train leaves the harbour at 7 . tea costs 4 coins .         about things, in other forms than facts
    RC  <user> room will 4 . age tom 2 . room will ? <assistant> 4      chat about people whom no question asks about
    HN  old code anna 3 . age anna 4 . code bob 8 .                     facts that look like the gold ones

Small talk is chat without digits. It is no noise: training on it teaches the chat markers, long prompts and the words
of the others, so that what is measured under noise is distraction and not what the model has never seen.
"""

from noisyjax.world.draw import Draw
from noisyjax.world.facts import Fact, Puzzle
from noisyjax.world.words import ATTRIBUTES, GUESTS, NAMES, PLACES, QUALIFIERS, THINGS

Exchange = tuple[str, str]
"""(what the user says, what the assistant says)."""

SENTENCES = (
    "the {thing} opens at {n} .",
    "the {thing} costs {n} coins .",
    "the {thing} at the {place} has {n} steps .",
    "{n} people are at the {thing} .",
    "the {thing} leaves the {place} at {n} .",
    "the {thing} needs {n} minutes .",
)
DOCUMENT_SENTENCES = (2, 3)
CHAT_EXCHANGES = 3
LOOKALIKES = 4
"""Facts in one hard negative."""

TALK: tuple[Exchange, ...] = (
    ("hello .", "hello , good morning ."),
    ("how are you ?", "fine , thanks ."),
    ("is the {thing} near the {place} ?", "yes , the {thing} is near the {place} ."),
    ("is {name} at the {place} ?", "no , {name} is at the {thing} ."),
    ("when does the {thing} leave ?", "the {thing} leaves the {place} near good people ."),
    ("has the {thing} steps ?", "yes , the {thing} has steps , the {place} has people ."),
    ("the {thing} costs coins .", "no , the {thing} needs minutes ."),
    ("the {thing} opens .", "fine , the {thing} opens at the {place} ."),
    ("thanks .", "fine ."),
)
CHAT: tuple[Exchange, ...] = (
    ("Document 1:\n{a} {name} {n} . {b} {other} {m} .\n\n{a} {name} ?", "{n}"),
    ("Document 1:\n{b} {other} {m} . {a} {name} {n} .\n\n{a} {name} + {b} {other} ?", "{sum}"),
    ("Document 1:\n{b} {other} {m} . {a} {name} {n} .\n\n{a} {name} ?", "{n}"),
    ("when does the {thing} leave ?", "the {thing} leaves at {n} ."),
)


def document(draw: Draw) -> tuple[str, list[str]]:
    """A random document: title and sentences."""
    sentences = [
        draw.pick(SENTENCES, "form", i).format(
            thing=draw.pick(THINGS, "thing", i), place=draw.pick(PLACES, "place", i), n=draw.below(10, "n", i)
        )
        for i in range(draw.between(*DOCUMENT_SENTENCES, "sentences"))
    ]
    return draw.pick(PLACES, "title"), sentences


def chat(draw: Draw) -> list[Exchange]:
    """A chat history about guests and their facts, and a train or two."""
    return [_exchange(draw.pick(CHAT, "form", i), draw.at(i)) for i in range(CHAT_EXCHANGES)]


def small_talk(draw: Draw, exchanges: int) -> list[Exchange]:
    """Harmless exchanges: no digit, no attribute."""
    return [_exchange(draw.pick(TALK, "form", i), draw.at(i)) for i in range(exchanges)]


def lookalikes(puzzle: Puzzle, draw: Draw) -> list[str]:
    """Two hard negatives of one question, each a text of several facts. None holds a key of the question's facts
    unless it is marked as past, and then with another value."""
    taken = {fact.key for fact in puzzle.facts}
    facts: list[Fact] = []
    attempt = 0
    while len(facts) < 2 * LOOKALIKES:
        fact = _lookalike(draw.pick(puzzle.gold, "of", attempt), draw.at(attempt))
        attempt += 1
        if fact.text not in {f.text for f in facts} and (fact.qualifier or fact.key not in taken):
            taken.add(fact.key)
            facts.append(fact)
    texts = [fact.text for fact in facts]
    return [" ".join(texts[:LOOKALIKES]), " ".join(texts[LOOKALIKES:])]


def _lookalike(gold: Fact, draw: Draw) -> Fact:
    """The same key in the past, the same name with another attribute, or another name with the same attribute."""
    value = (gold.value + draw.between(1, 9, "value")) % 10
    form = draw.pick(("past", "attribute", "name"), "form")
    if form == "past":
        return Fact(gold.name, gold.attribute, value, draw.pick(QUALIFIERS, "qualifier"))
    if form == "attribute":
        return Fact(gold.name, draw.pick([a for a in ATTRIBUTES if a != gold.attribute], "attribute"), value)
    return Fact(draw.pick([n for n in NAMES if n != gold.name], "name"), gold.attribute, value)


def _exchange(form: Exchange, draw: Draw) -> Exchange:
    name, other = draw.some(2, GUESTS, "names")
    a, b = draw.some(2, ATTRIBUTES, "attributes")
    n, m = draw.below(10, "n"), draw.below(10, "m")
    words = {"name": name, "other": other, "a": a, "b": b, "n": n, "m": m, "sum": n + m}
    words |= {"thing": draw.pick(THINGS, "thing"), "place": draw.pick(PLACES, "place")}
    asked, said = (text.format(**words) for text in form)
    return asked, said
