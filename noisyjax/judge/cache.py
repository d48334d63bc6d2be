"""Verdicts that were paid for once are not asked for again: one line per verdict, appended and made durable at once."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from noisyjax.errors import RunError
from noisyjax.records import Verdict
from noisyjax.store.folder import Log


def verdict_key(judge: str, question: str, answers: Sequence[str], candidate: str) -> str:
    """64 hexadecimal digits that stand for what was asked of whom."""
    return hashlib.sha256(json.dumps([judge, question, list(answers), candidate]).encode()).hexdigest()


class VerdictCache:
    """Key -> Verdict over a `Log` (`open_folder(folder).log("judge")`). Unread verdicts are never kept.

    The log drops a half-written last line itself; any other line that cannot be read is a RunError.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[str, Verdict] = {}
        for number, line in enumerate(log.lines(), start=1):
            try:
                record = json.loads(line)
                key = record.pop("key")
                self._known[key] = Verdict(**record)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise RunError(
                    f"line {number} of the judge's cache cannot be read; delete that line and run again"
                ) from None

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Verdict | None:
        return self._known.get(key)

    def put(self, key: str, verdict: Verdict) -> None:
        """Durable when it returns. A verdict without a value is absent, and stays so."""
        if verdict.value is None:
            return
        self._known[key] = verdict
        self._log.put(json.dumps({"key": key, **asdict(verdict)}, sort_keys=True).encode() + b"\n")
        self._log.flush()
