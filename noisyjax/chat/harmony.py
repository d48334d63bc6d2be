"""Harmony, the chat format of gpt-oss, where it differs from others: its thoughts have a field of their own in a
template's messages, its end tokens say why a turn ends, and how much it thinks is one of three words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noisyjax.chat.thoughts import FAMILIES, ThoughtState, split
from noisyjax.errors import UsageError, nearest

TAGS = FAMILIES["harmony"]
STOPS = ("<|return|>", "<|call|>")
"""The turn is done, or a tool is called. `<|end|>` ends a message only: the answer comes after the thought's."""
EFFORTS = ("low", "medium", "high")


def template() -> str:
    """For folders that have none. Writes what OpenAI's own package writes, which a test checks."""
    return (Path(__file__).parent / "harmony.jinja").read_text(encoding="utf-8")


def with_thoughts(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The messages as harmony's templates want them: a thought apart, not in channels within the content."""
    return [_with_thought(message) if message["role"] == "assistant" else dict(message) for message in messages]


def _with_thought(message: Mapping[str, str]) -> dict[str, str]:
    said = split(message["content"], tags=TAGS)
    if said.state is not ThoughtState.CLOSED or said.answer is None:
        return dict(message)
    return {**message, "content": said.answer, **({"thinking": said.thought} if said.thought else {})}


def check(template_kwargs: Mapping[str, Any] | None) -> None:
    """UsageError for a reasoning effort that no gpt-oss was taught: its template would write any word."""
    effort = (template_kwargs or {}).get("reasoning_effort", EFFORTS[0])
    if effort not in EFFORTS:
        raise UsageError(f"template_kwargs.reasoning_effort={effort!r}: {nearest(str(effort), EFFORTS)}")
