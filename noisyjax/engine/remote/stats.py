"""What a remote run took: calls, retries, tokens, dollars."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from noisyjax.engine.remote.config import Price
from noisyjax.engine.remote.wire import Usage


@dataclass
class Stats:
    """Running totals, written by the event loop's thread only. Calls that failed are not in the token counts."""

    price: Price | None = None
    calls: int = 0
    answers: int = 0
    errors: int = 0
    over_length: int = 0
    filtered: int = 0
    without_usage: int = 0
    """Answers that state no token counts; their tokens and cost are missing below."""
    retries: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    warnings: list[str] = field(default_factory=list)

    def count(self, usage: Usage | None) -> float | None:
        """Count one answer; its cost in dollars, None when its tokens or the model's price are unknown."""
        self.answers += 1
        if usage is None:
            self.without_usage += 1
            return None
        self.prompt_tokens += usage.prompt
        self.completion_tokens += usage.completion
        self.cached_tokens += usage.cached
        self.reasoning_tokens += usage.reasoning
        if self.price is None:
            return None
        cost = self.price.cost(usage.prompt, usage.completion, usage.cached)
        self.cost_usd += cost
        return cost

    def snapshot(self) -> dict[str, Any]:
        """The totals as plain data. `cost_usd` is None without a price, and covers priced answers only."""
        names = ("calls", "answers", "errors", "over_length", "filtered", "without_usage")
        tokens = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
        return {
            **{name: getattr(self, name) for name in (*names, *tokens)},
            "retries": dict(sorted(self.retries.items())),
            "cost_usd": None if self.price is None else self.cost_usd,
            "warnings": list(self.warnings),
        }
