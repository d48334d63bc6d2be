"""Which mesh, and how many rows at a time: estimated for all, compiled for the best few."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from noisyjax.engine.config import MeshConfig
from noisyjax.errors import RunError
from noisyjax.models import ModelConfig, ShardingError
from noisyjax.models.sharding import TRAINING, partition_specs
from noisyjax.tpu.names import GIB, Slice
from noisyjax.tpu.planning import roofline
from noisyjax.tpu.planning.account import engine_parts, step_lengths
from noisyjax.tpu.planning.compiled import RESERVED, Compiled
from noisyjax.tpu.planning.programs import Engine, full_groups
from noisyjax.tpu.planning.roofline import Cut
from noisyjax.tpu.planning.subject import Subject
from noisyjax.tpu.planning.work import Lengths, sizes
from noisyjax.train.config import GrpoConfig
from noisyjax.train.step.rows import micro_batches

TRIES = 3
"""Candidates that are compiled at most."""
HEADROOM = 0.15
"""Share of a device's memory that a suggestion leaves free, for what the estimate does not know."""
STATE = 3 * 4
"""Bytes of a parameter's master and its two moments, which stay on the devices of a trainer."""
CLOSE = 0.01
"""Estimates that differ by less count as equal; what sends less wins."""


@dataclass(frozen=True)
class Candidate:
    """A mesh, and a micro-batch in training: words for the config; seconds of an update, or of an evaluation's round;
    bytes of a device. Both are estimated."""

    words: tuple[str, ...]
    seconds: float
    memory: float
    network: float
    """Seconds of its collectives, were nothing else done meanwhile."""
    remedy: str = "update.remat=full, shorter rows, lora, offload or a larger slice"
    """What would help if it did not fit."""

    @property
    def order(self) -> tuple[float, float, float, tuple[str, ...]]:
        """Fastest first."""
        return round(math.log(self.seconds) / CLOSE), self.network, self.memory, self.words


def best(
    found: Iterable[Candidate], where: Slice, compiled: Callable[[Sequence[str]], Compiled]
) -> tuple[tuple[str, ...], Compiled, list[dict[str, Any]]]:
    """(words of the best candidate that fits, its program that was compiled, all that were tried).

    compiled: the program that needs most, of the config with these words. Raises RunError when nothing that was
    compiled fits.
    """
    room = (where.generation.hbm_bytes - RESERVED) * (1 - HEADROOM)
    found = sorted(found, key=lambda one: one.order)
    promising = [one for one in found if one.memory <= room] or sorted(found, key=lambda one: one.memory)
    tried: list[dict[str, Any]] = []
    for one in promising[:TRIES]:
        made = compiled(one.words)
        tried.append({"words": one.words, "seconds": one.seconds, "peak": made.peak, "fits": made.fits})
        if made.fits:
            return one.words, made, tried
    if not found:
        raise RunError(
            f"no host of {where.name} has room to sample beside the state of training: fewer rollout.slots, shorter "
            "rows, lora or a larger slice would help"
        )
    least = min(found, key=lambda one: one.memory)
    raise RunError(
        f"no mesh that was tried fits {where.name}; the smallest, {' '.join(least.words)}, is estimated at "
        f"{least.memory / GIB:.1f} GiB: {least.remedy} would help"
    )


