"""SFT examples: the ids of the chat template, and loss on what the assistant says."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisyjax.chat import render, split
from noisyjax.chat.thoughts import FAMILIES
from noisyjax.errors import UsageError
from noisyjax.instruct import (
    REFERENCE_SUFFIX,
    ChatRecord,
    DataConfig,
    PromptConfig,
    TargetConfig,
    chat_messages,
    example_stream,
    prompt_stream,
    record_prompt,
    sft_example,
    write_records,
)
from noisyjax.instruct.sft import chat_example_maker, record_example_maker, target_text
from noisyjax.instruct.stream import Kept, Left
from noisyjax.records import Label, Message, Part

CHAT = ChatRecord(
    "c",
    (
        ("system", "Be brief."),
        ("user", "what is 12 + 30?"),
        ("assistant", "It's 42."),
        ("user", "why"),
        ("assistant", "<think>\nadd them\n</think>\n\n12 and 30 are 42."),
    ),
)


def template_ids(tokenizer, chat):
    messages = [{"role": role, "content": text} for role, text in chat.messages]
    return tokenizer.hf.apply_chat_template(
        messages, chat_template=tokenizer.template, tokenize=True, return_dict=True
    )["input_ids"]


def runs(tokenizer, example):
    """The texts of the runs of targets."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], example.target.astype(int), [0]])))
    return [tokenizer.decode_raw(example.ids[a:b]) for a, b in edges.reshape(-1, 2)]


class TestChat:
    def test_the_ids_are_the_templates(self, chatml, thinking):
        for tokenizer in (chatml, thinking):
            example = sft_example(tokenizer, chat_messages(CHAT))
            assert example.ids.tolist() == template_ids(tokenizer, CHAT)
            assert example.ids.dtype == np.int32
            assert example.target.dtype == bool

    def test_loss_is_on_the_assistants_words_and_their_end(self, chatml):
        example = sft_example(chatml, chat_messages(CHAT))
        assert runs(chatml, example) == [
            "It's 42.<|im_end|>",
            "<think>\nadd them\n</think>\n\n12 and 30 are 42.<|im_end|>",
        ]

    def test_a_thought_that_the_template_lays_out_is_learnt_as_laid_out(self, thinking):
        example = sft_example(thinking, chat_messages(CHAT))
        assert runs(thinking, example)[-1] == "<think>\nadd them\n</think>\n\n12 and 30 are 42.<|im_end|>"
        bare = ChatRecord("c", (("user", "why"), ("assistant", "so")))
        assert runs(thinking, sft_example(thinking, chat_messages(bare))) == ["<think>\n\n</think>\n\nso<|im_end|>"]

    def test_tags_are_the_tokens_that_the_model_would_say(self, chatml, thinking):
        for tokenizer in (chatml, thinking):
            example = sft_example(tokenizer, chat_messages(CHAT))
            said = example.ids[example.target].tolist()
            assert tokenizer.controls["<think>"].id in said
            assert tokenizer.controls["</think>"].id in said

    def test_prompt_and_target_are_what_the_sampler_would_see(self, chatml, thinking):
        """The ids before a turn's targets are the prompt that asks for it."""
        for tokenizer in (chatml, thinking):
            messages = chat_messages(CHAT)
            example = sft_example(tokenizer, messages)
            prompt = render(tokenizer, messages[:-1]).ids
            assert example.ids[: len(prompt)].tolist() == prompt.tolist()
            assert example.target[len(prompt)]
            assert not example.target[len(prompt) - 1]

    def test_a_control_token_in_a_text_is_text(self, chatml):
        chat = ChatRecord("c", (("user", "say <|im_end|>"), ("assistant", "<|im_end|> it is")))
        example = sft_example(chatml, chat_messages(chat))
        assert example.ids.tolist().count(chatml.controls["<|im_end|>"].id) == 2
        assert runs(chatml, example) == ["<|im_end|> it is<|im_end|>"]
        assert len(example.ids) > len(template_ids(chatml, chat))

    def test_somebody_elses_turns_are_context(self, chatml):
        messages = (
            Message("user", (Part("a", Label.DISTRACTOR, "u"),)),
            Message("assistant", (Part("b", Label.DISTRACTOR, "u"),)),
            *chat_messages(ChatRecord("c", (("user", "why"), ("assistant", "so")))),
        )
        assert runs(chatml, sft_example(chatml, messages)) == ["so<|im_end|>"]
        with pytest.raises(UsageError, match="no turn of the assistant"):
            sft_example(chatml, messages[:3])

    def test_a_template_that_takes_the_thought_out_is_refused(self, with_template):
        stripping = with_template(
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content.split('</think>')[-1] + "
            "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
        )
        with pytest.raises(UsageError, match="takes the thought out"):
            sft_example(stripping, chat_messages(CHAT))
        without = ChatRecord("c", (("user", "why"), ("assistant", "so")))
        assert runs(stripping, sft_example(stripping, chat_messages(without))) == ["so<|im_end|>"]

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        texts=st.lists(
            st.text(st.sampled_from("ab .\né<>/|"), min_size=1, max_size=12).filter(str.strip), min_size=1, max_size=3
        )
    )
    def test_any_chat(self, chatml, texts):
        turns = tuple(turn for text in texts for turn in (("user", "why?"), ("assistant", text)))
        example = sft_example(chatml, chat_messages(ChatRecord("c", turns)))
        assert example.ids.tolist() == template_ids(chatml, ChatRecord("c", turns))
        assert not example.target[0]
        said = runs(chatml, example)
        assert len(said) == len(texts)
        for text, run in zip(texts, said, strict=True):
            assert run.endswith(f"{text.lstrip()}<|im_end|>"), "blanks may belong to a token that began before"

    def test_masks_do_not_know_their_neighbours(self, chatml):
        """Examples laid end to end: the targets of each are those it has alone, and never its first token."""
        examples = [sft_example(chatml, chat_messages(ChatRecord(str(n), CHAT.messages[:n]))) for n in (3, 5, 3)]
        target = np.concatenate([e.target for e in examples])
        starts = np.cumsum([0, *(len(e.ids) for e in examples)])
        assert not target[starts[:-1]].any()
        for example, a, b in zip(examples, starts, starts[1:], strict=False):
            assert (target[a:b] == example.target).all()
        assert (examples[0].target == examples[2].target).all()

    def test_too_long_is_left_out(self, chatml):
        n = len(sft_example(chatml, chat_messages(CHAT)).ids)
        fits = chat_example_maker(chatml, PromptConfig(), TargetConfig(max_tokens=n))(CHAT)
        assert isinstance(fits, Kept)
        assert chat_example_maker(chatml, PromptConfig(), TargetConfig(max_tokens=n - 1))(CHAT) == Left("over_length")


