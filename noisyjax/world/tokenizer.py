"""The tiny world's tokenizer: one token a word, the words fixed, and a chat template of one marker a turn.

`<think>` and `<reference>` are words like any other: a prompt may hold them and a completion spells them out. Only
the chat markers are control tokens. Words are decoded with a blank between them.
"""

from typing import Any

from noisyjax.world.words import CONTROLS, VOCABULARY

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|> {{ message.content }} <|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WORD = r"</?\w+>|\w+|[^\w\s]"
PAD, UNKNOWN, END = "<|pad|>", "<|unk|>", "<|end|>"


def make_tokenizer() -> Any:
    """A transformers PreTrainedTokenizerFast; save it with `save_pretrained` beside the model."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    words.add_special_tokens([AddedToken(control, special=True, normalized=False) for control in CONTROLS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, pad_token=PAD, unk_token=UNKNOWN)
    tokenizer.chat_template = TEMPLATE
    return tokenizer
