"""Random chat histories, from WildChat's layout or from MT-Bench-101's (the stand-in that may be passed on).

WildChat (allenai/WildChat-1M): `{conversation_hash, language, toxic, redacted, conversation: [{role, content}]}`.
MT-Bench-101: `{task, id, history: [{user, bot}]}`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from noisyjax.bench.questions.rows import BadRows, Row
from noisyjax.bench.readers.base import BadRowError, need, need_list, need_text
from noisyjax.bench.seeds import content_id
from noisyjax.records import Unit

Exchange = tuple[str, str]


@dataclass(frozen=True)
class ChatFilter:
    """Which histories to take: English, neither toxic nor redacted, from `min_turns` to `max_turns` exchanges."""

    language: str = "English"
    min_turns: int = 2
    max_turns: int = 10

    def allows(self, data: Mapping[str, Any], exchanges: list[Exchange]) -> bool:
        if data.get("language", self.language) != self.language or data.get("toxic") or data.get("redacted"):
            return False
        return self.min_turns <= len(exchanges) <= self.max_turns


def read_chats(rows: Iterable[Row], bad: BadRows, keep: ChatFilter) -> list[tuple[Unit, ...]]:
    """RC groups, one per history, one unit per exchange; equal histories once, in the order of ids."""
    found: dict[str, tuple[Unit, ...]] = {}
    for row in rows:
        try:
            name, exchanges = _history(row.data)
        except BadRowError as error:
            bad.report(row.where, str(error))
            continue
        if keep.allows(row.data, exchanges):
            # The same hash may stand on several rows (a conversation that was continued), so content is part of it.
            identity = f"rc-{name}-{content_id(*(text for pair in exchanges for text in pair))[:6]}"
            found[identity] = tuple(_unit(f"{identity}/{i}", pair) for i, pair in enumerate(exchanges))
    return [found[identity] for identity in sorted(found)]


def _history(data: Mapping[str, Any]) -> tuple[str, list[Exchange]]:
    if "conversation" in data:
        name = str(data.get("conversation_hash") or "wildchat")[:12]
        return name, _alternating(need_list(data, "conversation"))
    exchanges = [(need_text(turn, "user"), need_text(turn, "bot")) for turn in _objects(need_list(data, "history"))]
    return f"mtbench101-{need(data, 'id')}", exchanges


def _alternating(turns: list[Any]) -> list[Exchange]:
    """(user, assistant) pairs. WildChat's turns alternate; an answer that is blank or missing ends the history."""
    exchanges = []
    for user, assistant in zip(_objects(turns[0::2]), _objects(turns[1::2]), strict=False):
        if user.get("role") != "user" or assistant.get("role") != "assistant":
            raise BadRowError("turns must go user, assistant, user, ...")
        if not str(user.get("content") or "").strip() or not str(assistant.get("content") or "").strip():
            break
        exchanges.append((str(user["content"]), str(assistant["content"])))
    return exchanges


def _objects(turns: list[Any]) -> list[Mapping[str, Any]]:
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise BadRowError(f"a turn must be an object, found {turn!r:.60}")
    return turns


def _unit(identity: str, exchange: Exchange) -> Unit:
    user, assistant = exchange
    return Unit(
        id=identity,
        kind="RC",
        text=f"User: {user}\nAssistant: {assistant}",
        turns=(("user", user), ("assistant", assistant)),
    )