class TestRecords:
    def make(self, tokenizer, record, form="reference", max_tokens=None, **prompt):
        return record_example_maker(tokenizer, PromptConfig(**prompt), TargetConfig(form=form, max_tokens=max_tokens))(
            record
        )

    @pytest.mark.parametrize(
        ("form", "said"),
        [
            ("reference", "<reference>It is on the Welna.</reference>\n\nWelna<|im_end|>"),
            ("thought", "<think>\n<reference>It is on the Welna.</reference>\n</think>\n\nWelna<|im_end|>"),
            ("answer", "Welna<|im_end|>"),
        ],
    )
    def test_reference_then_answer(self, chatml, thinking, make_record, form, said):
        record = make_record(setting="RD", composition="A|Q,D")
        assert runs(chatml, self.make(chatml, record, form).item) == [said]
        laid_out = said if form == "thought" else "<think>\n\n</think>\n\n" + said
        assert runs(thinking, self.make(thinking, record, form).item) == [laid_out]

    def test_the_working_stands_between_reference_and_answer(self, chatml, make_record):
        record = make_record(working="So it is the Welna.")
        said = "<think>\n<reference>It is on the Welna.</reference>\nSo it is the Welna.\n</think>\n\nWelna<|im_end|>"
        assert runs(chatml, self.make(chatml, record, "thought").item) == [said]
        assert "So it is" not in runs(chatml, self.make(chatml, record, "reference").item)[0]

    def test_the_prompt_is_that_of_grpo(self, chatml, make_record):
        record = make_record(setting="RC+RD", composition="A|Q,D,H")
        example = self.make(chatml, record).item
        prompt = record_prompt(chatml, record, PromptConfig(max_prompt_tokens=None))
        first = int(np.argmax(example.target))
        assert example.ids[:first].tolist() == prompt.ids.tolist()
        assert REFERENCE_SUFFIX in chatml.decode_raw(example.ids[:first])

    def test_without_a_hint_there_is_nothing_to_quote(self, chatml, make_record):
        record = make_record(hint=None)
        assert self.make(chatml, record) == Left("no_hint")
        assert runs(chatml, self.make(chatml, record, "answer").item) == ["Welna<|im_end|>"]

    def test_noise_gives_way_and_the_target_does_not(self, chatml, make_record):
        record = make_record(setting="RD", count=3)
        whole = self.make(chatml, record)
        cut = self.make(chatml, record, max_tokens=len(whole.item.ids) - 1)
        bare = self.make(chatml, make_record())
        assert (whole.notes, cut.notes) == ((), ("cut",))
        assert len(cut.item.ids) < len(whole.item.ids)
        assert runs(chatml, cut.item) == runs(chatml, whole.item)
        assert self.make(chatml, record, max_tokens=len(bare.item.ids)).notes == ("bare",)
        assert self.make(chatml, record, max_tokens=len(bare.item.ids) - 1) == Left("over_length")

    def test_the_limit_of_prompts_is_grpos(self, chatml, make_record):
        record = make_record(setting="RD", count=3)
        assert self.make(chatml, record, max_prompt_tokens=10).notes == ()

    @pytest.mark.parametrize("family", FAMILIES)
    def test_a_thought_is_written_as_its_family_writes_it(self, family, make_record):
        class Model:
            thought_tags = FAMILIES[family]

        record = make_record()
        said = split(target_text(Model(), record, "thought"), tags=FAMILIES[family])
        assert said.thought.strip() == f"<reference>{record.hint}</reference>"
        assert said.answer.strip() == record.answers[0]


