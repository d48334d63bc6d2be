"""Pools of noise in their upstream layouts."""

import pytest

from noisyjax.bench.questions.rows import BadRows, Row
from noisyjax.bench.schema import ChatPoolConfig, PoolConfig
from noisyjax.bench.sources import load_pool, read_chats, read_documents, read_negatives
from noisyjax.bench.sources.chats import ChatFilter
from noisyjax.errors import UsageError
from noisyjax.records import Question


def as_rows(values):
    return [Row(value, f"f:{i}") for i, value in enumerate(values, 1)]


class TestDocuments:
    def test_rulers_form(self, rows):
        groups = read_documents(as_rows([rows["hotpot"](1)]), BadRows())
        assert len(groups) == 10
        assert groups[0][0].text == "Topic 1-0\nFirst of 1x0. Second of 1x0."
        assert [g[0].text for g in groups] == sorted(g[0].text for g in groups)

    def test_equal_documents_count_once(self, rows):
        assert len(read_documents(as_rows([rows["hotpot"](1), rows["hotpot"](1)]), BadRows())) == 10

    def test_the_hubs_columns_read_alike(self, rows):
        row = rows["hotpot"](1)
        columns = {"title": [t for t, _ in row["context"]], "sentences": [s for _, s in row["context"]]}
        expected = read_documents(as_rows([row]), BadRows())
        assert read_documents(as_rows([{**row, "context": columns}]), BadRows()) == expected

    @pytest.mark.parametrize("context", [None, "text", [["title"]], [["title", "text"]], [["title", [1]]]])
    def test_broken_rows(self, rows, context):
        row = {**rows["hotpot"](1), "context": context}
        with pytest.raises(UsageError, match="f:1"):
            read_documents(as_rows([row]), BadRows())
        bad = BadRows(skip=True)
        assert len(read_documents(as_rows([row, rows["hotpot"](2)]), bad)) == 10
        assert len(bad.found) == 1


class TestChats:
    def chats(self, values, **keep):
        return read_chats(as_rows(values), BadRows(), ChatFilter(**keep))

    def test_both_layouts_give_exchanges(self, rows):
        (wild,) = self.chats([rows["wildchat"](1)])
        (mt,) = self.chats([rows["mtbench"](1)])
        assert wild[0].turns == (("user", "Hello 1"), ("assistant", "Answer 1"))
        assert mt[1].text == "User: Ask 1-1?\nAssistant: Reply 1-1. It goes on a little."
        assert wild[0].id != wild[1].id

    @pytest.mark.parametrize("change", [{"language": "French"}, {"toxic": True}, {"redacted": True}])
    def test_what_is_filtered(self, rows, change):
        assert self.chats([rows["wildchat"](1, **change), rows["wildchat"](2)])[0][0].turns[0][1] == "Hello 2"

    def test_turns_are_limited(self, rows):
        made = [rows["mtbench"](i, turns=i) for i in range(1, 6)]
        assert [len(g) for g in self.chats(made, min_turns=2, max_turns=4)] == [2, 3, 4]

    def test_a_blank_answer_ends_a_history(self, rows):
        row = rows["wildchat"](1)
        row["conversation"][3]["content"] = " "
        assert self.chats([row], min_turns=1)[0][-1].turns[0][1] == "Hello 1"

    def test_one_hash_may_stand_for_two_histories(self, rows):
        longer = rows["wildchat"](1)
        longer["conversation"] = longer["conversation"][:2]
        assert len(self.chats([rows["wildchat"](1), longer], min_turns=1)) == 2

    @pytest.mark.parametrize("conversation", ["text", [1, 2], [{"role": "assistant", "content": "x"}] * 2])
    def test_broken_rows(self, rows, conversation):
        with pytest.raises(UsageError, match="f:1"):
            self.chats([rows["wildchat"](1, conversation=conversation)])


class TestNegatives:
    def test_several_lines_of_a_question(self):
        values = [{"dataset": "d", "question_id": 7, "text": t, "title": "T", "made_by": "x"} for t in ("b", "a", "a")]
        file = read_negatives(as_rows(values), BadRows())
        question = Question("d", "7", "?", ("x",))
        assert sorted(d.text for d in file.of(question)) == ["a", "b"]
        assert file.of(Question("e", "7", "?", ("x",))) == ()
        assert file.orphans("d", ["8"]) == ["7"]

    def test_ids_are_unique_over_questions(self):
        values = [{"dataset": "d", "question_id": q, "id": "0", "text": q} for q in ("p", "q")]
        file = read_negatives(as_rows(values), BadRows())
        assert len({d.id for docs in file.documents.values() for d in docs}) == 2

    def test_broken_rows(self):
        with pytest.raises(UsageError, match="f:1: no 'question_id'"):
            read_negatives(as_rows([{"dataset": "d", "text": "t"}]), BadRows())


class TestPools:
    def test_the_order_is_a_function_of_seed_and_ids(self, data, rows, write):
        first = load_pool("RD", PoolConfig(), data, 0)
        write["lines"](data / "hotpotqa/hotpot.json", [rows["hotpot"](i) for i in reversed(range(12))])
        assert load_pool("RD", PoolConfig(), data, 0).groups == first.groups
        other = load_pool("RD", PoolConfig(), data, 1).groups
        assert other != first.groups
        assert set(other) == set(first.groups)

    def test_a_pool_too_small_says_what_to_set(self, data):
        with pytest.raises(UsageError, match=r"rc\.pool=25"):
            load_pool("RC", ChatPoolConfig(pool=26), data, 0)

    def test_a_named_file_that_is_missing_names_the_nearest(self, data):
        with pytest.raises(UsageError, match=r"did you mean 'hotpot\.json'"):
            load_pool("RD", PoolConfig(files=(str(data / "hotpotqa/hotpt.json"),)), data, 0)

    def test_no_pool_in_the_folder(self, data):
        assert load_pool("RD", PoolConfig(), data / "bbq", 0) is None
