"""What a person may say about advantages and losses. No jax here: a config is read in a moment."""

from typing import Literal, Self

from pydantic import Field, model_validator

from noisyjax.config import Schema
from noisyjax.train.objective.weights import Aggregation

Estimator = Literal["k1", "k2", "k3", "k1+", "k3+"]


class AdvantageConfig(Schema):
    """How the rewards of a group become advantages."""

    scale: Literal["std", "none"] = "std"
    """std: divide by the group's standard deviation (GRPO). none: only subtract the mean (Dr.GRPO)."""
    ddof: Literal[0, 1] = 1
    """Divisor of the variance: group size minus this. 1 in VeRL, TRL and Tunix."""
    eps: float = Field(default=1e-6, ge=0)
    """Added to the standard deviation: 1e-6 in VeRL and Tunix, 1e-4 in TRL."""
    per_component: bool = False
    """Normalise each reward component in its group, add them by weight, then divide by the batch's standard deviation
    (GDPO, arXiv 2601.05242). Otherwise the weighted sum is normalised."""
    flat_groups: Literal["keep", "drop"] = "keep"
    """Groups without any advantage (all rewards equal, or fewer than two defined). keep: their tokens stay in the
    denominators and feel the KL term (GRPO). drop: they leave the loss."""
    undefined: Literal["keep", "drop"] = "keep"
    """Samples with an undefined reward, in groups that have advantages: keep them in the loss with advantage 0, or drop
    them from it."""
    overlong_buffer: int = Field(default=0, ge=0)
    """Tokens before the response limit over which the soft overlong penalty grows from 0 to -1 (DAPO); 0 is off."""
    overlong_factor: float = Field(default=1.0, ge=0)
    """Weight of that penalty."""

    @model_validator(mode="after")
    def _component_needs_std(self) -> Self:
        if self.per_component and self.scale != "std":
            raise ValueError("per_component: true needs scale: std; without it the components would simply be summed")
        return self


class LossConfig(Schema):
    """The policy loss. Defaults: GRPO with one update per batch and no KL term."""

    aggregation: Aggregation = "seq-mean-token-mean"
    """From token losses to one number: token-mean (DAPO), seq-mean-token-mean (GRPO), seq-mean-token-sum,
    seq-mean-token-sum-norm (Dr.GRPO)."""
    mask_truncated: bool = False
    """Leave responses that hit the length limit out of the loss and of its denominators."""
    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio of a token, or of its whole response: the geometric mean (GSPO, arXiv 2507.18071)."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at 1 minus this."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio is clipped above at 1 plus this; 0.28 in DAPO's clip-higher."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Where the advantage is negative, the loss is at most this times |advantage| (arXiv 1912.09729). null is off, as
    in TRL and Tunix; 3 in VeRL."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL term; above 0 it needs a reference model."""
    kl: Estimator = "k3"
    """Estimator of KL(policy || reference). As a loss, k1 has no expected gradient and k3 that of the KL the other way
    round; k2 has the right one, and k1+ and k3+ show the value of k1 and k3 with the gradient of k2."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add beta times KL to every token's loss, or subtract beta times its sum from the response's reward."""
    kl_importance: bool = False
    """Multiply the KL term by the ratio, gradient included: unbiased off the old policy's samples, and on them the
    right gradient for k1 and k3."""
    correction: Literal["none", "token", "sequence", "sequence_mask"] = "none"
    """Truncated importance sampling against the difference between sampler and trainer: weigh the policy term by
    min(trainer / sampler, cap), by token or by the product over the response; sequence_mask drops the responses
    whose product is above the cap instead of capping them (TRL)."""
    correction_cap: float = Field(default=2.0, gt=0)
    """The cap: 2 in VeRL and Tunix, 3 in TRL."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    entropy_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the batch's tokens, by the sampler's entropy, on which the policy term acts; 0.2 in arXiv 2506.01939."""

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.ratio == "sequence" and self.aggregation != "seq-mean-token-mean":
            raise ValueError(
                f"ratio: sequence is defined with aggregation: seq-mean-token-mean; got {self.aggregation!r}, "
                "which would weigh a response by its length a second time"
            )
        if self.kl_in == "reward" and (self.kl.endswith("+") or self.kl_importance):
            raise ValueError("kl_in: reward has no gradient to correct: use kl k1, k2 or k3 without kl_importance")
        if self.kl_importance and self.kl not in ("k1", "k3"):
            raise ValueError(f"kl_importance: true corrects the gradient of k1 and k3; kl {self.kl!r} needs none")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether reference log-probabilities must be computed."""
        return self.beta > 0
