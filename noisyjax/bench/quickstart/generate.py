"""Write the quickstart benchmark: python -m noisyjax.bench.quickstart.generate

Pure functions of a seed; a test holds the committed files to what this writes. Raise the version of the tasks
quickstart_facts and quickstart_choice when the output changes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from noisyjax.bench.quickstart import FOLDER, world
from noisyjax.bench.seeds import digest, seeded_order

SEED = 7
QUESTIONS = 24
Record = dict[str, Any]


def pick[T](options: list[T] | tuple[T, ...], *key: str | int) -> T:
    return options[digest(SEED, *key) % len(options)]


def people() -> list[Record]:
    """Twenty-four people, each in one of sixteen towns."""
    names = [f"{first} {last}" for i, first in enumerate(world.FIRST) for last in (world.LAST[i], world.LAST[i - 5])]
    return [
        {
            "name": name,
            "town": pick(world.TOWNS, "town", name),
            "craft": pick(world.CRAFTS, "craft", name),
            "plays": pick(world.INSTRUMENTS, "plays", name),
        }
        for name in names[:QUESTIONS]
    ]


def person_text(name: str, craft: str, town: str, plays: str) -> str:
    return f"{name} is a {craft} who lives in {town}. On Sundays {name.split()[0]} plays the {plays} in the town band."


def town_text(town: str, river: str, landmark: str) -> str:
    return f"{town} lies on the river {river}. In its market square stands a {landmark}, which the town is proud of."


def facts() -> Iterator[Record]:
    """Questions of one and two steps over made-up people and towns."""
    for i, person in enumerate(people()):
        name, town = person["name"], person["town"]
        place = world.TOWNS.index(town)
        river, landmark = world.RIVERS[place], world.LANDMARKS[place]
        question, answer = (
            (f"In which town does {name} live?", town),
            (f"On which river lies the town where {name} lives?", river),
            (f"What stands in the market square of the town where {name} lives?", landmark),
        )[i % 3]
        evidence = [{"title": name, "text": person_text(name, person["craft"], town, person["plays"])}]
        if i % 3:
            evidence.append({"title": town, "text": town_text(town, river, landmark)})
        yield {
            "id": f"fact-{i:02d}",
            "question": question,
            "answer": answer,
            "aliases": [f"the {answer}", f"a {answer}"] if i % 3 == 2 else [],
            "evidence": evidence,
            "negatives": list(lookalikes(i, person)),
            "meta": {"steps": 1 if i % 3 == 0 else 2},
        }


def lookalikes(i: int, person: Record) -> Iterator[Record]:
    """Documents that resemble the evidence and answer another question: namesakes, the same craft, a similar town."""
    first, last = person["name"].split()
    others = {
        "namesake": (f"{first} {pick([n for n in world.LAST if n != last], 'last', i)}", person["craft"]),
        "family": (
            f"{pick([n for n in world.FIRST if n != first], 'first', i)} {last}",
            pick(world.CRAFTS, "craft", i),
        ),
    }
    for kind, (name, craft) in others.items():
        town, plays = pick(world.DECOY_TOWNS, kind, "town", i), pick(world.INSTRUMENTS, kind, "plays", i)
        yield {"id": kind, "title": name, "text": person_text(name, craft, town, plays)}
    decoy = pick(world.DECOY_TOWNS, "decoy", i)
    text = town_text(decoy, pick(world.DECOY_RIVERS, "river", i), pick(world.DECOY_LANDMARKS, "landmark", i))
    yield {"id": "town", "title": decoy, "text": text}


def choices() -> Iterator[Record]:
    """Small puzzles that need no documents: an order to work out, a sum to do."""
    for i in range(QUESTIONS):
        four = seeded_order(world.FIRST, str, SEED, "four", i)[:4]
        if i % 2 == 0:
            a, b, c, d = four
            word = ("youngest", "oldest")[i % 4 // 2]
            order = f"{b} is younger than {a}. {d} is younger than {c}. {c} is younger than {b}."
            question = f"{order} Who of the four is the {word}?"
            answer, options = (d if word == "youngest" else a), four
        else:
            crates, each, sold = (2 + digest(SEED, what, i) % 7 for what in ("crates", "each", "sold"))
            right = crates * each - min(sold, crates * each - 1)
            gone = crates * each - right
            question = (
                f"{four[0]} has {crates} crates of {each} apples each and gives {four[1]} {gone} apples. "
                f"How many apples does {four[0]} have left?"
            )
            wrong = [right + 1, right + gone, crates + each + gone + 20]
            answer, options = str(right), [str(n) for n in (right, *wrong)]
        yield {"id": f"choice-{i:02d}", "question": question, "answer": answer, "choices": options}


def hard_negatives() -> Iterator[Record]:
    """Documents for the puzzles: about the same people and things, and of no use."""
    for row in choices():
        names = [name for name in world.FIRST if name in row["question"]]
        i = int(row["id"][-2:])
        craft, town = pick(world.CRAFTS, "hn-craft", i), pick(world.DECOY_TOWNS, "hn-town", i)
        texts = (
            f"{names[0]} and {names[1]} grew up in {town}. A letter says that {names[1]} felt like the elder of the "
            f"two, but it was written by a {craft} who had met them once.",
            f"At the {town} fair {names[0]} sold baskets of plums and counted them twice. {names[-1]} kept the tally "
            f"on a slate that was wiped before anyone had added it up.",
        )
        for k, text in enumerate(texts):
            yield {
                "dataset": "quickstart_choice",
                "question_id": row["id"],
                "id": f"hn-{k}",
                "title": f"Notes from {town}",
                "text": text,
            }


def documents() -> Iterator[Record]:
    """A hundred and twenty random documents, ten to a row, in HotPotQA's layout."""
    for row, (thing, sentence) in enumerate(world.THINGS.items()):
        context = []
        for i, first in enumerate(world.FIRST_WORDS):
            second = pick(world.SECOND_WORDS, thing, i)
            opening = sentence.format(a=first, A=first.capitalize(), b=second)
            more = seeded_order(world.MORE, str, SEED, thing, i)[:3]
            context.append([f"{first.capitalize()} {thing}", [opening, *(f" {m}" for m in more)]])
        yield {"_id": f"quickstart-{row:02d}", "question": "", "answer": "", "context": context}


def chats() -> Iterator[Record]:
    """Twenty-four chats of two or three exchanges in WildChat's layout."""
    for i, (what, how, tip) in enumerate(world.CHATS * 2):
        again = i >= len(world.CHATS)
        turns = [(q.format(what=what), a.format(what=what, how=how, tip=tip)) for q, a in world.ASKS]
        if again:
            turns = [(f"My neighbour wants to {what}. What should I tell them?", turns[0][1]), turns[1]]
        conversation = [
            {"role": role, "content": text, "language": "English", "toxic": False, "redacted": False}
            for pair in turns
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        yield {
            "conversation_hash": f"quickstart{i:02d}",
            "language": "English",
            "toxic": False,
            "redacted": False,
            "turn": len(turns),
            "conversation": conversation,
        }


FILES = {
    "quickstart_facts.jsonl": facts,
    "quickstart_choice.jsonl": choices,
    "hard_negatives.jsonl": hard_negatives,
    "hotpotqa/hotpot_quickstart.json": documents,
    "wildchat/quickstart.jsonl": chats,
}


def write(folder: Path) -> None:
    for name, rows in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows()), encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
