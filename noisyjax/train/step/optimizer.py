"""AdamW with a schedule, from a config."""

from collections.abc import Mapping
from typing import Any

import optax

from noisyjax.train.step.config import OptimizerConfig


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
