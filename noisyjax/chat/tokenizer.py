"""A Hugging Face tokenizer with its chat template, seen from the two sides that must not mix: control and content.

Control tokens (added tokens such as `<|im_end|>`, and `<think>` too, which is not "special") come only from the
template. Content is encoded by a copy of the tokenizer in which they cannot be reached, so that a document which
quotes `<|im_end|>` yields the ordinary tokens of those characters. The copy knows one private mark instead; a run
that follows a control token is encoded behind the mark, because some tokenizers treat the start of a text specially.

Legend: V rows of the model's vocabulary, n tokens of a run.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import numpy as np
from tokenizers import AddedToken, Tokenizer

from noisyjax.chat import harmony, thoughts
from noisyjax.errors import UsageError

if TYPE_CHECKING:  # it takes seconds to import, and a mistake in a config is to be told at once
    from transformers import PreTrainedTokenizerFast

_SURROGATE = re.compile("[\ud800-\udfff]")
_MARK = "\U0010fffdrun\U0010fffc"
_HIDDEN = "\U0010fffdcontrol"
"""How the names that control tokens go by begin. None may begin with the mark: text behind it would complete them."""
TEMPLATE_DATE = date(2024, 7, 26)
"""What templates that print today's date are given: the date on which Llama's own templates fall back."""


class Encoded(NamedTuple):
    """A run of text as tokens. ids, starts, ends: int32 [n]; token i covers characters starts[i]:ends[i]."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True)
class Control:
    """A control token; `lstrip` and `rstrip` say that it swallows the whitespace beside it."""

    id: int
    special: bool
    lstrip: bool
    rstrip: bool


