"""What a person may say about an update: its optimizer, its cost, its adapter. No jax here, as in all configs."""

from typing import Any, Literal

from pydantic import Field

from noisyjax.config import Schema

_FREE: dict[str, Any] = {"affects_results": False}

Remat = Literal["none", "dots", "full"]
"""`models.decoder.Remat`, which cannot be imported without jax."""

Target = Literal["q", "k", "v", "o", "gate", "up", "down"]
"""Names of `models.lora.TARGETS`."""


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


class UpdateConfig(Schema):
    """How an update is computed. Only the router's coefficient changes what is learned, rounding apart."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and of the weights that they meet. The master weights and the optimizer are float32 always."""
    remat: Remat = Field(default="dots", json_schema_extra=_FREE)
    """What a layer keeps for its backward pass: all; the results of weight products and of attention; its input.
    Keeping all is the slowest of them on the CPU, where memory is what limits."""
    row_tokens: int = Field(default=8192, ge=8, json_schema_extra=_FREE)
    """Longest training row. A prompt with one response must fit; with all of them it is stored once."""
    batch_tokens: int = Field(default=32768, ge=8, json_schema_extra=_FREE)
    """Tokens of a micro-batch, padding included: what bounds the memory of an update."""
    pack: bool = Field(default=True, json_schema_extra=_FREE)
    """Several prompts in one row."""
    share: bool = Field(default=True, json_schema_extra=_FREE)
    """One copy of a prompt for all its responses. Off only for comparisons."""
    attention: Literal["auto", "blockwise", "splash"] = Field(default="auto", json_schema_extra=_FREE)
    """splash: JAX's kernel for TPUs, for which prompts and responses lie in slots of 128 tokens; on a CPU it is
    interpreted, which takes very long. blockwise: the same in plain XLA. auto: splash where the devices are TPUs."""
    router_aux_coefficient: float | None = Field(default=None, ge=0)
    """For mixtures of experts: weight of the router's auxiliary loss, which pulls the experts' shares of the batch's
    tokens towards each other. Above 0 it costs one more forward pass. null: in SFT what the model's config asks for
    (`router_aux_loss_coef`, if `output_router_logits` is on), in GRPO 0."""

    def slotted(self, platform: str) -> bool:
        """Are rows laid in slots for the attention kernel, on devices of this platform ("cpu", "tpu")?"""
        return self.attention == "splash" or (self.attention == "auto" and platform == "tpu")


class LoraConfig(Schema):
    """Train an adapter beside a frozen model (LoRA, arXiv 2106.09685), not the model itself."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's product is scaled by alpha / rank."""
    targets: tuple[Target, ...] = Field(default=("q", "k", "v", "o", "gate", "up", "down"), min_length=1)
    """The projections that get one."""

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank
