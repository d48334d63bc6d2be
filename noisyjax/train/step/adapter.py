"""What a person may say about a low-rank adapter."""

from typing import Literal

from pydantic import Field

from noisyjax.config import Schema

Target = Literal["q", "k", "v", "o", "gate", "up", "down"]


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
