"""Known models, `configs/models/presets`: where they are published, what they are made of, how their makers sample.

A preset needs no weights: plans and memory estimates are made from its architecture alone.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from noisyjax.config.loader import Schema

if TYPE_CHECKING:  # it imports jax, and a preset is read in a moment
    from noisyjax.models import ModelConfig


class PresetSampling(Schema):
    """What the model's makers recommend."""

    temperature: float = Field(ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 is off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """0 is off."""


class ModelPreset(Schema):
    """A published model; `config.load(ModelPreset, "Qwen3-4B")`."""

    hub: str
    """Its name on the Hugging Face hub, `maker/model`."""
    revision: str = "main"
    """A commit or tag there; name one for results that others are to repeat."""
    architecture: dict[str, Any]
    """What its config.json says, in its own words."""
    sampling: PresetSampling
    template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What its chat template is told."""

    def decoder_config(self, *, quantised: bool = False) -> "ModelConfig":
        """Its architecture for the `models` room; `quantised`: with weights packed as published, where they are.

        Raises ModelError for an architecture that is not implemented, or that cannot be right.
        """
        from noisyjax.models import config_from_hf

        cfg = config_from_hf(self.architecture)
        packed = self.architecture.get("quantization_config")
        return replace(cfg, quantised=packed["quant_method"]) if quantised and packed else cfg
