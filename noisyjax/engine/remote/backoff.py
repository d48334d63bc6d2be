"""How long to wait before a retry: doubling, with jitter that depends on names only, so that a run can be repeated."""

import email.utils
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime


def unit(*parts: object) -> float:
    """A number in [0, 1) that is a function of `parts`, equal on every host and Python."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def delay(attempt: int, key: str, *, base_s: float, cap_s: float, asked_s: float | None = None) -> float:
    """Seconds to wait after failed attempt number `attempt` (from 0) of the call named `key`.

    Half of the doubled, capped wait is fixed and half is jitter. A wait the endpoint asked for is never undercut;
    the jitter is then added to it, so that the calls it turned away do not return all at once.
    """
    full = min(cap_s, base_s * 2.0 ** min(attempt, 60))
    own = full * (0.5 + 0.5 * unit("backoff", key, attempt))
    return own if asked_s is None else max(own, asked_s + 0.5 * base_s * unit("asked", key, attempt))


def asked_wait(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that the answer's headers ask for (RFC 9110 section 10.2.3, or `retry-after-ms`), None when they do not.

    `headers` are looked up in lower case. A date in the past is 0; an unreadable value is None.
    """
    millis = _number(headers.get("retry-after-ms"))
    if millis is not None:
        return millis / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        when = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
