"""Small real tokenizers in the style of the supported families, trained on the spot and saved as HF folders."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from noisyjax.chat import ChatTokenizer

TEXT = [
    "The quick brown fox jumps over the lazy dog. Document 1: Title: a tale of two rivers\n\n",
    "Question: what is the answer to 12 + 30? Answer with one word.\n",
    "user assistant system think thinking end start header id im eot reference\n",
    "Don't you see that it's about 1,234 and we'll go on - naïve café über 日本語 text, as they say.\n\n\n",
]
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_PATTERN = QWEN_PATTERN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are a kind assistant.<|im_end|>\n' }}{% endif %}"
    + CHATML
)
QWEN3 = """\
{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.last %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- elif open_thought is defined %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def _byte_level(pattern: str | None, extra: list[str], normalizer: object = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=pattern == LLAMA3_PATTERN))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pattern is None:
        split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        split = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=420 + len(extra),
        special_tokens=extra,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    return tokenizer


def _save(folder: Path, tokenizer: Tokenizer, template: str | None, generation: object, **special: str) -> Path:
    hf = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    hf.chat_template = template
    hf.save_pretrained(folder)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    return folder


def qwen_folder(folder: Path, template: str | None = QWEN3) -> Path:
    tokenizer = _byte_level(QWEN_PATTERN, [], normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>", "<tool>")])
    eos = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    return _save(folder, tokenizer, template, eos, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def llama3_folder(folder: Path, template: str | None = LLAMA3) -> Path:
    """BOS in the template and from the post-processor too; ids of the control tokens lie above the vocabulary."""
    tokenizer = _byte_level(LLAMA3_PATTERN, [])
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(names)
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)]),
        ]
    )
    eos = tokenizer.token_to_id("<|end_of_text|>")
    return _save(folder, tokenizer, template, eos, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")


def smol_folder(folder: Path, template: str | None = DEFAULT_SYSTEM) -> Path:
    """Control tokens are rows of the BPE vocabulary itself, and BOS is the token that opens a turn."""
    tokenizer = _byte_level(None, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return _save(folder, tokenizer, template, 2, bos_token="<|im_start|>", eos_token="<|im_end|>")


def sentencepiece_folder(folder: Path, template: str | None = None) -> Path:
    """Llama-2 style: no splitting pattern, spaces as U+2581, one put before the text; whitespace runs are tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator([w for t in TEXT for w in t.split(" ")], trainer)
    tokenizer.add_special_tokens(["<|turn|>"])
    tokenizer.add_tokens([AddedToken("\n\n\n", special=False, normalized=False)])
    template = template or (
        "{% for m in messages %}{{ '<|turn|>' + m.role + ': ' + m.content + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|turn|>assistant:' }}{% endif %}"
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return _save(folder, tokenizer, template, None, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


STYLES: dict[str, Callable[..., Path]] = {
    "qwen3": qwen_folder,
    "llama3": llama3_folder,
    "smol": smol_folder,
    "sentencepiece": sentencepiece_folder,
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model folder (tokenizer only) per style."""
    return {name: build(tmp_path_factory.mktemp(name)) for name, build in STYLES.items()}


@pytest.fixture(scope="session")
def tokenizers(folders: dict[str, Path]) -> dict[str, ChatTokenizer]:
    return {name: ChatTokenizer.load(folder) for name, folder in folders.items()}


@pytest.fixture(params=sorted(STYLES))
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, ChatTokenizer]) -> ChatTokenizer:
    """Every style in turn."""
    return tokenizers[request.param]


@pytest.fixture(scope="session")
def with_template(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ChatTokenizer]:
    """A style's tokenizer under another chat template, given as a file the way a user would."""

    def build(style: str, template: str) -> ChatTokenizer:
        file = tmp_path_factory.mktemp("template") / "chat.jinja"
        file.write_text(template)
        return ChatTokenizer.load(folders[style], file)

    return build
