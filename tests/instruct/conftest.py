"""A small real tokenizer under several chat templates, and a few records of every composition."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from noisyjax.chat import ChatTokenizer
from noisyjax.instruct import InstructRecord
from noisyjax.records import Document, Unit

TEXT = [
    "Which river does the mill at Ostrow stand on? Document 1: The mill at Ostrow stands on the river Welna.\n\n",
    "Hint: Before you answer, write the information that helps, inside <reference>...</reference>. Then answer.\n",
    "user assistant system think: what is 12 + 30? It's 42, as they say - naïve café über.\n\n",
]
PATTERN = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- set thought = '' %}
        {%- set content = m.content %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.last %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
    {%- else %}
        {{- m.content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""Lays the last thought out anew and takes earlier ones out, as hybrid reasoning models do."""


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")])
    folder = tmp_path_factory.mktemp("model")
    hf = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    hf.chat_template = CHATML
    hf.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id("<|im_end|>")}))
    return folder


@pytest.fixture(scope="session")
def with_template(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ChatTokenizer]:
    def build(template: str) -> ChatTokenizer:
        file = tmp_path_factory.mktemp("template") / "chat.jinja"
        file.write_text(template)
        return ChatTokenizer.load(model_folder, file)

    return build


@pytest.fixture(scope="session")
def chatml(model_folder: Path) -> ChatTokenizer:
    return ChatTokenizer.load(model_folder)


@pytest.fixture(scope="session")
def thinking(with_template: Callable[[str], ChatTokenizer]) -> ChatTokenizer:
    return with_template(THINKING)


def chat_unit(i: int) -> Unit:
    said = (("user", f"what is {i} + 30?"), ("assistant", f"It's {i + 30}."))
    return Unit(f"rc{i}", "RC", f"User: {said[0][1]}\nAssistant: {said[1][1]}", said)


def document_unit(kind: str, i: int, words: int = 6) -> Unit:
    return Unit(f"{kind.lower()}{i}", kind, f"{kind} mill {i}\n{'The mill stands. ' * words}".strip())


MAKE = {
    "RD": lambda i: document_unit("RD", i),
    "HN": lambda i: document_unit("HN", i),
    "RC": chat_unit,
}


@pytest.fixture(scope="session")
def make_record() -> Callable[..., InstructRecord]:
    """A sound record; keywords replace fields, `setting` and `count` make its distractors."""

    def make(id: str = "r1", setting: str = "ND", hint: str | None = "It is on the Welna.", count: int = 2, **fields):
        kinds = [] if setting == "ND" else setting.split("+")
        values = {
            "id": id,
            "question": "Which river does the mill at Ostrow stand on?",
            "answers": ("Welna", "the Welna"),
            "hint": hint,
            "distractors": tuple(MAKE[kind](i) for kind in kinds for i in range(count)),
            "domain": "places",
            "composition": "A|Q,D" if kinds else "A|Q",
            "setting": setting,
        }
        return InstructRecord(**{**values, **fields})

    return make


@pytest.fixture(scope="session")
def records(make_record) -> list[InstructRecord]:
    """One of everything that a file must carry."""
    return [
        make_record("plain", hint=None),
        make_record("hinted", composition="A|Q,H", meta={"source": "made up", "steps": 2, "deep": {"a": [1, None]}}),
        make_record("documents", "RD", evidence=(Document("e1", "The mill stands on the Welna.", "Ostrow"),)),
        make_record("chats", "RC", hint="zwei Zeilen\u2028und „Anführung“\n\ttab \\ \U0001f600 \x01"),
        make_record("mixed", "RD+HN", composition="A|Q,D,H", evidence=(Document("e1", "No title."),), working="a > b"),
        make_record("own text", "RC", distractors=(Unit("c", "RC", "retold", (("user", "a"), ("assistant", "b"))),)),
    ]
