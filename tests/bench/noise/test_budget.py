"""The token cap on noise: whole units, shared evenly, one total."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.bench.noise.budget import CUT, cut_unit, spend, unit_tokens
from noisyjax.records import Unit

MODES = {"RD": "shared_block", "RC": "shared_block", "HN": "per_question"}


def count(text: str) -> int:
    return len(text.split())


def doc(i, words, kind="RD"):
    # "Document 1:" costs two words.
    return Unit(f"{kind}{i}", kind, " ".join(["w"] * (words - 2)))


def chat(i, asked, answered):
    turns = (("user", " ".join(["u"] * asked)), ("assistant", " ".join(["a"] * answered)))
    return Unit(f"RC{i}", "RC", f"User: {turns[0][1]}\nAssistant: {turns[1][1]}", turns)


def test_units_are_dropped_from_the_end():
    spent = spend({"RD": [doc(i, 10) for i in range(5)]}, 35, MODES, count)
    assert [u.id for u in spent.kept] == ["RD0", "RD1", "RD2"]
    assert spent.dropped == ("RD3", "RD4")
    assert spent.tokens == 30


def test_a_shared_block_keeps_a_prefix_and_per_question_fills_up():
    units = [doc(0, 10), doc(1, 50), doc(2, 10)]
    assert [u.id for u in spend({"RD": units}, 25, MODES, count).kept] == ["RD0"]
    assert [u.id for u in spend({"RD": units}, 25, MODES | {"RD": "per_question"}, count).kept] == ["RD0", "RD2"]


def test_what_one_kind_cannot_fill_goes_to_the_others():
    units = {"RD": [doc(i, 10) for i in range(20)], "HN": [doc(0, 10, "HN")]}
    spent = spend(units, 100, MODES, count)
    assert spent.tokens == 100
    assert [u.kind for u in spent.kept] == ["RD"] * 9 + ["HN"]


def test_mixtures_have_the_total_of_a_single_kind():
    rd, rc = [doc(i, 7) for i in range(40)], [chat(i, 3, 6) for i in range(40)]
    totals = [spend(u, 100, MODES, count).tokens for u in ({"RD": rd}, {"RC": rc}, {"RD": rd, "RC": rc})]
    assert all(91 < total <= 100 for total in totals)


def test_a_first_unit_that_is_too_long_is_cut_at_a_sentence():
    unit = Unit("RD0", "RD", "Title\nOne two three. Four five six. Seven eight nine ten.")
    spent = spend({"RD": [unit, doc(1, 3)]}, 10, MODES, count)
    assert [u.id for u in spent.kept] == ["RD0" + CUT]
    assert spent.kept[0].text == "Title\nOne two three. Four five six."
    assert spent.dropped == ("RD1",)


def test_without_a_sentence_end_it_is_cut_between_words():
    assert cut_unit(doc(0, 50), 12, count).text == " ".join(["w"] * 10)
    assert cut_unit(doc(0, 50), 1, count) is None


def test_a_cut_exchange_keeps_both_sides():
    cut = cut_unit(chat(0, 3, 50), 10, count)
    assert [len(text.split()) for _, text in cut.turns] == [3, 7]
    cut = cut_unit(chat(0, 30, 50), 10, count)
    assert [len(text.split()) for _, text in cut.turns] == [5, 5]
    assert cut.text == f"User: {cut.turns[0][1]}\nAssistant: {cut.turns[1][1]}"
    assert cut_unit(chat(0, 30, 50), 1, count) is None


def test_nothing_fits():
    spent = spend({"RD": [doc(0, 30)]}, 2, MODES, count)
    assert spent.kept == ()
    assert spent.dropped == ("RD0",)


LENGTHS = st.lists(st.integers(3, 40), max_size=8)


@given(LENGTHS, LENGTHS, LENGTHS, st.integers(1, 120))
def test_the_cap_holds_and_nothing_is_lost(rd, rc, hn, limit):
    units = {
        "RD": [doc(i, n) for i, n in enumerate(rd)],
        "RC": [chat(i, 1, n) for i, n in enumerate(rc)],
        "HN": [doc(i, n, "HN") for i, n in enumerate(hn)],
    }
    spent = spend(units, limit, MODES, count)
    assert sum(unit_tokens(u, count) for u in spent.kept) == spent.tokens <= limit
    kept = {u.id.removesuffix(CUT) for u in spent.kept}
    assert kept | set(spent.dropped) == {u.id for group in units.values() for u in group}
    assert not kept & set(spent.dropped)
    block = [u.id for u in units["RD"]]
    assert [i for i in block if i in kept] == block[: len([i for i in block if i in kept])]


@given(st.text(max_size=200), st.integers(1, 60))
def test_a_cut_document_is_a_start_of_it(text, limit):
    unit = Unit("x", "RD", text)
    cut = cut_unit(unit, limit, len)
    if cut is not None:
        assert text.startswith(cut.text)
        assert unit_tokens(cut, len) <= limit


@pytest.mark.parametrize("limit", range(1, 30))
def test_a_cut_never_exceeds_its_limit(limit):
    cut = cut_unit(Unit("x", "RD", "One two. Three four five. Six seven eight nine ten eleven."), limit, count)
    assert cut is None or unit_tokens(cut, count) <= limit
