"""What a person may say about an endpoint, and what its tokens cost."""

import os
import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, RootModel, field_validator

from noisyjax.config import Schema, load
from noisyjax.errors import UsageError

_ANY: dict[str, Any] = {"affects_results": False}


class Price(Schema):
    """US dollars per million tokens. `cached_input` is what a cache hit costs; the full input price when absent."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Dollars for one call. `prompt_tokens` includes the cached ones, as endpoints count them."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh_tokens = prompt_tokens - cached_tokens
        return (fresh_tokens * self.input + cached_tokens * cached + completion_tokens * self.output) / 1e6


class PriceTable(RootModel[dict[str, Price]]):
    """Model name, as the endpoint spells it -> price."""

    model_config = ConfigDict(frozen=True)


class RemoteConfig(Schema):
    """An OpenAI-compatible chat endpoint. The key itself never stands in a config: `api_key_env` names where it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kind: Literal["remote"] = "remote"
    base_url: str = Field(json_schema_extra=_ANY)
    """Up to and including the version, e.g. `http://localhost:8000/v1`. Who answers there is told by `model`, so that
    a run can go on when an endpoint has moved."""
    model: str
    """As the endpoint names it."""
    api_key_env: str | None = Field(default=None, json_schema_extra=_ANY)
    """Name of the environment variable that holds the key; none for an endpoint that wants no key."""

    concurrency: int = Field(default=8, ge=1, le=512, json_schema_extra=_ANY)
    """Calls in flight at once."""
    timeout_s: float = Field(default=600.0, gt=0, json_schema_extra=_ANY)
    """Seconds until a call without a whole answer counts as stalled."""
    max_retries: int = Field(default=8, ge=0, json_schema_extra=_ANY)
    """Further tries after a first one that met 429, 5xx, a stall, a cut or an invalid body."""
    backoff_s: float = Field(default=1.0, gt=0, json_schema_extra=_ANY)
    """Wait before the first retry; it doubles from retry to retry."""
    backoff_cap_s: float = Field(default=60.0, gt=0, json_schema_extra=_ANY)
    """Longest wait of our own making; a longer one is obeyed when the endpoint asks for it (`Retry-After`)."""
    patience_s: float = Field(default=600.0, gt=0, json_schema_extra=_ANY)
    """An endpoint that asks for a longer wait than this ends the run, with the advice to resume later."""
    outage_s: float = Field(default=120.0, gt=0, json_schema_extra=_ANY)
    """How long an endpoint that has answered before may refuse connections until the run ends."""
    first_contact_s: float = Field(default=10.0, gt=0, json_schema_extra=_ANY)
    """The same for an endpoint that has never answered: a wrong address should not cost minutes."""
    give_up_after: int = Field(default=16, ge=1, json_schema_extra=_ANY)
    """So many samples lost in a row, none answered between them, end the run."""

    logprobs: bool = False
    """Ask for the log-probability of each token. Their temperature is the endpoint's choice."""
    top_logprobs: int = Field(default=0, ge=0, le=20)
    """Ask for so many alternatives per token; implies `logprobs`."""
    reasoning_effort: str | None = None
    """`low`, `medium`, `high`, or what else the endpoint knows."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Merged into each call's body last, e.g. `{chat_template_kwargs: {enable_thinking: false}}`."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    omit: tuple[str, ...] = ()
    """Body fields this endpoint does not take, e.g. `[seed, temperature]`."""
    send_stream: bool = False
    """For noisyjax's own server: send (seed, step, key, sample), so that it draws the tokens a direct run draws."""
    prices: str | None = Field(default=None, json_schema_extra=_ANY)
    """A price table: a YAML file, or the name of a packaged one. Without it costs are unknown, not zero."""

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("base_url must begin with http:// or https:// and name a host")
        if parts.username or parts.password or parts.query:
            raise ValueError("base_url must not hold credentials or a query: name the key in api_key_env")
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _a_name(cls, value: str | None) -> str | None:
        # A pasted key must be caught here, and must not be repeated by the message.
        if value is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
            raise ValueError("api_key_env is the name of an environment variable, such as OPENAI_API_KEY, not the key")
        return value

    def api_key(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """The key from the environment; None when none is wanted. UsageError when the variable is not set."""
        if self.api_key_env is None:
            return None
        key = environ.get(self.api_key_env, "").strip()
        if not key:
            raise UsageError(f"the environment variable {self.api_key_env} is not set; it must hold the endpoint's key")
        return key

    def price(self) -> Price | None:
        """The model's price from the table; None when there is no table or the model is not in it."""
        return load(PriceTable, self.prices).root.get(self.model) if self.prices else None
