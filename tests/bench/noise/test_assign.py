"""Which question gets which noise: a function of seeds and ids."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.bench.noise.assign import assign_negatives, assign_pool
from noisyjax.bench.noise.contamination import Checker
from noisyjax.bench.schema import BenchConfig, NegativesConfig, PoolConfig
from noisyjax.bench.seeds import content_id, digest, permutation, seeded_order
from noisyjax.bench.sources import Pool
from noisyjax.records import Document, Question, Unit

GROUPS = tuple((Unit(f"rd-{i}", "RD", f"word{i}a text"),) for i in range(30))
POOL = Pool("RD", GROUPS, 10)


def ask(i=1, answer="nowhere"):
    return Question("d", f"q{i}", "?", (answer,))


def assign(question, swap=False, seed=0, pool=POOL, **config):
    return assign_pool(pool, PoolConfig(**{"pool": 10} | config), question, seed, Checker(), swap)


def ids(assigned):
    return [unit.id for unit in assigned.units]


def test_a_shared_block_is_the_same_for_all():
    assert ids(assign(ask(1))) == ids(assign(ask(2), seed=9)) == [f"rd-{i}" for i in range(10)]


def test_per_question_draws_from_the_pool_alone():
    drawn = [ids(assign(ask(i), assignment="per_question", count=3)) for i in range(8)]
    assert len({tuple(d) for d in drawn}) > 4
    assert {u for d in drawn for u in d} <= {f"rd-{i}" for i in range(10)}
    assert drawn == [ids(assign(ask(i), assignment="per_question", count=3)) for i in range(8)]
    assert drawn != [ids(assign(ask(i), assignment="per_question", count=3, seed=1)) for i in range(8)]


@pytest.mark.parametrize("assignment", ["shared_block", "per_question"])
def test_a_larger_count_only_appends(assignment):
    small, large = (ids(assign(ask(), assignment=assignment, count=n)) for n in (4, 7))
    assert large[:4] == small
    assert ids(assign(ask(), assignment=assignment, count=0)) == []


def test_a_unit_that_holds_the_answer_is_reported():
    found = assign(ask(answer="word3a"))
    assert found.contaminated == (("rd-3", "word3a"),)
    assert len(found.units) == 10


def test_a_swap_takes_the_next_unit_and_leaves_the_rest_in_place():
    found = assign(ask(answer="word3a"), swap=True)
    assert ids(found) == ["rd-0", "rd-1", "rd-2", "rd-10", *(f"rd-{i}" for i in range(4, 10))]
    assert found.contaminated == ()
    assert found.swapped == 1


def test_a_swap_does_not_swap_in_another_holder():
    groups = (*GROUPS[:10], (Unit("bad", "RD", "word3a again"),), *GROUPS[11:])
    assert ids(assign(ask(answer="word3a"), swap=True, pool=Pool("RD", groups, 10)))[3] == "rd-11"


def test_a_swap_without_reserve_leaves_the_question_contaminated():
    pool = Pool("RD", GROUPS[:10], 10)
    assert assign(ask(answer="word3a"), swap=True, pool=pool).contaminated == (("rd-3", "word3a"),)


def test_a_chat_is_swapped_whole():
    chats = tuple(
        tuple(Unit(f"c{i}/{k}", "RC", f"talk{i}x{k}", turns=(("user", "a"), ("assistant", "b"))) for k in range(2))
        for i in range(4)
    )
    found = assign_pool(Pool("RC", chats, 2), PoolConfig(pool=2), ask(answer="talk0x1"), 0, Checker(), True)
    assert [u.id for u in found.units] == ["c2/0", "c2/1", "c1/0", "c1/1"]


class TestNegatives:
    documents = tuple(Document(f"n{i}", f"sly{i}z text", title="T") for i in range(5))

    def draw(self, question=None, documents=documents, **config):
        made = BenchConfig(hn=NegativesConfig(count=config.pop("count", 2)), **config)
        return assign_negatives(documents, question or ask(), made, Checker())

    def test_they_do_not_depend_on_the_order_of_the_source(self):
        shuffled = list(self.documents)
        random.Random(0).shuffle(shuffled)
        assert self.draw() == self.draw(documents=tuple(shuffled))

    def test_too_few_are_reported(self):
        assert self.draw(count=7).short == 2
        assert self.draw(count=5).short == 0

    def test_titles_stand_above_the_text(self):
        assert self.draw().units[0].text.startswith("T\nsly")

    def test_a_swap_takes_another_of_the_questions_own(self):
        first = self.draw(count=1).units[0]
        word = first.text.split()[1]
        assert self.draw(ask(answer=word), count=1).contaminated == ((first.id, word),)
        swapped = self.draw(ask(answer=word), count=1, contamination="swap_unit")
        assert swapped.contaminated == ()
        assert swapped.units[0] != first


@given(st.lists(st.text(), unique=True), st.integers(), st.randoms())
def test_seeded_order_is_a_function_of_the_set(names, seed, rng):
    shuffled = list(names)
    rng.shuffle(shuffled)
    ordered = seeded_order(names, str, seed)
    assert ordered == seeded_order(shuffled, str, seed)
    assert sorted(ordered) == sorted(names)
    if names:
        assert seeded_order(names[1:], str, seed) == [n for n in ordered if n != names[0]]


def test_draws_are_pinned():
    """Written down, so that a change of the hash cannot pass unseen: it would change every benchmark."""
    assert digest(0, "a") == 5343935306724906182
    assert content_id("sealqa", "x") == "032a15aabe0e"
    assert permutation(6, 0, "x") == (0, 2, 4, 1, 5, 3)
    assert content_id("ab", "c") != content_id("a", "bc")
