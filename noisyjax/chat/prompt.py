"""From labelled messages to a `NoisyPrompt` that keeps to a limit: the entry that the other rooms use."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from noisyjax.chat.render import Rendered, render
from noisyjax.chat.tokenizer import ChatTokenizer
from noisyjax.records import Label, Message, NoisyPrompt

BYTES_PER_TOKEN = 3.5
TOKENS_PER_MESSAGE = 6
"""Stand-ins for an endpoint whose tokenizer is unknown. Current vocabularies take 4 to 4.5 UTF-8 bytes of English a
token and about 3.5 of other text; the lower figure errs towards shorter prompts. A turn costs its role and markers."""


def estimate_tokens(text: str) -> int:
    """Tokens of a text without a tokenizer: one for every 3.5 UTF-8 bytes, rounded up."""
    return math.ceil(len(text.encode("utf-8", errors="surrogatepass")) / BYTES_PER_TOKEN)


def build_prompt(
    tokenizer: ChatTokenizer | None,
    messages: Sequence[Message],
    *,
    dataset: str,
    question_id: str,
    setting: str,
    limit: int | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    count: Callable[[str], int] = estimate_tokens,
    dropped: Sequence[str] = (),
    choices: tuple[str, ...] = (),
    gold: str = "",
) -> NoisyPrompt:
    """Render messages and keep the prompt within `limit` tokens by dropping whole distractor units from the end.

    A unit is every part with label DISTRACTOR and the same unit id; a message that loses all its parts goes with
    them. Question, evidence, hint, system and template are never touched: where they alone exceed the limit, the
    prompt comes back without any unit and with `over_length` set, and nothing may be generated from it.

    `tokenizer` None is for endpoints: ids and labels are empty and lengths come from `count` (an estimate, or
    `count_tokens` of a tokenizer that is near enough), with an allowance per message. `dropped` names units that the
    caller has left out already; they are reported with those dropped here.
    """

    units = unit_ids(messages)

    def with_first(n: int) -> tuple[tuple[Message, ...], Rendered | None, int]:
        """The conversation with its first `n` units, rendered, and its length in tokens."""
        kept = without_units(messages, units[n:])
        if tokenizer is None:
            return kept, None, _estimate(kept, count)
        rendered = render(tokenizer, kept, add_generation_prompt=add_generation_prompt, template_kwargs=template_kwargs)
        return kept, rendered, len(rendered.ids)

    # A unit's cost includes what the template writes round it, so lengths are taken from whole renderings.
    keep = len(units)
    best = with_first(keep)
    if limit is not None and best[2] > limit and units:
        keep = max(bisect_right(range(keep), limit, key=lambda n: with_first(n)[2]) - 1, 0)
        best = with_first(keep)
    kept, rendered, total = best
    return NoisyPrompt(
        dataset=dataset,
        question_id=question_id,
        setting=setting,
        messages=kept,
        ids=np.zeros(0, np.int32) if rendered is None else rendered.ids,
        labels=np.zeros(0, np.uint8) if rendered is None else rendered.labels,
        units=units[:keep],
        dropped=(*units[keep:], *dropped),
        over_length=limit is not None and total > limit,
        choices=choices,
        gold=gold,
    )


def unit_ids(messages: Sequence[Message]) -> tuple[str, ...]:
    """Ids of the distractor units of a conversation, in the order in which they first appear."""
    parts = (p for m in messages for p in m.parts)
    return tuple(dict.fromkeys(p.unit for p in parts if p.label is Label.DISTRACTOR and p.unit is not None))


def without_units(messages: Sequence[Message], units: Sequence[str]) -> tuple[Message, ...]:
    """The messages without the distractor parts of these units, and without messages that held nothing else."""
    out = []
    for message in messages:
        parts = tuple(p for p in message.parts if not (p.label is Label.DISTRACTOR and p.unit in units))
        if parts or not message.parts:
            out.append(replace(message, parts=parts))
    return tuple(out)


def _estimate(messages: Sequence[Message], count: Callable[[str], int]) -> int:
    return sum(TOKENS_PER_MESSAGE + sum(count(part.text) for part in message.parts) for message in messages)