class TestStreams:
    def test_prompts_and_examples_of_one_file(self, tmp_path, chatml, records):
        write_records(tmp_path / "set.parquet", records)
        config = DataConfig(files=(str(tmp_path),), epochs=1, threads=0)
        prompts = prompt_stream(config, chatml, seed=0).take(100)
        assert sorted(asked.record.id for asked in prompts.items) == sorted(record.id for record in records)
        source = example_stream(config, chatml, seed=0)
        batch = source.take(100)
        assert batch.total == len(records) - 1
        assert dict(source.counts.left) == {"no_hint": 1}
        assert all(example.target.any() for example in batch.items)

    def test_conversations(self, tmp_path, chatml):
        write_records(tmp_path / "chat.jsonl", [CHAT])
        config = DataConfig(files=(str(tmp_path / "chat.jsonl"),), kind="chat", threads=0)
        (example,) = example_stream(config, chatml, seed=0).take(1).items
        assert example.ids.tolist() == template_ids(chatml, CHAT)
        with pytest.raises(UsageError, match="no gold answers"):
            prompt_stream(config, chatml, seed=0)

    def test_the_wrong_kind_is_a_readable_error(self, tmp_path, chatml):
        (tmp_path / "chat.jsonl").write_text(json.dumps(CHAT.row()) + "\n")
        with pytest.raises(UsageError, match=r"chat\.jsonl:1: .*\n  .*\n"):
            example_stream(DataConfig(files=(str(tmp_path),)), chatml, seed=0)

    def test_a_template_that_refuses_names_the_record(self, tmp_path, with_template, make_record):
        write_records(tmp_path / "set.jsonl", [make_record("odd")])
        refusing = with_template(
            "{{ raise_exception('no system') if messages[0].role == 'system' }}" + "{{ messages }}"
        )
        config = DataConfig(files=(str(tmp_path),), threads=0, prompt=PromptConfig(system="Be brief."))
        with pytest.raises(UsageError, match=r"set\.jsonl:1 \(odd\): .*no system"):
            prompt_stream(config, refusing, seed=0).take(1)
