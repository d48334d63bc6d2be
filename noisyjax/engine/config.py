"""What a person may say about a local model and how to run it. No jax here: a config is read in a moment."""

import math
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from noisyjax.config import Schema

_FREE: dict[str, Any] = {"affects_results": False}


class CaptureConfig(Schema):
    """What to record beside the tokens."""

    logprobs: bool = True
    """Log-probability of every token, at the temperature it was drawn with."""
    entropy: bool = True
    """Entropy of every token's distribution, in nats."""
    top: int = Field(default=0, ge=0, le=64)
    """Number of top log-probabilities per token; the paper's entropy uses 10."""
    attention: Literal["none", "all"] | tuple[int, ...] = "none"
    """Layers whose attention mass per label is kept: none, all, or a list of indices."""
    replay: Literal["none", "rest", "all"] | tuple[int, ...] = "none"
    """Layers whose mass comes from a second pass over each finished completion, not from the decode loop: none, rest
    (those that `attention` does not name), all, or a list of indices. They are kept beside those of `attention`, with
    the same numbers either way; where the loop captures no layer, it is as fast as without capture."""
    heads: Literal["mean", "all"] = "mean"
    """Averaged over the heads, or one by one."""
    prompt: bool = False
    """Also the mass of every prompt position in the same layers, by a second pass over the prompt."""


class MeshConfig(Schema):
    """Devices along each axis of the mesh; their product is the number of devices in use. The batch is cut along every
    axis but `tensor`."""

    replicas: int = Field(default=1, ge=1, json_schema_extra=_FREE)
    """Copies of all that follows, over the network between TPU slices: a multiple of the number of slices."""
    data: int | None = Field(default=None, ge=1, json_schema_extra=_FREE)
    """Cuts the batch and nothing else. null: as many as the other axes leave over of this host's devices; 1 on a CPU,
    whose devices are parts of one processor."""
    fsdp: int = Field(default=1, ge=1, json_schema_extra=_FREE)
    """Cuts the parameters' model dimension too, in training. Where tokens are sampled it is as `data`: weights cut so
    would be gathered at every token."""
    expert: int = Field(default=1, ge=1, json_schema_extra=_FREE)
    """Cuts the experts of a mixture too, whole ones."""
    tensor: int = Field(default=1, ge=1, json_schema_extra=_FREE)
    """Cuts heads, feed-forward and vocabulary."""

    @property
    def axes(self) -> dict[str, int]:
        """Name of each mesh axis -> devices along it, as `models.sharding.MESH_AXES` orders them."""
        return {
            "replica": self.replicas,
            "data": self.data or 1,
            "fsdp": self.fsdp,
            "expert": self.expert,
            "tensor": self.tensor,
        }

    @property
    def devices(self) -> int:
        """How many it takes, at the least where `data` is left open."""
        return math.prod(self.axes.values())

    def filling(self, devices: int) -> Self:
        """The mesh on so many devices: with `data` as large as they allow, where it is left open."""
        return self if self.data else self.model_copy(update={"data": max(1, devices // self.devices)})


class LocalConfig(Schema):
    """A Hugging Face model folder on this machine's devices."""

    kind: Literal["local"] = "local"
    model: Path = Field(json_schema_extra=_FREE)
    """Hugging Face folder. A run remembers what is in it, not where it lies."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto keeps the files' own."""
    quantised: Literal["keep", "dequantise"] = Field(default="keep", json_schema_extra=_FREE)
    """Weights that are packed in the files (MXFP4 of gpt-oss) stay so in memory, where they take a quarter of bfloat16,
    or become numbers of `dtype`: the same numbers either way. Other models have none."""
    slots: int = Field(default=8, ge=1, json_schema_extra=_FREE)
    """Rows that decode at a time."""
    context: int | None = Field(default=None, ge=2)
    """Longest prompt and completion together, in tokens; null is the model's own limit."""
    row: int | None = Field(default=None, ge=2, json_schema_extra=_FREE)
    """Tokens of prompt and completion that each slot has room for from the start. null: what the requests at hand need;
    longer ones that come later then compile their programs anew."""
    chunk: int = Field(default=32, ge=1, json_schema_extra=_FREE)
    """Decode steps between returns to the host."""
    guesses: int | None = Field(default=None, ge=0, le=15, json_schema_extra=_FREE)
    """Tokens that each step guesses ahead, from what the row's text has repeated before. Wrong guesses are thrown away,
    so completions are the same; what is gained depends on how much a text repeats. null: 3 with one or two slots, else
    none."""
    prefixes: int | None = Field(default=None, ge=1, json_schema_extra=_FREE)
    """Most shared prefixes held at a time. null: as many as it takes to keep the slots busy, four at most."""
    min_prefix: int = Field(default=256, ge=0, json_schema_extra=_FREE)
    """Shortest prefix that is worth sharing, in tokens; 0 switches sharing off."""
    stacked: bool | None = Field(default=None, json_schema_extra=_FREE)
    """Scan stacked layers. null: yes, except on the CPU, where unstacked ones decode twice as fast."""
    mesh: MeshConfig = Field(default=MeshConfig(), json_schema_extra=_FREE)
    offload: bool = Field(default=False, json_schema_extra=_FREE)
    """Leave the devices after every call: caches are freed and the weights wait in host memory."""
    chat_template: Path | None = None
    """A Jinja file instead of the folder's own template."""
    capture: CaptureConfig = CaptureConfig()
