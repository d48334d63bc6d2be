"""How long a step takes at best, by one formula.

    seconds = Σ over parts of max(compute, HBM, ICI)
    compute = FLOPs / peak + attention FLOPs / (peak · ATTENTION)      with all that is made again going backward
    HBM     = bytes read and written / bandwidth
    ICI     = bytes that a device sends / what all its links carry, one way
    MFU     = model FLOPs / devices / peak / seconds

It is an estimate, not a measurement. Inside a part, compute, memory and network overlap perfectly; between parts
nothing does. Left out: the host, data, checkpoints, the network between slices, bubbles, products of poor shape.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from noisyjax.models import ModelConfig
from noisyjax.tpu.names import Generation
from noisyjax.tpu.planning.hlo import Collective
from noisyjax.tpu.planning.work import BACKWARD_ATTENTION, Lengths, pair_flops, sizes

ATTENTION = 0.5
"""Of the peak that attention reaches, its softmax included. A stated assumption: half, as for splash attention at a
head dimension of 128; a block of scores passes through the vector unit between two products."""
KEY_BLOCK = 512
"""Queries for which a key is read once."""
REMADE = {"none": 0, "dots": 0, "full": 1}
"""Forward passes of a layer that going backward adds."""


@dataclass(frozen=True)
class Part:
    """A part of a step on one device: operations, and bytes moved."""

    name: str
    flops: float = 0.0
    attention: float = 0.0
    hbm: float = 0.0
    ici: float = 0.0

    def times(self, generation: Generation) -> Mapping[str, float]:
        """Seconds of each of the three, were it alone."""
        compute = (self.flops + self.attention / ATTENTION) / generation.flops
        return {"compute": compute, "HBM": self.hbm / generation.hbm_bytes_s, "ICI": self.ici / generation.ici_bytes_s}

    def seconds(self, generation: Generation) -> float:
        """At best."""
        return max(self.times(generation).values())


def seconds(parts: Sequence[Part], generation: Generation) -> float:
    """Of all parts, one after the other."""
    return sum(part.seconds(generation) for part in parts)


def mfu(model_flops: float, devices: int, parts: Sequence[Part], generation: Generation) -> float:
    """Model FLOPs utilisation of these parts, between 0 and 1."""
    return model_flops / devices / generation.flops / seconds(parts, generation)


@dataclass(frozen=True)
class Cut:
    """How a run is cut: devices along the axes, sequence sharding, micro-batches of a step."""

    batch: int
    """Along data, replicas, fsdp and expert together."""
    fsdp: int
    expert: int
    tensor: int
    micro: int = 1

    @property
    def devices(self) -> int:
        return self.batch * self.tensor


def update_parts(
    cfg: ModelConfig, lengths: Lengths, cut: Cut, remat: str, width: int = 2, products: float | None = None
) -> list[Part]:
    """The parts of an update: layers, attention, head, optimizer.

    width: bytes of an activation. products: what `work.counted` found in the program for the whole batch, layers and
    head; None for what the architecture says.
    """
    size, again, d = sizes(cfg), REMADE[remat], cut.devices
    passes = 3 + again
    head = 4 * 2 * size.head * lengths.targets  # logits are made again for their gradient
    dense = passes * 2 * size.dense * lengths.tokens if products is None else products - head
    experts = (4 + again) * 2 * size.experts * lengths.tokens
    weights = (size.dense + size.every_expert / cut.expert) / cut.tensor * width
    held = 4 * (size.dense + size.every_expert + size.head) / (cut.fsdp * cut.tensor)
    moved = passes * lengths.tokens * cfg.n_layers * _activation(cfg) * width / d
    gathers = (cut.fsdp - 1) / cut.fsdp
    ring = 2 * (cut.tensor - 1) / cut.tensor
    rows = 2 * passes * cfg.n_layers * lengths.tokens / cut.batch * cfg.d_model * width
    reduced = rows * ring / 2 + rows * (cut.expert - 1)  # devices with other experts see each other's rows, and answer
    layers = Part(
        "layers",
        (dense + experts) / d,
        hbm=cut.micro * (2 + again) * weights + moved + 2 * cut.micro * held,
        ici=cut.micro * gathers * ((2 + again) * weights + 2 * weights) + reduced,
    )
    pairs = pair_flops(cfg, lengths.pairs)
    keys = lengths.pairs / KEY_BLOCK * 2 * cfg.n_kv_heads * cfg.head_dim * width
    turns = 1 + again + BACKWARD_ATTENTION
    attention = Part("attention", attention=turns * pairs / d, hbm=turns * keys / d)
    table = size.head / cut.tensor * width
    logits = 2 * 8 * lengths.targets * cfg.vocab_size / d
    sums = 2 * cut.micro * gathers * 4 * size.head / cut.tensor
    return [
        layers,
        attention,
        Part("head", head / d, hbm=cut.micro * 4 * table + logits, ici=sums),
        Part("optimizer", hbm=7 * held),
    ]


def forward_parts(cfg: ModelConfig, lengths: Lengths, cut: Cut, width: int = 2) -> list[Part]:
    """Log-probabilities of a batch, without gradient."""
    size, d = sizes(cfg), cut.devices
    weights = (size.dense + size.every_expert / cut.expert) / cut.tensor * width
    moved = lengths.tokens * cfg.n_layers * _activation(cfg) * width / d
    gathers = cut.micro * (cut.fsdp - 1) / cut.fsdp
    flops = 2 * (size.dense + size.experts) * lengths.tokens / d
    head = 2 * size.head * lengths.targets / d
    return [
        Part("layers", flops, hbm=cut.micro * weights + moved, ici=gathers * weights),
        Part("attention", attention=pair_flops(cfg, lengths.pairs) / d),
        Part("head", head, hbm=8 * lengths.targets * cfg.vocab_size / d + cut.micro * size.head / cut.tensor * width),
    ]


def prefill_parts(cfg: ModelConfig, lengths: Lengths, pieces: int, cut: Cut, width: float = 2) -> list[Part]:
    """Prompts, one piece at a time: a row of its own, which devices along the batch's axes all compute."""
    size = sizes(cfg)
    weights = (size.dense + size.every_expert / cut.expert) / cut.tensor * width
    flops = 2 * (size.dense + size.experts / cut.expert) * lengths.tokens / cut.tensor
    moved = lengths.tokens * cfg.n_layers * _activation(cfg) * 2 / cut.tensor
    reduced = 2 * cfg.n_layers * lengths.tokens * cfg.d_model * 2 * 2 * (cut.tensor - 1) / cut.tensor
    return [
        Part("layers", flops, hbm=pieces * weights + moved, ici=reduced),
        Part("attention", attention=pair_flops(cfg, lengths.pairs) / cut.tensor),
    ]