class ChatTokenizer:
    """Everything that prompts and completions need of a tokenizer. Build it with `ChatTokenizer.load`."""

    def __init__(
        self,
        hf: "PreTrainedTokenizerFast",
        *,
        name: str,
        template: str | None,
        eos_ids: Collection[int] = (),
        today: date = TEMPLATE_DATE,
    ) -> None:
        self.hf = hf
        self.name = name
        self.template = None if template is None else _pin_date(template, today)
        self.backend: Tokenizer = hf.backend_tokenizer
        self.bos_id: int | None = hf.bos_token_id
        self.controls: dict[str, Control] = {
            token.content: Control(i, token.special, token.lstrip, token.rstrip)
            for i, token in self.backend.get_added_tokens_decoder().items()
            if not _is_text(token)
        }
        self.control_re = _any_of(self.controls)
        self._plain = _without_controls(self.backend, self.controls, name)
        self._run = lru_cache(maxsize=512)(self._encode_run)
        self.thought_tags = thoughts.FAMILIES[thoughts.family_of(self.controls)]
        spoken = self.thought_tags.tokens
        self._silent = frozenset(c.id for text, c in self.controls.items() if c.special and text not in spoken)
        self.adds_bos = self.bos_id is not None and self.hf("x")["input_ids"][:1] == [self.bos_id]
        self.cuttable = self._splits_at_line_starts()
        tokenizer_eos = () if hf.eos_token_id is None else (hf.eos_token_id,)
        stops = {*tokenizer_eos, *eos_ids, *self._end_of_turn()}
        if self.thought_tags is harmony.TAGS:
            stops |= {self.controls[text].id for text in harmony.STOPS if text in self.controls}
        # What ends a thought ends no turn, whoever lists it.
        stops -= {self.controls[text].id for text in spoken if text in self.controls}
        self.stop_ids: tuple[int, ...] = tuple(sorted(stops))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        chat_template: str | Path | None = None,
        *,
        require_template: bool = True,
        today: date = TEMPLATE_DATE,
    ) -> "ChatTokenizer":
        """The tokenizer of a local Hugging Face model folder; nothing is downloaded.

        `chat_template` is a file with a Jinja template that replaces the folder's own. With `require_template=False`
        a folder without a template will do (for counting tokens). Raises UsageError for a folder or file that is
        missing or cannot be read, and for a missing template.
        """
        folder = Path(folder)
        hf = _load_hf(folder)
        template = hf.chat_template if chat_template is None else _read_template(Path(chat_template))
        if isinstance(template, dict):
            template = template.get("default")
        if template is None and thoughts.family_of(hf.get_added_vocab()) == "harmony":
            template = harmony.template()
        if template is None and require_template:
            raise UsageError(_no_template(str(folder)))
        return cls(hf, name=str(folder), template=template, eos_ids=_configured_eos(folder), today=today)

    # -- template ------------------------------------------------------------------------------------------------

    def render_text(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The template's text for messages of `role` and `content`. Raises UsageError with the template's own words."""
        if self.template is None:
            raise UsageError(_no_template(self.name))
        told = [dict(m) for m in messages]
        if self.thought_tags is harmony.TAGS:
            harmony.check(template_kwargs)
            told = harmony.with_thoughts(messages)
        try:
            text = self.hf.apply_chat_template(
                told,
                tokenize=False,
                chat_template=self.template,
                add_generation_prompt=add_generation_prompt,
                **(template_kwargs or {}),
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise UsageError(f"the chat template of {self.name} refuses this conversation: {error}") from error
        return str(text)

    def _end_of_turn(self) -> tuple[int, ...]:
        """The control token that the template writes behind an assistant's words, if there is one."""
        if self.template is None:
            return ()
        try:
            text = self.render_text(
                [{"role": "user", "content": "x"}, {"role": "assistant", "content": _MARK}], add_generation_prompt=False
            )
        except UsageError:  # a template that needs more than two plain turns says nothing about its end of turn here
            return ()
        match = self.control_re.search(text.partition(_MARK)[2])
        return () if match is None else (self.controls[match[0]].id,)

    # -- text to ids ---------------------------------------------------------------------------------------------

    def encode_plain(self, text: str) -> np.ndarray:
        """int32 [n] ids of a text on its own. No control token and no BOS can come out of it."""
        return self.encode_run(text, first=True).ids

    def count_tokens(self, text: str) -> int:
        """How many tokens a piece of content adds to a prompt, give or take the tokens at its two borders."""
        return len(self.encode_run(text, first=False).ids)

    def encode_run(self, text: str, *, first: bool, follow: str = "") -> Encoded:
        """A run of plain text between two control tokens. Cached; the arrays are read-only.

        `first`: the run begins the whole prompt. `follow` is what comes after the run (one character will do), where
        a run is encoded in pieces: the last token may depend on it.
        """
        return self._run(text, first, follow)

    def _encode_run(self, text: str, first: bool, follow: str) -> Encoded:
        if _MARK in text or _HIDDEN in text:
            raise UsageError("a text holds the private mark of the tokenizer wrapper; remove U+10FFFD from it")
        lead = "" if first else _MARK
        # JSON data can hold lone surrogates, which no tokenizer takes; one character each, so that offsets stay.
        plain = _SURROGATE.sub("\ufffd", lead + text + follow)
        encoding = self._plain.encode(plain, add_special_tokens=False)
        ids = np.asarray(encoding.ids, np.int32)
        spans = np.asarray(encoding.offsets, np.int32).reshape(-1, 2) - len(lead)
        keep = (spans[:, 0] >= 0) & (spans[:, 0] < len(text))  # neither the mark nor what follows
        encoded = Encoded(ids[keep], spans[keep, 0], np.minimum(spans[keep, 1], len(text)))
        for array in encoded:
            array.flags.writeable = False  # it is shared by everyone who asks for this run
        return encoded

    def _splits_at_line_starts(self) -> bool:
        """Whether text may be cut between a line break and an ASCII letter without changing any token.

        Byte-level tokenizers with a splitting pattern never join the two; where the pattern is unknown to us, a few
        probes decide, and anything else is encoded whole.
        """
        pre = json.dumps(json.loads(self.backend.to_str()).get("pre_tokenizer") or {})
        if '"ByteLevel"' not in pre or ('"use_regex": true' not in pre and '"Split"' not in pre):
            return False
        for left in ("word\n", "end.\n\n", "x \n \n", "12\n", "(a)\r\n", "it's\n\n\n", "\n", "é–\n", "```\n"):
            for right in ("Document 1", "a b", "The\n\n", "x"):
                cut = [*self._encode_run(left, False, right[0]).ids, *self._encode_run(right, False, "").ids]
                if cut != self._encode_run(left + right, False, "").ids.tolist():
                    return False
        return True

    # -- ids to text ---------------------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of a completion. Special tokens are left out, except those that mark thoughts."""
        return self.backend.decode([int(i) for i in ids if int(i) not in self._silent], skip_special_tokens=False)

    def decode_raw(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of ids with every control token written out, as the template would write it."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def opens_thought(self, prompt_ids: Sequence[int] | np.ndarray) -> bool:
        """Whether a prompt ends inside a thought that its template opened; `thoughts.split` wants to know."""
        return thoughts.opens_thought(self.decode_raw(prompt_ids[-16:]), self.thought_tags)

    def split_thought(self, text: str, opened_by_prompt: bool) -> thoughts.Thoughts:
        """`thoughts.split` with the tags of this tokenizer's family."""
        return thoughts.split(text, opened_by_prompt, self.thought_tags)

    def decodable_vocab(self, model_vocab_size: int) -> np.ndarray:
        """bool [V]: rows that stand for a token. Padded rows of the embedding are False and must never be sampled."""
        mask = np.zeros(model_vocab_size, bool)
        known = np.fromiter(self.backend.get_vocab(with_added_tokens=True).values(), np.int64)
        mask[known[known < model_vocab_size]] = True
        return mask


def _load_hf(folder: Path) -> "PreTrainedTokenizerFast":
    """`tokenizer.json` is taken as it stands; only a folder without one is left to AutoTokenizer to convert."""
    if not folder.is_dir():
        raise UsageError(f"no model folder at {folder}")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loader: Any = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer
    try:
        hf = loader.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"the tokenizer in {folder} cannot be read: {error}") from error
    if not getattr(hf, "is_fast", False):
        raise UsageError(f"{folder} holds a tokenizer without a fast form; save a tokenizer.json beside it")
    return hf


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"chat_template={file} cannot be read: {error}") from error


