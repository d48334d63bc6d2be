"""Questions and noise: right answers, held-out questions apart, draws that depend on names alone."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisyjax.world import KINDS, Fact, Puzzle, noise, puzzle, split_of
from noisyjax.world.draw import Draw
from noisyjax.world.facts import GOLD_FACTS, HELD_OUT
from noisyjax.world.tokenizer import WORD
from noisyjax.world.words import GUESTS, VOCABULARY

MANY = 400
FACT = re.compile(r"(?:(old|last) )?(\w+) (\w+) (\d) \.")


def answer_by_reading(evidence: str, question: str) -> str:
    """Works a question out from the text alone, as somebody who knows the rules of the world would."""
    known = {(n, a): int(v) for past, n, a, v in FACT.findall(evidence) if not past}
    values = [known[name, attribute] for name, attribute in re.findall(r"(\w+) (\w+)", question)]
    if ">" in question:
        return "yes" if values[0] > values[1] else "no"
    return str(sum(values))


def test_a_worked_example():
    gold = (Fact("anna", "code", 7), Fact("bob", "age", 3))
    p = Puzzle("x", "sum2", gold, (gold[1], Fact("carl", "room", 5, "old"), gold[0]))
    assert p.question == "code anna + age bob ?"
    assert p.evidence == "age bob 3 . old room carl 5 . code anna 7 ."
    assert p.target == "<think> <reference> code anna 7 . age bob 3 . </reference> 7 + 3 = 10 </think> 10"
    less = Puzzle("y", "compare", gold[::-1], gold)
    assert (less.question, less.working, less.answer) == ("age bob > code anna ?", "3 > 7 = no", "no")
    assert Puzzle("z", "lookup", gold[:1], gold).target == "<think> <reference> code anna 7 . </reference> 7 </think> 7"


@pytest.mark.parametrize("stream", ["eval", "grpo"])
def test_every_answer_follows_from_the_evidence(stream):
    for p in (puzzle(0, stream, i) for i in range(MANY)):
        assert p.answer == answer_by_reading(p.evidence, p.question)
        assert p.answer == answer_by_reading(p.reference, p.question)  # the reference is enough
        assert set(p.gold) < set(p.facts)
        assert len(p.gold) == GOLD_FACTS[p.kind]
        assert p.target.split()[-1] == p.answer
        assert not any(fact.name in GUESTS for fact in p.gold)


def test_types_take_turns_and_comparisons_are_balanced():
    made = [puzzle(0, "grpo", i) for i in range(MANY)]
    assert [p.kind for p in made[:8]] == [*KINDS, *KINDS]
    answers = Counter(p.answer for p in made if p.kind == "compare")
    assert min(answers.values()) > 0.35 * sum(answers.values())


def test_questions_of_training_and_evaluation_are_disjoint_whatever_the_seeds():
    def asked(stream, seeds):
        return {(p.kind, frozenset(p.gold)) for seed in seeds for p in (puzzle(seed, stream, i) for i in range(MANY))}

    trained = asked("sparse", range(3)) | asked("grpo", range(3))
    tested = asked("eval", range(5, 8))
    assert len(trained) > MANY
    assert len(tested) > MANY
    assert not trained & tested
    assert all(split_of(kind, tuple(gold)) == "eval" for kind, gold in tested)


def test_about_one_question_in_four_is_held_out_and_order_does_not_matter():
    facts = [Fact(f"n{i}", "code", i % 10) for i in range(60)]
    pairs = [(a, b) for a in facts for b in facts if a.name < b.name]
    held = [split_of("sum2", pair) for pair in pairs]
    assert held == [split_of("sum2", pair[::-1]) for pair in pairs]
    assert abs(held.count("eval") / len(held) - 1 / HELD_OUT) < 0.05


def test_a_question_depends_on_its_name_alone():
    assert puzzle(3, "grpo", 17) == puzzle(3, "grpo", 17)
    others = {puzzle(3, "grpo", 18), puzzle(3, "noise", 17), puzzle(4, "grpo", 17)}
    assert len({p.evidence for p in others} | {puzzle(3, "grpo", 17).evidence}) == 4


@given(st.integers(0, 30), st.integers(0, 30), st.text(max_size=5))
def test_some_is_a_prefix_of_more(n, more, name):
    draw, options = Draw((name, 7)), range(30)
    longer = draw.some(max(n, more), options)
    assert draw.some(min(n, more), options) == longer[: min(n, more)]
    assert len(set(longer)) == len(longer)


class TestNoise:
    def test_lookalikes_never_hold_a_gold_key_unmarked(self):
        for p in (puzzle(1, "eval", i) for i in range(MANY)):
            text = " ".join(noise.lookalikes(p, Draw(("t", p.id))))
            facts = FACT.findall(text)
            assert len(facts) == len(set(facts)) == 2 * noise.LOOKALIKES
            keys = {fact.key for fact in p.facts}
            for past, attribute, name, _ in facts:
                assert past or f"{attribute} {name}" not in keys
            both = f"{p.evidence} {text}"
            assert answer_by_reading(both, p.question) == p.answer

    def test_lookalikes_of_one_gold_key_have_another_value(self):
        found = 0
        for p in (puzzle(1, "eval", i) for i in range(MANY)):
            gold = {fact.key: fact.value for fact in p.gold}
            text = " ".join(noise.lookalikes(p, Draw(("t", p.id))))
            for past, attribute, name, value in FACT.findall(text):
                if past and f"{attribute} {name}" in gold:
                    found += 1
                    assert int(value) != gold[f"{attribute} {name}"]
        assert found > MANY

    def test_documents_and_chats_hold_digits_and_nobody_who_is_asked_about(self):
        asked = {fact.name for i in range(MANY) for fact in puzzle(0, "eval", i).gold}
        texts = [" ".join(noise.document(Draw(("d", i)))[1]) for i in range(50)]
        texts += [" ".join(f"{a} {b}" for a, b in noise.chat(Draw(("c", i)))) for i in range(50)]
        for text in texts:
            assert re.search(r"\d", text)
            assert not asked & set(text.split())

    def test_small_talk_holds_no_digit_and_no_attribute(self):
        text = " ".join(f"{a} {b}" for i in range(50) for a, b in noise.small_talk(Draw(("s", i)), 4))
        assert not re.search(r"\d|\b(code|age|room|rank)\b", text)

    def test_no_word_is_unknown(self):
        texts = []
        for i in range(MANY):
            p, draw = puzzle(0, "eval", i), Draw((i,))
            title, sentences = noise.document(draw)
            texts += [p.evidence, p.question, p.target, title, *sentences, *noise.lookalikes(p, draw)]
            texts += [text for pair in noise.chat(draw) + noise.small_talk(draw, 3) for text in pair]
        assert set(re.findall(WORD, " ".join(texts))) <= set(VOCABULARY)
        assert len(set(VOCABULARY)) == len(VOCABULARY)
