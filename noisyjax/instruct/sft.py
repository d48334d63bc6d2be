"""Examples for SFT: token ids and which of them are learnt. Loss is on what the assistant says, and nowhere else.

Legend: T tokens of the example.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from noisyjax.chat import ChatTokenizer, render
from noisyjax.chat.render import Rendered
from noisyjax.errors import UsageError
from noisyjax.instruct.prompt import fit_record, noise_notes, record_messages, too_long
from noisyjax.instruct.record import ChatRecord, InstructRecord
from noisyjax.instruct.schema import PromptConfig, TargetConfig
from noisyjax.instruct.stream import Kept, Left
from noisyjax.records import Label, Message, Part, Unit


class SftExample(NamedTuple):
    """ids: int32 [T], those of the chat template; target: bool [T], True where the token is to be predicted.

    A turn's targets run from the first token behind the prompt that asks for it to its end-of-turn token. target[0]
    is never True: nothing stands before it to predict it from.
    """

    ids: np.ndarray
    target: np.ndarray


def sft_example(
    tokenizer: ChatTokenizer, messages: Sequence[Message], template_kwargs: Mapping[str, Any] | None = None
) -> SftExample:
    """A conversation with its assistant's own turns (parts labelled GENERATED) as targets; others' turns are context.

    Raises UsageError for a conversation without such a turn, and for a template that leaves out what the last of
    them is to teach (some take thoughts out of every turn).
    """
    whole = render(tokenizer, messages, add_generation_prompt=False, template_kwargs=template_kwargs)
    target = np.zeros(len(whole.ids), bool)
    own = [k for k, m in enumerate(messages) if _is_own(m)]
    if not own:
        raise UsageError("no turn of the assistant to learn")
    firsts = np.cumsum([0, *(len(m.parts) for m in messages)])  # index of each message's first part
    for k in own:
        before = render(tokenizer, messages[:k], template_kwargs=template_kwargs)
        # Where the template begins the turn otherwise than it asks for it, the turn begins where the two part.
        start = max(_common(whole.ids, before.ids), 1)
        inside = np.flatnonzero((whole.part_of >= firsts[k]) & (whole.part_of < firsts[k + 1]))
        if not len(inside):
            raise UsageError(f"the chat template of {tokenizer.name} leaves a whole turn of the assistant out")
        target[start : _end_of_turn(tokenizer, whole, int(inside[-1]))] = True
        if k == own[-1]:
            at = len(before.text) if whole.text.startswith(before.text) else 0
            _check_thought(tokenizer, messages[k], whole.text[at:])
    return SftExample(whole.ids, target)


def _is_own(message: Message) -> bool:
    return message.role == "assistant" and all(part.label is Label.GENERATED for part in message.parts)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the prefix that two rows of ids share."""
    n = min(len(a), len(b))
    return int(np.argmin(np.append(a[:n] == b[:n], False)))


def _end_of_turn(tokenizer: ChatTokenizer, whole: Rendered, last: int) -> int:
    """One past the token that ends the turn whose last own token is `last`, which is learnt too."""
    behind = whole.part_of[last + 1 :] >= 0
    n = int(np.argmax(behind)) if behind.any() else len(behind)  # template tokens up to the next content
    ends = np.flatnonzero(np.isin(whole.ids[last + 1 : last + 1 + n], tokenizer.stop_ids))
    return last + 1 + (int(ends[0]) + 1 if len(ends) else 0)


def _check_thought(tokenizer: ChatTokenizer, message: Message, rendered: str) -> None:
    thought = tokenizer.split_thought(message.content, False).thought.strip()
    if thought not in rendered:
        raise UsageError(
            f"the chat template of {tokenizer.name} takes the thought out of the answer that is to be learnt; "
            "give a template that keeps it with chat_template=FILE, or use target.form=reference"
        )


# -- from records -----------------------------------------------------------------------------------------------------


def target_text(tokenizer: ChatTokenizer, record: InstructRecord, form: str) -> str | None:
    """What the model shall say; None for a record without the hint that the form needs."""
    if form == "answer":
        return record.answers[0]
    if record.hint is None:
        return None
    reference = f"<reference>{record.hint}</reference>"
    if form == "reference":
        return f"{reference}\n\n{record.answers[0]}"
    thought = reference if record.working is None else f"{reference}\n{record.working}"
    return tokenizer.thought_tags.written(thought, record.answers[0])


def record_example_maker(
    tokenizer: ChatTokenizer, prompt: PromptConfig, target: TargetConfig
) -> Callable[[InstructRecord], Kept[SftExample] | Left]:
    """What a stream of examples makes of a NoisyInstruct record: its prompt and the target behind it.

    `target.max_tokens` is the limit, `prompt.max_prompt_tokens` is GRPO's.
    """

    def make(record: InstructRecord) -> Kept[SftExample] | Left:
        text = target_text(tokenizer, record, target.form)
        if text is None:
            return Left("no_hint")

        def messages(units: Sequence[Unit]) -> tuple[Message, ...]:
            return (*record_messages(record, prompt, units), _said(text))

        whole = fit_record(
            tokenizer,
            record,
            messages,
            limit=target.max_tokens,
            template_kwargs=prompt.template_kwargs,
            add_generation_prompt=False,
        )
        left = too_long(whole, prompt)
        return left or Kept(sft_example(tokenizer, whole.messages, prompt.template_kwargs), noise_notes(whole))

    return make


def chat_example_maker(
    tokenizer: ChatTokenizer, prompt: PromptConfig, target: TargetConfig
) -> Callable[[ChatRecord], Kept[SftExample] | Left]:
    """What a stream of examples makes of a conversation; one that is too long is left out, not cut."""

    def make(record: ChatRecord) -> Kept[SftExample] | Left:
        example = sft_example(tokenizer, chat_messages(record), prompt.template_kwargs)
        if target.max_tokens is not None and len(example.ids) > target.max_tokens:
            return Left("over_length")
        return Kept(example)

    return make


def chat_messages(record: ChatRecord) -> tuple[Message, ...]:
    """The conversation with its assistant turns labelled as the model's own."""
    labels = {"system": Label.SYSTEM, "user": Label.QUESTION, "assistant": Label.GENERATED}
    return tuple(Message(role, (Part(text, labels[role]),)) for role, text in record.messages)


def _said(text: str) -> Message:
    return Message("assistant", (Part(text, Label.GENERATED),))