def serving_candidates(
    given: MeshConfig, cfg: ModelConfig, where: Slice, made: Callable[[Sequence[str]], Engine]
) -> Iterator[Candidate]:
    """Every mesh of an evaluation on a host that cuts the model evenly, in the place of the config's own (`given`).
    made: its engine, with these words."""
    own, rest = where.devices // where.hosts, _undone(given, "engine.mesh", ("replicas", "fsdp"))
    for tensor, expert in ((t, e) for t in _divisors(own) for e in _divisors(own // t)):
        if expert > 1 and cfg.moe is None:
            continue
        words = tuple(f"engine.mesh.{axis}={n}" for axis, n in (("data", own // tensor // expert), ("expert", expert)))
        words += (f"engine.mesh.tensor={tensor}", *rest)
        try:
            engine = made(words)
        except ShardingError:
            continue
        parts = [part for parts in engine_parts(engine).values() for part in parts]
        network = sum(part.times(where.generation)["ICI"] for part in parts)
        memory = engine.weights() + engine.caches()
        seconds = roofline.seconds(parts, where.generation)
        yield Candidate(
            words, seconds, memory, network, "fewer engine.slots, a shorter engine.context or a larger slice"
        )


def candidates(subject: Subject, cfg: ModelConfig, where: Slice) -> Iterator[Candidate]:
    """Every mesh of the slice that cuts the model evenly, with every micro-batch up to a whole step."""
    config, lengths = subject.config, step_lengths(subject, cfg)
    rows, rest = _rows(subject, cfg), _undone(config.mesh, "mesh", ("replicas", "data"))
    row = config.update.row_tokens
    free = where.devices
    if getattr(getattr(config, "judge", None), "placement", "shared") == "split":
        free -= config.judge.engine.mesh.devices
    for tensor, expert in ((t, e) for t in _divisors(free) for e in _divisors(free // t)):
        fsdp = free // tensor // expert
        if expert > 1 and cfg.moe is None:
            continue
        try:
            partition_specs(cfg, MeshConfig(fsdp=fsdp, expert=expert, tensor=tensor).axes, TRAINING)
        except ShardingError:
            continue
        sampler = _sampler(config, cfg, where, free, (fsdp, expert, tensor)) if subject.kind == "grpo" else 0.0
        if sampler is None:
            continue
        sequence = tensor > 1 and row % (8 * tensor) == 0
        for each in (1, 2, 4):
            count = fsdp * expert * each
            if each > 1 and count > rows:
                break
            cut = Cut(fsdp * expert, fsdp, expert, tensor, -(-rows // count))
            parts = roofline.update_parts(cfg, lengths, cut, config.update.remat)
            words = [f"mesh.fsdp={fsdp}", f"mesh.expert={expert}", f"mesh.tensor={tensor}"]
            words += [f"mesh.sequence={str(sequence).lower()}", f"update.batch_tokens={row * count}", *rest]
            network = sum(part.times(where.generation)["ICI"] for part in parts)
            memory = estimated_memory(cfg, lengths, cut, each * row, config.update.remat, sequence)
            yield Candidate(tuple(words), roofline.seconds(parts, where.generation), memory + sampler, network)


def _undone(given: MeshConfig, key: str, axes: Sequence[str]) -> tuple[str, ...]:
    """Words that take back the axes of the config's mesh that no candidate has."""
    return tuple(f"{key}.{axis}=1" for axis in axes if getattr(given, axis) != 1)


def estimated_memory(cfg: ModelConfig, lengths: Lengths, cut: Cut, tokens: int, remat: str, sequence: bool) -> float:
    """Bytes of a device in an update, `tokens` of a micro-batch on it. Rough: the compiler has the last word.

    Float32 master, two moments, the sum and the new gradient, a copy in bfloat16; what layers keep for going back; one
    layer at work; the gradient of the head's table.
    """
    size, weights = sizes(cfg), _weights(cfg, cut.expert, cut.tensor) / cut.fsdp
    along = cut.tensor if sequence else 1
    heads = (cfg.n_heads + 2 * cfg.n_kv_heads) * cfg.head_dim
    # Where experts are cut, each device has a place for every choice of the rows that it shares with others.
    copies = 0 if cfg.moe is None else cfg.moe.top_k * cut.expert
    width = cfg.d_ff if cfg.moe is None else copies * cfg.moe.d_ff
    inner = 2 * (3 * width + 2 * heads) / cut.tensor + 8 * cfg.d_model / along + 2 * copies * 2 * cfg.d_model
    kept = 2 * cfg.d_model / along + (0 if remat == "full" else inner)
    head = 4 * size.head / cut.tensor
    return (STATE + 2 * 4 + 2) * weights + cfg.n_layers * tokens * kept + tokens * inner + head


def _sampler(config: GrpoConfig, cfg: ModelConfig, where: Slice, free: int, mesh: tuple[int, int, int]) -> float | None:
    """Bytes of a device that the sampler, in bfloat16, holds while others work; None where no host could sample: one
    with a part of the model only, or without room for its weights and caches beside the state of training."""
    fsdp, expert, tensor = mesh
    own = free if where.hosts == 1 else where.devices // where.hosts
    if own % (expert * tensor):
        return None
    prompt = config.data.prompt.max_prompt_tokens or config.update.row_tokens - config.rollout.max_tokens
    tokens = -(-config.rollout.slots // (own // tensor)) * (prompt + config.rollout.max_tokens)
    heads = cfg.n_kv_heads / (tensor if cfg.n_kv_heads % tensor == 0 else 1)
    held = 2 * (_weights(cfg, expert, tensor) + tokens * cfg.n_layers * 2 * heads * cfg.head_dim)
    state = (2 if config.lora else STATE) * _weights(cfg, expert, tensor) / fsdp
    if held + state > where.generation.hbm_bytes - RESERVED:
        return None
    return 0.0 if config.rollout.offload else held


def _weights(cfg: ModelConfig, expert: int, tensor: int) -> float:
    """Parameters of a device, were nothing cut along fsdp."""
    size = sizes(cfg)
    tables = size.head * (1 if cfg.tie_embeddings else 2)
    return (size.dense + tables + size.every_expert / expert) / tensor


def _rows(subject: Subject, cfg: ModelConfig) -> int:
    """Rows of a whole step."""
    update = subject.config.update
    made = micro_batches(
        full_groups(subject.config, cfg),
        row_tokens=update.row_tokens,
        batch_tokens=update.row_tokens,
        pack=update.pack,
        share=update.share,
        slotted=update.slotted("tpu"),
    )
    return sum(len(micro.rows.ids_bt) for micro in made)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
