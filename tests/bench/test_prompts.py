"""The layout of a prompt: order, labels, numbering, positions, chat turns, CiC."""

import pytest

from noisyjax.bench.prompts import arrange, build_messages
from noisyjax.bench.schema import BenchConfig
from noisyjax.bench.task import get_task
from noisyjax.records import Document, Label, Question, Unit

TASK = get_task("musique")
QUESTION = Question(
    "musique", "q1", "Which mill?", ("Mill",), evidence=(Document("e1", "Gold text.", "Gold"), Document("e2", "More."))
)
RD = [Unit(f"rd{i}", "RD", f"Random {i}\nText {i}.") for i in range(3)]
HN = [Unit("hn0", "HN", "Sly\nText.")]
RC = [
    Unit(f"c{i}", "RC", f"User: ask {i}\nAssistant: say {i}", (("user", f"ask {i}"), ("assistant", f"say {i}")))
    for i in range(2)
]


def build(units, question=QUESTION, task=TASK, **config):
    return build_messages(question, units, task, BenchConfig(**config))


def labels(message):
    return [part.label.value for part in message.parts]


def test_the_clean_prompt():
    (message,) = build([])
    assert labels(message) == ["evidence", "evidence", "question"]
    assert message.content.startswith("Document 1:\nGold\nGold text.\n\nDocument 2:\nMore.\n\n")


def test_noise_evidence_question_numbered_through():
    (message,) = build(arrange([*HN, *RD]))
    assert labels(message) == ["distractor"] * 4 + ["evidence"] * 2 + ["question"]
    heads = [part.text.partition("\n")[0] for part in message.parts[:-1]]
    assert heads == [f"Document {i}:" for i in range(1, 7)]
    assert [part.unit for part in message.parts[:4]] == ["rd0", "rd1", "rd2", "hn0"]


def test_every_part_but_the_last_ends_in_a_blank_line():
    (message,) = build(RD)
    assert all(part.text.endswith("\n\n") for part in message.parts[:-1])
    assert message.content == message.content.rstrip()


@pytest.mark.parametrize(("position", "before"), [("before", 3), ("after", 0), ("both", 2)])
def test_positions(position, before):
    (message,) = build(RD, position=position, rc={"form": "text"})
    assert labels(message) == ["distractor"] * before + ["evidence"] * 2 + ["question"] + ["distractor"] * (3 - before)
    assert [int(p.text.split()[1].rstrip(":")) for p in message.parts if p.label is not Label.QUESTION] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_mixed_documents_are_numbered_through_in_an_order_of_the_questions_own():
    orders = set()
    for name in "abcdefgh":
        question = Question("musique", name, "Which mill?", ("Mill",), evidence=QUESTION.evidence)
        *chat, message = build(arrange([*RC, *RD, *HN]), question=question, position="mixed")
        assert [m.content for m in chat] == ["ask 0", "say 0", "ask 1", "say 1"]
        assert labels(message)[-1] == "question"
        documents = message.parts[:-1]
        assert [p.text.partition("\n")[0] for p in documents] == [f"Document {i}:" for i in range(1, 7)]
        assert sorted(str(p.unit) for p in documents) == ["e1", "e2", "hn0", "rd0", "rd1", "rd2"]
        assert all((p.label is Label.EVIDENCE) == str(p.unit).startswith("e") for p in documents)
        orders.add(tuple(p.unit for p in documents))
        fewer = build(RD[:1], question=question, position="mixed")[-1].parts[:-1]
        kept = [p.unit for p in documents if p.unit in ("e1", "e2", "rd0")]
        assert [p.unit for p in fewer] == kept  # leaving a unit out moves no other pair
    assert len(orders) > 4
    assert build(RD, position="mixed") == build(RD[::-1], position="mixed")
    assert build(RD, position="mixed") == build(RD, position="mixed")
    assert build(RD, position="mixed", seed=0) != build(RD, position="mixed", seed=1)


def test_chat_turns_stand_before_the_question_as_turns():
    messages = build(arrange([*RD, *RC]))
    assert [m.role for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [m.content for m in messages[:2]] == ["ask 0", "say 0"]
    assert {label for m in messages[:4] for label in labels(m)} == {"distractor"}
    assert labels(messages[-1])[:3] == ["distractor"] * 3


def test_chat_as_text_is_one_block():
    (message,) = build(arrange([*RC, *HN]), rc={"form": "text"})
    assert message.content.startswith("User: ask 0\nAssistant: say 0\n\nUser: ask 1")
    assert "Document 1:\nSly" in message.content


def test_mixtures_have_one_layout_however_they_are_named():
    assert arrange([*RD, *RC, *HN]) == arrange([*HN, *RC, *RD]) == [*RC, *RD, *HN]


def test_a_system_prompt_comes_first():
    task = TASK.model_copy(update={"system": "Be brief."})
    messages = build(RC, task=task)
    assert messages[0].role == "system"
    assert labels(messages[0]) == ["system"]


def test_prompts_of_a_block_begin_alike():
    other = Question("musique", "q2", "Another?", ("x",))
    one, two = (build(arrange([*RD, *RC, *HN]), question=q) for q in (QUESTION, other))
    assert one[:-1] == two[:-1]
    assert one[-1].parts[:4] == two[-1].parts[:4]


class TestCic:
    def parts(self, units, question=QUESTION):
        (message,) = build(units, question=question, prompting="cic")
        return message.parts

    def test_every_document_is_a_line_and_the_question_comes_last(self):
        parts = self.parts([*RC, *RD, *HN])
        assert sorted(p.unit for p in parts if p.label is Label.DISTRACTOR) == ["c0", "c1", "hn0", "rd0", "rd1", "rd2"]
        assert sorted(p.unit for p in parts if p.label is Label.EVIDENCE) == ["e1", "e2"]
        assert parts[-1].label is Label.QUESTION
        assert parts[-1].text == build([])[-1].parts[-1].text

    def test_evidence_and_noise_have_one_form(self):
        lines = [p.text for p in self.parts(RD) if p.label in (Label.DISTRACTOR, Label.EVIDENCE)]
        assert len(lines) == 5
        assert not [line for line in lines if "TITLE" in line or "None" in line]

    def test_without_evidence_the_corpus_is_shared(self):
        one, two = (Question("bbeh_mini", i, f"Q{i}", ("x",)) for i in "12")
        assert self.parts(RD, one)[:-1] == self.parts(RD, two)[:-1]
