"""Stop strings, found while tokens arrive: a stop may begin in one token and end in another, or inside one."""

from collections.abc import Iterable, Sequence

from noisyjax.chat.thoughts import ThoughtState, split
from noisyjax.chat.tokenizer import ChatTokenizer

_MAX_PENDING = 16
"""Tokens held back while they end in half a character; no character takes more than four bytes."""


class StopFinder:
    """Decodes one completion as it grows and says after which token a stop string is complete.

    A stop string inside a thought does not count (a blank line there ends nothing). `opened_by_prompt`: the prompt
    ends with an opening thought tag. `text` never holds half a character.
    """

    def __init__(self, tokenizer: ChatTokenizer, stop: Sequence[str], opened_by_prompt: bool = False) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(s for s in stop if s)
        self._opened = opened_by_prompt
        self._ids: list[int] = []
        self._prefix = 0  # tokens from here on are decoded again, so that spaces and half characters come out right
        self._read = 0  # tokens whose text is out
        self._searched = 0
        self._length: int | None = None
        self.text = ""

    @property
    def stopped(self) -> bool:
        return self._length is not None

    def push(self, ids: Iterable[int]) -> int | None:
        """Take new token ids. The number of tokens to keep, from the first, once a stop string is complete.

        The token that completes the stop is kept, what comes after it is not read; `text` then ends before the stop.
        None as long as there is no stop.
        """
        for token in ids:
            if self._length is not None:
                break
            self._ids.append(int(token))
            fresh = self._fresh_text()
            if fresh:
                self.text += fresh
                self._search()
        return self._length

    def finish(self) -> str:
        """The completion's whole text, before the stop if there was one; half a character at the end included."""
        return self.text if self.stopped else self._tokenizer.decode(self._ids)

    def _fresh_text(self) -> str:
        before = self._tokenizer.decode(self._ids[self._prefix : self._read])
        now = self._tokenizer.decode(self._ids[self._prefix :])
        if now.endswith("�") and len(self._ids) - self._read < _MAX_PENDING:
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _search(self) -> None:
        longest = max(map(len, self._stop), default=0)
        while self._stop:
            hits = [at for s in self._stop if (at := self.text.find(s, self._searched)) >= 0]
            if not hits:
                self._searched = max(self._searched, len(self.text) - longest + 1)
                return
            at = min(hits)
            tags = self._tokenizer.thought_tags
            if split(self.text[:at], self._opened, tags).state is not ThoughtState.OPEN:
                self.text, self._length = self.text[:at], len(self._ids)
                return
            self._searched = at + 1
