"""AdamW with a schedule, from a config."""

from collections.abc import Mapping
from typing import Any, Literal

import optax
from pydantic import Field

from noisyjax.config import Schema


class OptimizerConfig(Schema):
    """AdamW (arXiv 1711.05101). The defaults are those of VeRL's GRPO recipes."""

    learning_rate: float = Field(default=1e-6, ge=0)
    """The peak, reached after the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """From the peak down to `final` at the last step."""
    warmup: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps over which the rate rises linearly from near zero."""
    final: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end as a share of the peak."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    """On matrices; never on norm scales and biases."""
    clip: float | None = Field(default=1.0, gt=0)
    """Largest global norm of the gradient; null: not clipped."""


def learning_rate(cfg: OptimizerConfig, steps: int) -> optax.Schedule:
    """Number of updates made so far -> rate of the next one. `steps` is the number of updates of the whole run."""
    warm = round(cfg.warmup * steps)
    peak, rest = cfg.learning_rate, max(1, steps - warm)
    after = {
        "constant": lambda: optax.constant_schedule(peak),
        "linear": lambda: optax.linear_schedule(peak, peak * cfg.final, rest),
        "cosine": lambda: optax.cosine_decay_schedule(peak, rest, cfg.final),
    }[cfg.schedule]()
    if not warm:
        return after
    # The first update has a small rate, not none: a step of rate 0 is a step thrown away.
    return optax.join_schedules([optax.linear_schedule(peak / (warm + 1), peak, warm), after], [warm])


def decays(params: Mapping[str, Any]) -> dict[str, bool]:
    """Path -> whether weight decay acts on that parameter: on all but norm scales and biases."""
    return {path: ".scale_" not in path and "_bias_" not in path for path in params}


def optimizer(cfg: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clipping, then AdamW, for parameters as {path: array}. A run of other `steps` has another schedule."""
    adamw = optax.adamw(
        learning_rate(cfg, steps),
        b1=cfg.beta1,
        b2=cfg.beta2,
        eps=cfg.epsilon,
        weight_decay=cfg.weight_decay,
        mask=decays,
    )
    return adamw if cfg.clip is None else optax.chain(optax.clip_by_global_norm(cfg.clip), adamw)