def decode_parts(cfg: ModelConfig, slots: int, steps: int, context: float, cut: Cut, width: float = 2) -> list[Part]:
    """`steps` steps of all slots, each over `context` keys on average. Weights and caches pass once a step."""
    size, rows = sizes(cfg), slots / cut.batch
    touched = min(1.0, slots * cfg.moe.top_k / cfg.moe.n_experts) if cfg.moe is not None else 0.0
    weights = (size.dense + size.head + size.every_expert * touched / cut.expert) / cut.tensor * width
    flops = 2 * (size.dense + size.experts + size.head) * rows / cut.tensor
    kept = cfg.n_kv_heads / min(cut.tensor, cfg.n_kv_heads)
    keys = rows * context * cfg.n_layers * 2 * kept * cfg.head_dim * 2
    reduced = 2 * cfg.n_layers * rows * cfg.d_model * 2 * 2 * (cut.tensor - 1) / cut.tensor
    return [Part("decode", steps * flops, hbm=steps * (weights + keys), ici=steps * reduced)]


def with_collectives(
    parts: Sequence[Part], sent: Sequence[Collective], layers: Collection[int], times: int
) -> list[Part]:
    """The parts with what the compiled program really sends: what lies in a loop over layers belongs to the layers,
    the rest to the last part. times: runs of the program. layers: lengths of the loops over layers."""
    inside = sum(c.sent for c in sent if set(c.trips) & set(layers))
    whole = sum(c.sent for c in sent)
    first, *middle, last = (replace(part, ici=0.0) for part in parts)
    return [replace(first, ici=times * inside), *middle, replace(last, ici=times * (whole - inside))]


def _activation(cfg: ModelConfig) -> float:
    """Numbers that a token's layer reads and writes between its products: residuals and norms, heads, feed-forward."""
    width = cfg.d_ff if cfg.moe is None else cfg.moe.top_k * cfg.moe.d_ff
    return 8 * cfg.d_model + 4 * (cfg.n_heads + cfg.n_kv_heads) * cfg.head_dim + 6 * width
