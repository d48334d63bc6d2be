"""Faults on purpose: which calls fail, and how. A function of the call's body and of how often it was seen, so that a
run against a fresh server meets the same faults whatever the order of its calls."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field

FAULTS = ("rate_limit", "server_error", "stall", "cut_body", "invalid_json")
"""429 with Retry-After; 500; no answer until the client gives up; half the announced bytes; 200 with half a JSON."""


@dataclass(frozen=True)
class FaultPlan:
    """A share `rate` of the calls fails, in one of `kinds`, drawn by `seed`.

    `most` bounds the failures of one and the same body in a row, so that a client with more retries always succeeds.
    """

    rate: float = 0.0
    seed: int = 0
    kinds: tuple[str, ...] = FAULTS
    most: int = 4
    retry_after_s: float = 1.0
    stall_s: float = 3600.0

    def pick(self, digest: str, attempt: int) -> str | None:
        """The fault of attempt number `attempt` (from 0) at the body with this digest, None when it is to succeed."""
        if attempt % (self.most + 1) == self.most:
            return None
        draw = hashlib.sha256(f"{self.seed}:{digest}:{attempt}".encode()).digest()
        if int.from_bytes(draw[:8], "big") / 2**64 >= self.rate:
            return None
        return self.kinds[int.from_bytes(draw[8:16], "big") % len(self.kinds)]


@dataclass
class Counts:
    """What the server has seen; `GET /counts` shows it."""

    calls: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    """Digest of a body -> how often it came."""

    def enter(self, digest: str) -> int:
        """Count a call in; the attempt's number for this body, from 0."""
        self.calls += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        attempt = self.attempts[digest]
        self.attempts[digest] += 1
        return attempt

    def leave(self) -> None:
        self.in_flight -= 1

    def snapshot(self) -> dict[str, object]:
        return {
            "calls": self.calls,
            "bodies": len(self.attempts),
            "in_flight": self.in_flight,
            "most_in_flight": self.most_in_flight,
            "faults": dict(sorted(self.faults.items())),
        }
