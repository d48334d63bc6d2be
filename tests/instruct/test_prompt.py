"""A record as a prompt: the layout of evaluation, labelled parts, and a limit that only noise pays for."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisyjax.bench import BenchConfig, get_task
from noisyjax.bench.prompts import arrange, build_messages
from noisyjax.chat.reference import parse_references
from noisyjax.config import validate
from noisyjax.errors import UsageError
from noisyjax.instruct import (
    REFERENCE_SUFFIX,
    Kept,
    Left,
    PromptConfig,
    instruction,
    prompt_maker,
    record_messages,
    record_prompt,
)
from noisyjax.records import LABEL_ID, Document, Label, Question, Unit

PLAIN = PromptConfig(ask_reference=False, max_prompt_tokens=None)
ASKING = PromptConfig(max_prompt_tokens=None)


def labels(messages):
    return [[part.label.value for part in message.parts] for message in messages]


class TestLayout:
    def test_hint_question_and_suffix_in_that_order(self, make_record):
        (message,) = record_messages(make_record(composition="A|Q,H"), ASKING)
        assert labels([message]) == [["hint", "question", "template"]]
        assert message.content == (
            "Hint:\nIt is on the Welna.\n\nWhich river does the mill at Ostrow stand on?\n\n" + REFERENCE_SUFFIX
        )

    @pytest.mark.parametrize("composition", ["A|Q", "A|Q,D"])
    def test_a_hint_that_the_composition_does_not_name_is_not_shown(self, make_record, composition):
        record = make_record(setting="RD" if "D" in composition else "ND", composition=composition)
        text = "".join(m.content for m in record_messages(record, ASKING))
        assert record.hint not in text
        assert "Hint" not in text

    def test_noise_comes_first_with_its_units(self, make_record):
        messages = record_messages(make_record(setting="RC+RD", composition="A|Q,D,H"), ASKING)
        assert [m.role for m in messages] == ["user", "assistant", "user", "assistant", "user"]
        assert labels(messages)[-1] == ["distractor"] * 2 + ["hint", "question", "template"]
        units = list(dict.fromkeys(p.unit for m in messages for p in m.parts if p.unit))
        assert units == ["rc0", "rc1", "rd0", "rd1"]

    @pytest.mark.parametrize("position", ["before", "after", "both", "mixed"])
    @pytest.mark.parametrize("setting", ["ND", "RD", "RC", "HN", "RD+RC+HN"])
    def test_it_is_the_prompt_of_evaluation(self, make_record, setting, position):
        """The same question, evidence and noise as a benchmark item: the same messages, part by part."""
        evidence = (Document("e1", "The mill stands on the Welna.", "Ostrow"), Document("e2", "Rivers flow."))
        record = make_record(setting=setting, evidence=evidence)
        question = Question("musique", record.id, record.question, record.answers, evidence=evidence)
        task = get_task("musique").model_copy(update={"prompt": "{{ text }}\nIn one word.", "system": "Be brief."})
        bench = BenchConfig(position=position, rc={"form": "text"}, settings=("ND",), seed=5)
        config = PromptConfig(
            ask_reference=False,
            question="{{ text }}\nIn one word.",
            system="Be brief.",
            position=position,
            rc_form="text",
            order_seed=5,
        )
        assert record_messages(record, config) == build_messages(question, arrange(record.distractors), task, bench)

    def test_chat_as_turns_is_that_of_evaluation_too(self, make_record):
        record = make_record(setting="RC+HN")
        question = Question("musique", record.id, record.question, record.answers)
        task = get_task("musique").model_copy(update={"prompt": "{{ text }}", "system": ""})
        expected = build_messages(question, arrange(record.distractors), task, BenchConfig())
        assert record_messages(record, PLAIN) == expected

    def test_the_suffix_is_a_flag(self, make_record):
        with_it, without = (record_messages(make_record(setting="HN"), config) for config in (ASKING, PLAIN))
        assert with_it[-1].parts[-1].text == REFERENCE_SUFFIX
        assert with_it[-1].content == without[-1].content + "\n\n" + REFERENCE_SUFFIX
        assert (instruction(ASKING), instruction(PLAIN)) == (REFERENCE_SUFFIX, "")

    def test_repeating_the_suffix_is_no_reference(self):
        said = f"{REFERENCE_SUFFIX} <reference>It is on the Welna.</reference> Welna"
        assert parse_references(said, instruction=instruction(ASKING)).text == "It is on the Welna."
        assert parse_references(REFERENCE_SUFFIX, instruction=instruction(ASKING)).text is None


class TestLimit:
    def build(self, tokenizer, record, limit, **config):
        return record_prompt(tokenizer, record, PromptConfig(max_prompt_tokens=limit, **config))

    def test_whole_units_go_and_the_rest_is_numbered_anew(self, chatml, make_record):
        record = make_record(setting="RD", count=4, composition="A|Q,D,H")
        whole = self.build(chatml, record, None)
        prompt = self.build(chatml, record, len(whole.ids) - 1)
        assert (prompt.units, prompt.dropped) == (("rd0", "rd1", "rd2"), ("rd3",))
        assert "Document 3" in prompt.messages[-1].content
        assert "Document 4" not in prompt.messages[-1].content
        assert len(prompt.ids) <= len(whole.ids) - 1
        assert (prompt.dataset, prompt.question_id, prompt.setting, prompt.gold) == (
            "noisy_instruct",
            record.id,
            "RD",
            "Welna",
        )

    def test_a_long_unit_keeps_no_short_one_out(self, chatml, make_record):
        long = Unit("long", "RD", "The mill stands. " * 200)
        short = Unit("short", "RD", "The mill stands.")
        record = make_record(setting="RD", distractors=(long, short))
        prompt = self.build(chatml, record, 200)
        assert (prompt.units, prompt.dropped) == (("short",), ("long",))
        assert "Document 1:\nThe mill stands.\n\n" in prompt.messages[-1].content

    def test_a_mixture_loses_from_all_its_kinds(self, chatml, make_record):
        record = make_record(setting="RD+HN", count=6)
        whole, bare = self.build(chatml, record, None), self.build(chatml, record, 1)
        prompt = self.build(chatml, record, (len(whole.ids) + len(bare.ids)) // 2)
        kept = [unit[:2] for unit in prompt.units]
        assert kept == sorted(kept, key=["rd", "hn"].index)
        assert abs(kept.count("rd") - kept.count("hn")) <= 1
        assert len(kept) >= 5

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        setting=st.sampled_from(["ND", "RD", "RC", "HN", "RD+RC+HN"]),
        count=st.integers(1, 5),
        limit=st.integers(1, 500),
        position=st.sampled_from(["before", "after", "mixed"]),
    )
    def test_question_hint_and_suffix_are_whole_or_the_record_is_flagged(
        self, chatml, make_record, setting, count, limit, position
    ):
        composition = "A|Q,H" if setting == "ND" else "A|Q,D,H"
        evidence = (Document("e1", "The mill stands on the Welna."),)
        record = make_record(setting=setting, count=count, composition=composition, evidence=evidence)
        prompt = self.build(chatml, record, limit, position=position, rc_form="text")
        text = chatml.decode_raw(prompt.ids)
        for piece in (record.question, record.hint, evidence[0].text, REFERENCE_SUFFIX):
            assert piece in text, "never cut, flagged or not"
        assert prompt.over_length is (len(prompt.ids) > limit)
        assert not (prompt.over_length and prompt.units)
        assert sorted(prompt.units + prompt.dropped) == sorted(unit.id for unit in record.distractors)
        for unit in record.distractors:
            assert (unit.text in text) == (unit.id in prompt.units)

    def test_labels_of_tokens_say_which_text_they_came_from(self, chatml, make_record):
        record = make_record(setting="RD", composition="A|Q,D,H")
        prompt = self.build(chatml, record, None)

        def text_of(label):
            return chatml.decode_raw(prompt.ids[prompt.labels == LABEL_ID[label]])

        assert text_of(Label.QUESTION).strip() == record.question
        assert text_of(Label.HINT).strip() == f"Hint:\n{record.hint}"
        assert text_of(Label.DISTRACTOR).count("Document") == 2
        assert REFERENCE_SUFFIX in text_of(Label.TEMPLATE)


class TestMaker:
    def test_what_the_limit_did_is_noted(self, chatml, make_record):
        record = make_record(setting="RD", count=3)
        whole = len(record_prompt(chatml, record, ASKING).ids)
        bare = len(record_prompt(chatml, make_record(), ASKING).ids)

        def make(limit, **config):
            return prompt_maker(chatml, PromptConfig(max_prompt_tokens=limit, **config))(record)

        assert isinstance(make(whole), Kept)
        assert make(whole).notes == ()
        assert make(whole).item.record == record
        assert make(whole - 1).notes == ("cut",)
        assert make(bare).notes == ("bare",), "noise was asked for and none is left: counted"
        assert make(bare - 1) == Left("over_length")
        assert make(whole - 1, overlong="drop") == Left("over_length")
        assert make(whole, overlong="drop").notes == ()

    def test_the_template_gets_its_options(self, with_template, make_record):
        told = with_template(
            "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' if enable_thinking else '' }}"
        )
        on, off = (
            record_prompt(told, make_record(), PromptConfig(template_kwargs={"enable_thinking": flag}))
            for flag in (True, False)
        )
        assert len(on.ids) == len(off.ids) + 1
        assert told.opens_thought(on.ids)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"question": "{{ txt }}"}, "question: not a template"),
        ({"question": "{{ text "}, "question: not a template"),
        ({"question": "What?"}, "leaves the question out"),
        ({"position": "after"}, "needs rc_form=text"),
        ({"suffix": " "}, "needs a suffix that asks"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens"),
        ({"ask_refrence": True}, "did you mean 'ask_reference'?"),
    ],
)
def test_configs_that_cannot_work(config, message):
    with pytest.raises(UsageError) as raised:
        validate(PromptConfig, config, "prompt")
    assert message in str(raised.value)