def _no_template(name: str) -> str:
    return (
        f"{name} has no chat template, so its prompts cannot be laid out; give one with chat_template=FILE "
        "(a Jinja file that writes `messages`), or use the instruction-tuned model"
    )


def _configured_eos(folder: Path) -> set[int]:
    """End-of-sequence ids of generation_config.json, or of config.json where there is none."""
    for file in (folder / "generation_config.json", folder / "config.json"):
        if file.is_file():
            try:
                eos = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
            except ValueError as error:
                raise UsageError(f"{file} is not valid JSON: {error}") from error
            return set() if eos is None else {eos} if isinstance(eos, int) else set(eos)
    return set()


def _pin_date(template: str, today: date) -> str:
    """A prompt must not change at midnight: calls for today's date become a constant."""
    call = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
    return call.sub(lambda m: json.dumps(today.strftime(m[2])), template)


def _any_of(words: Collection[str]) -> re.Pattern[str]:
    """A pattern for the longest of `words` at a place; one that never matches when there are none."""
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))) or r"(?!)")


def _is_text(token: AddedToken) -> bool:
    """Added tokens that are vocabulary, not control: runs of blanks, and plain words that are not special."""
    return token.content.isspace() or (not token.special and token.content.isalnum())


def _without_controls(backend: Tokenizer, controls: Mapping[str, Control], name: str) -> Tokenizer:
    """The tokenizer with one private mark and no BOS, its control tokens renamed to what no text holds.

    They keep their rows, so that every other id stays the same. Raises UsageError if plain text still makes one.
    """
    state = json.loads(backend.to_str())
    state.update(post_processor=None, truncation=None, padding=None)
    model = state["model"]
    unknown = model.get("unk_token")
    private = {text: f"{_HIDDEN}{i}\U0010fffc" for i, text in enumerate(controls) if text != unknown}
    state["added_tokens"] = [
        {**t, "content": private.get(t["content"], t["content"])}
        for t in state["added_tokens"]
        if t["content"] != unknown
    ]
    if model["type"] == "BPE":  # `ignore_merges` looks a whole word up before it merges: the word must not be there
        merged = {"".join(pair) for pair in model["merges"]}  # may not be renamed; the check below meets them
        model["vocab"] = {w if w in merged else private.get(w, w): i for w, i in model["vocab"].items()}
    plain = Tokenizer.from_str(json.dumps(state))
    plain.add_special_tokens([AddedToken(_MARK, normalized=False, special=True)])
    control_ids = {controls[text].id for text in private}
    for text in controls:
        if control_ids.intersection(plain.encode(text, add_special_tokens=False).ids):
            raise UsageError(f"the tokenizer of {name} turns the plain text {text!r} into a control token")
    return plain
