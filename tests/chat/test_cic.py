import re

import pytest

from noisyjax.chat import build_prompt, render
from noisyjax.chat.cic import cic_parts
from noisyjax.records import Document, Label, Message, Part, Unit

QUESTION = (Part("Who crossed the river?\n", Label.QUESTION), Part("Answer with ANSWER: <name>.", Label.QUESTION))
GOLD = [Document("g1", "Mara crossed\nthe river.", "Mara"), Document("g2", "It was in spring.")]
UNITS = [
    Unit("d1", "RD", "Foxes | jump {high}."),
    Unit("c1", "RC", "", (("user", "Hi there"), ("assistant", "Hello\n\nyou"))),
    Unit("d2", "RD", "Dogs sleep."),
]
LINE = re.compile(r"ID: (\d{4}) \| (?:TITLE: (.+?) \| )?CONTENT: (.+) \| END ID: (\d{4})\n")


def lines(parts):
    return [p for p in parts if p.label in (Label.EVIDENCE, Label.DISTRACTOR)]


def test_lines_labels_and_owners():
    parts = cic_parts(QUESTION, GOLD, UNITS, seed=1, key="q")
    corpus = lines(parts)
    assert {(p.unit, p.label) for p in corpus} == {
        ("g1", Label.EVIDENCE), ("g2", Label.EVIDENCE),
        ("d1", Label.DISTRACTOR), ("c1", Label.DISTRACTOR), ("d2", Label.DISTRACTOR),
    }  # fmt: skip
    found = {p.unit: LINE.fullmatch(p.text) for p in corpus}
    assert all(m is not None and m[1] == m[4] for m in found.values())
    assert len({m[1] for m in found.values()}) == 5
    assert {m[2] for m in found.values()} == {None}, "a titled line would tell evidence from noise"
    assert found["g1"][3] == "Mara Mara crossed the river."
    assert found["c1"][3] == "User: Hi there Assistant: Hello you"
    assert found["d1"][3] == "Foxes | jump {high}."


def test_lines_are_titled_where_all_documents_are():
    titled = [Document("g1", "Mara crossed\nthe river.", "Mara\nof the hills"), Document("g2", "In spring.", "Spring")]
    parts = cic_parts(QUESTION, titled, [], seed=1, key="q")
    found = {p.unit: LINE.fullmatch(p.text) for p in lines(parts)}
    assert found["g1"].group(2, 3) == ("Mara of the hills", "Mara crossed the river.")
    assert found["g2"].group(2, 3) == ("Spring", "In spring.")
    assert "lists the TITLE and ID of every document" in parts[0].text
    for evidence, units in ((titled, UNITS), (GOLD, []), ([], UNITS), ([], [])):
        parts = cic_parts(QUESTION, evidence, units, seed=1, key="q")
        text = "".join(p.text for p in parts)
        assert "lists the ID of every document" in text
        assert "TITLE" not in text
        assert "None" not in text


def test_the_datasets_own_instruction_stays_last_and_no_document_is_allowed():
    parts = cic_parts(QUESTION, GOLD, UNITS, seed=1, key="q")
    assert parts[-2:] == QUESTION
    instruction = parts[0]
    assert instruction.label is Label.TEMPLATE
    assert "Documents used: none" in instruction.text
    assert {p.label for p in parts} == {Label.TEMPLATE, Label.EVIDENCE, Label.DISTRACTOR, Label.QUESTION}


def test_the_empty_corpus():
    parts = cic_parts(QUESTION, [], [], seed=1, key="q")
    assert "holds no documents" in "".join(p.text for p in parts)
    assert not lines(parts)


def test_ids_are_a_function_of_seed_key_and_line():
    def ids(units, **how):
        return [LINE.fullmatch(p.text)[1] for p in lines(cic_parts(QUESTION, [], units, **how))]

    assert ids(UNITS, seed=1, key="q") == ids(UNITS, seed=1, key="q")
    assert ids(UNITS, seed=1, key="q") != ids(UNITS, seed=2, key="q")
    assert ids(UNITS, seed=1, key="q") != ids(UNITS, seed=1, key="r")
    assert ids(UNITS[:2], seed=1, key="q") == ids(UNITS, seed=1, key="q")[:2], "dropping the end changes no id"
    assert ids(UNITS, seed=1, key="q") == ["2204", "3535", "6662"], "the same in every process and release"


def test_a_shared_block_is_shared(tokenizers):
    """Without evidence the corpus of two questions is the same text, and so is its encoding up to the question."""
    other = (Part("Why?", Label.QUESTION),)
    one, two = (cic_parts(q, [], UNITS, seed=3, key="") for q in (QUESTION, other))
    assert one[:-2] == two[:-1]
    a, b = (render(tokenizers["qwen3"], [Message("user", p)]) for p in (one, two))
    block = max(i for i, x in enumerate(a.part_of) if a.parts[x].label is Label.DISTRACTOR)
    assert a.ids[: block + 1].tolist() == b.ids[: block + 1].tolist()


def test_evidence_is_not_given_away_by_its_place():
    """The order is drawn: over many keys each gold line stands in every place, independent of the input order."""
    places = [[p.unit for p in lines(cic_parts(QUESTION, GOLD, UNITS, seed=0, key=f"q{i}"))] for i in range(60)]
    assert {order.index("g1") for order in places} == {0, 1, 2, 3, 4}
    again = [p.unit for p in lines(cic_parts(QUESTION, GOLD[::-1], UNITS[::-1], seed=0, key="q0"))]
    assert again == places[0]


def test_lines_can_be_dropped_by_the_budget(tokenizers):
    message = Message("user", cic_parts(QUESTION, GOLD, UNITS, seed=1, key="q"))
    full = build_prompt(tokenizers["qwen3"], [message], dataset="x", question_id="q", setting="RD")
    cut = build_prompt(
        tokenizers["qwen3"], [message], dataset="x", question_id="q", setting="RD", limit=len(full.ids) - 1
    )
    assert len(cut.dropped) == 1
    text = cut.messages[0].content
    assert "Mara crossed" in text
    assert text.endswith("Answer with ANSWER: <name>.")


def test_too_many_documents():
    with pytest.raises(ValueError, match="9000"):
        cic_parts(QUESTION, [], [Unit(str(i), "RD", "x") for i in range(9001)], seed=0, key="")
