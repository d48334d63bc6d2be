"""What a record must hold, and that every problem is named."""

import pytest

from noisyjax.errors import UsageError
from noisyjax.instruct import COMPOSITIONS, ChatRecord, parse_chat, parse_instruct
from noisyjax.records import Document, Unit

ROW = {
    "id": "r1",
    "question": "Which mill?",
    "answers": ["Ostrow"],
    "domain": "places",
    "composition": "A|Q,D",
    "setting": "RD",
    "distractors": [{"id": "d0", "kind": "RD", "text": "A mill."}],
}


def parse(**changes):
    row = {**ROW, **changes}
    return parse_instruct({k: v for k, v in row.items() if v is not ...}, "set.jsonl:7")


def test_every_record_comes_back_from_its_row(records):
    for record in records:
        assert parse_instruct(record.row(), "x") == record
        assert type(record.distractors) is tuple


def test_the_row_leaves_out_what_is_empty_and_what_turns_say(records):
    plain, chats, retold = records[0].row(), records[3].row(), records[5].row()
    assert set(plain) == {"id", "question", "answers", "domain", "composition", "setting"}
    assert "text" not in chats["distractors"][0]
    assert retold["distractors"][0]["text"] == "retold"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": ...}, "question: required, but missing"),
        ({"distractorz": []}, "distractorz: unknown key; did you mean 'distractors'?"),
        ({"answers": "Ostrow"}, "answers: "),
        ({"answers": []}, "at least the gold answer"),
        ({"answers": ["x", " "]}, "answers.1: empty"),
        ({"question": "\n"}, "question: empty"),
        ({"question": 7}, "question: expected a valid string; got 7"),
        ({"hint": ""}, "hint: empty"),
        ({"domain": ""}, "domain: empty"),
        ({"composition": "A|Q;D"}, "expected one of A|Q, A|Q,H, A|Q,D, A|Q,D,H"),
        ({"setting": "RX"}, "unknown setting 'RX'"),
        ({"setting": "HN"}, "HN does not name what is there (RD)"),
        ({"setting": "RD+HN"}, "RD+HN does not name what is there (RD)"),
        ({"distractors": []}, "RD does not name what is there (no distractors)"),
        ({"composition": "A|Q"}, "A|Q does not go with setting RD"),
        ({"setting": "ND", "distractors": []}, "A|Q,D does not go with setting ND"),
        ({"composition": "A|Q,D,H"}, "shows a hint, and there is none"),
        ({"distractors": [ROW["distractors"][0]] * 2}, "the id 'd0' stands 2 times"),
        ({"distractors": [{"id": "d0", "kind": "RD"}]}, "distractors.0.text: empty"),
        ({"distractors": [{"id": "d0", "kind": "XX", "text": "x"}]}, "distractors.0.kind: expected one of RD, RC, HN"),
        (
            {"distractors": [{"id": "d0", "kind": "RD", "text": "x", "turns": [["user", "a"], ["assistant", "b"]]}]},
            "RC",
        ),
        ({"setting": "RC", "distractors": [{"id": "d0", "kind": "RC", "turns": [["user", "a"]]}]}, "in turn"),
        ({"setting": "RC", "distractors": [{"id": "d0", "kind": "RC", "turns": [["system", "a"]]}]}, "turns.0.0"),
        ({"evidence": [{"id": "e", "text": ""}]}, "evidence.0.text: empty"),
        ({"question": "half \ud83d"}, "question: holds half a character"),
        ({"meta": {"x": float("nan")}}, "meta: not JSON"),
        ({"meta": {"x": "\udc00"}}, "meta: not JSON"),
        ({"meta": []}, "meta: "),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    with pytest.raises(UsageError) as raised:
        parse(**changes)
    assert str(raised.value).startswith("set.jsonl:7")
    assert message in str(raised.value)


def test_all_problems_are_listed_at_once():
    with pytest.raises(UsageError, match=r"answers\.0: empty; distractors\.0\.id: empty; setting: "):
        parse(answers=[""], setting="HN", distractors=[{"id": "", "kind": "RD", "text": "x"}])


def test_a_record_made_in_code_is_held_to_the_same(make_record):
    with pytest.raises(ValueError, match="shows a hint"):
        make_record(composition="A|Q,H", hint=None)
    with pytest.raises(ValueError, match="expected one of"):
        make_record(composition="Q|A")
    with pytest.raises(ValueError, match="a tuple"):
        make_record(meta={"x": (1, 2)})
    with pytest.raises(ValueError, match="not name what is there"):
        make_record(distractors=(Unit("u", "HN", "text"),))
    with pytest.raises(ValueError, match="the id 'e' stands 2 times"):
        make_record(evidence=(Document("e", "a"), Document("e", "b")))


def test_a_hint_that_is_not_shown_is_kept(make_record):
    """The rationale reward measures against it in A|Q and A|Q,D too."""
    shown = {c: make_record(setting="RD" if "D" in c else "ND", composition=c).shows_hint for c in COMPOSITIONS}
    assert shown == {"A|Q": False, "A|Q,H": True, "A|Q,D": False, "A|Q,D,H": True}
    assert make_record(composition="A|Q").hint


class TestChat:
    MESSAGES = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})

    def test_columns_of_public_sets_are_passed_over(self):
        messages = [{**m, "name": None} for m in self.MESSAGES]
        record = parse_chat({"messages": messages, "prompt_id": "x", "score": 3}, "x")
        assert record.messages == (("user", "hi"), ("assistant", "hello"))
        assert record.id == parse_chat({"messages": list(self.MESSAGES)}, "x").id, "named by content"
        assert parse_chat(record.row(), "x") == record

    @pytest.mark.parametrize(
        ("messages", "message"),
        [
            ([], "the last must be the assistant's"),
            (MESSAGES[:1], "the last must be the assistant's"),
            ([*MESSAGES, {"role": "system", "content": "x"}, MESSAGES[1]], "may only come first"),
            ([{"role": "tool", "content": "x"}, MESSAGES[1]], "messages.0.role: expected one of system, user, assist"),
            ([{"role": "user", "content": ["x"]}, MESSAGES[1]], "messages.0.content: "),
            ([MESSAGES[0], {"role": "assistant", "content": " "}], "messages.1.content: empty"),
            ([MESSAGES[0], {**MESSAGES[1], "tool_calls": [1]}], "messages.1.tool_calls: unknown key"),
            ("hi", "messages: "),
        ],
    )
    def test_what_is_wrong_is_named(self, messages, message):
        with pytest.raises(UsageError) as raised:
            parse_chat({"messages": messages}, "chat.jsonl:2")
        assert str(raised.value).startswith("chat.jsonl:2")
        assert message in str(raised.value)

    def test_a_missing_column_is_named(self):
        with pytest.raises(UsageError, match="messages: required, but missing"):
            parse_chat({"mesages": []}, "x")

    def test_made_in_code(self):
        with pytest.raises(ValueError, match="nothing to learn"):
            ChatRecord("c", (("user", "x"),))
