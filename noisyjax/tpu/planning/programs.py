"""A run's own programs, from shapes alone: what training and engines would compile on a TPU, without an array.

Parameters, states and caches are `jax.ShapeDtypeStruct`s with the sharding that the run would give them; the code that
is compiled is the run's (`Updater`, `Device`, `policy_loss`).

Legend: V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from noisyjax.engine import cache, programs
from noisyjax.engine.config import LocalConfig
from noisyjax.engine.device import PIECE, Device, Shape
from noisyjax.engine.local import _capture, _even_slots, _guesses
from noisyjax.engine.mesh import host_layout, open_layout
from noisyjax.engine.sample import Draw
from noisyjax.models import Layout, ModelConfig, lora, param_specs, shardings
from noisyjax.models.decoder import Decoder
from noisyjax.models.sharding import MESH_AXES, SERVING, TRAINING, partition_spec
from noisyjax.train.config import GrpoConfig, TrainConfig
from noisyjax.train.grpo import grpo_loss
from noisyjax.train.sft import sft_loss
from noisyjax.train.step.optimizer import optimizer
from noisyjax.train.step.rows import Group, Response, Rows
from noisyjax.train.step.update import TrainState, Updater

Abstract = Mapping[str, jax.ShapeDtypeStruct]


@dataclass(frozen=True)
class Program:
    """A jitted function and its arguments' shapes, and what else lies on the devices while it runs.

    kinds: name -> the argument trees of that kind, for the account of memory. beside: bytes per device by kind, of what
    the program does not touch. times: runs per step. turns: of its loop with an open end, if
    it has one.
    """

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kinds: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, int] = field(default_factory=dict)
    times: int = 1
    turns: int | None = None


def device_bytes(tree: Any) -> int:
    """Bytes of one device's share of arrays that may be abstract; None in the tree counts nothing."""

    def of(x: Any) -> int:
        shape = x.sharding.shard_shape(x.shape) if getattr(x, "sharding", None) is not None else x.shape
        return int(np.prod(shape, dtype=np.int64)) * jnp.dtype(x.dtype).itemsize

    return sum(map(of, jax.tree.leaves(tree)))


def abstract_params(cfg: ModelConfig, layout: Layout, dtype: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Every parameter's shape, type and place. Raises ShardingError for what cannot be cut."""
    where, specs = shardings(cfg, layout.mesh, layout.rules), param_specs(cfg)
    return {
        path: jax.ShapeDtypeStruct(spec.shape, "uint8" if spec.packed else dtype, sharding=where[path])
        for path, spec in specs.items()
    }


# ---- training


@dataclass(frozen=True)
class Training:
    """The update of a run, and the shapes that it works on."""

    updater: Updater
    state: TrainState
    frozen: Abstract
    batches: Sequence[Rows]
    """A full step's: every prompt and response as long as the config allows."""
    reference: bool

    @property
    def layout(self) -> Layout:
        assert self.updater.layout is not None
        return self.updater.layout

    def programs(self, beside: Mapping[str, int]) -> Iterator[Program]:
        """add (once per micro-batch) and apply; logprobs, where a step asks for them. beside: what sleeps meanwhile."""
        made, state = self.updater._compiled(self.state), self.state
        loss = jax.ShapeDtypeStruct((), jnp.float32, sharding=state.updates.sharding)
        total = (dict(state.params), loss)
        rows, count = self._rows(self.batches[0]), len(self.batches)
        held = {"parameters": (state.params, self.frozen)}
        sleeping = {"optimizer": device_bytes((state.opt_state, state.updates)), **beside}
        add = (total, state.params, self.frozen, rows, None)
        yield Program("update", made.add, add, held | {"gradient": total}, sleeping, count)
        kinds = {"parameters": state.params, "optimizer": state.opt_state, "gradient": total}
        yield Program(
            "optimizer", made.apply, (state, total), kinds, {**beside, "parameters": device_bytes(self.frozen)}
        )
        if self.reference:
            frozen = self.frozen or abstract_params(self.updater.policy.cfg, self.layout, self.updater.config.dtype)
            kept = {**sleeping, "parameters": device_bytes(state.params)} | {"reference": 0}
            yield Program("logprobs", self.updater._score, (frozen, rows), {"reference": frozen}, kept, count)

    def reference_bytes(self) -> int:
        """Bytes per device of the model that KL is measured against."""
        return device_bytes(abstract_params(self.updater.policy.cfg, self.layout, self.updater.config.dtype))

    def _rows(self, rows: Rows) -> Rows:
        where = self.layout.sharding(self.layout.batch_axes(len(rows.ids_bt)))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), rows)


def full_groups(config: TrainConfig, cfg: ModelConfig) -> list[Group]:
    """A step in which everything is as long as it may be."""
    if isinstance(config, GrpoConfig):
        prompt = config.data.prompt.max_prompt_tokens or max(1, config.update.row_tokens - config.rollout.max_tokens)
        given = ["advantage", "rollout"] + (["old"] if config.updates * config.minibatches > 1 else [])
        given += ["ref"] if config.loss.needs_reference else []
        length = config.rollout.max_tokens
        zeros = np.zeros(length, np.float32)
        response = Response(np.zeros(length, np.int32), 1.0, **dict.fromkeys(given, zeros))
        count, samples = config.prompts // config.minibatches, config.rollout.samples
    else:
        whole = min(config.data.target.max_tokens or cfg.max_positions, config.update.row_tokens)
        prompt, count, samples = whole - whole // 4, config.batch, 1  # type: ignore[attr-defined]
        response = Response(np.zeros(whole // 4, np.int32), 1.0)
    return [Group(f"{i:06d}", np.zeros(prompt, np.int32), (response,) * samples) for i in range(count)]


def training(config: TrainConfig, cfg: ModelConfig, devices: Sequence[Any]) -> Training:
    """The update of a config on these devices. Raises UsageError or ShardingError where the mesh does not suit."""
    layout = open_layout(config.mesh, cfg, TRAINING, devices=devices, sequence=config.mesh.sequence)
    assert layout is not None
    base = abstract_params(cfg, layout, config.update.dtype if config.lora else "float32")
    grpo = isinstance(config, GrpoConfig)
    updater = Updater(
        cfg,
        optimizer(config.optimizer, config.optimizer_steps),
        grpo_loss(config) if isinstance(config, GrpoConfig) else sft_loss,
        config.update,
        temperature=config.rollout.temperature if isinstance(config, GrpoConfig) else 1.0,
        valid_v=np.ones(cfg.vocab_size, bool) if grpo else None,
        frozen=base if config.lora else None,  # type: ignore[arg-type]
        scale=config.lora.scale if config.lora else 1.0,
        layout=layout,
    )
    trained: Abstract = base
    if config.lora:
        specs = lora.adapter_specs(cfg, config.lora.rank, config.lora.targets)
        axes, rules, mesh = layout.mesh.shape, layout.rules, layout.mesh
        trained = {
            path: jax.ShapeDtypeStruct(s.shape, "float32", sharding=NamedSharding(mesh, partition_spec(s, rules, axes)))
            for path, s in specs.items()
        }
    rows = [micro.rows for micro in updater.batches(full_groups(config, cfg))]
    reference = isinstance(config, GrpoConfig) and (
        config.loss.needs_reference or config.updates * config.minibatches > 1
    )
    return Training(updater, updater.abstract(trained), base if config.lora else {}, rows, reference)


# ---- sampling


class _Recorder(Device):
    """A device without arrays, which takes note of the programs that it would run."""

    def __init__(self, model: Decoder, shape: Shape, capture: programs.Capture) -> None:
        self.recorded: dict[str, tuple[Callable, tuple[Any, ...]]] = {}
        super().__init__(model, shape, capture)

    def _allocate(self, rows: int, length: int) -> Any:
        shapes = jax.eval_shape(lambda: cache.allocate(self.cfg, rows, length, self.dtype, self.stacked))
        where = self._sharding(rows)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes)

    def _run(self, name: str, program: Callable, *args: Any) -> Any:
        self.recorded[name] = program, args
        return jax.eval_shape(program, *args)


@dataclass(frozen=True)
class Sampling:
    """A host's work with an engine in a step: prompts that are prefilled, each of so many tokens, and samples drawn."""

    prompts: int
    prompt: int
    samples: int
    tokens: int


@dataclass(frozen=True)
class Engine:
    """A local engine on a mesh: abstract weights, and the shape of its caches."""

    name: str
    """Put before the names of its programs; empty for the policy's."""
    cfg: ModelConfig
    layout: Layout
    model: Decoder
    shape: Shape
    capture: programs.Capture
    work: Sampling

    def weights(self) -> int:
        """Bytes per device."""
        return device_bytes(jax.tree.leaves(self.model))

    def caches(self) -> int:
        """Bytes per device of all slots."""
        return device_bytes(_Recorder(self.model, self.shape, self.capture).rows)

    def programs(self, beside: Mapping[str, int]) -> Iterator[Program]:
        """Prefill of a piece, and the decode chunk without and with capture of attention in every layer; a judge's
        attention is nobody's concern."""
        every = self.capture._replace(layers=tuple(range(self.cfg.n_layers)))
        plain = self.capture._replace(layers=())
        rounds = -(-self.work.samples // self.shape.slots)
        chunks = rounds * -(-self.work.tokens // self.shape.chunk)
        for capture, name in ((plain, "decode"), *[(every, "decode with capture")] * (not self.name)):
            device = _Recorder(self.model, self.shape, capture)
            state, rows = device.state, device.rows
            kinds = {"parameters": state, "cache": rows}
            if capture is plain:
                pieces = self.work.prompts * -(-self.work.prompt // PIECE)
                device.prefill_long(np.zeros(PIECE, np.int32), min(self.work.prompt, self.shape.row))
                call, args = next(found for key, found in device.recorded.items() if key.startswith("prefill"))
                held = {"parameters": state, "cache": args[1]}
                yield Program(f"{self.name}prefill", call, args, held, {**beside, "cache": device_bytes(rows)}, pieces)
                device.rows = rows
            idle = _idle(self.shape)
            valid_v, stops = np.ones(self.cfg.vocab_size, bool), np.full(16, -1, np.int32)
            device.decode(idle, device.view(), valid_v, stops, False)
            call, args = device.recorded["decode"]
            times = chunks if (capture is every) == bool(self.capture.layers) else 0
            yield Program(f"{self.name}{name}", call, args, kinds, beside, times, self.shape.chunk)


def _idle(shape: Shape) -> programs.Slots:
    b = shape.slots
    zeros, no = np.zeros(b, np.int32), np.zeros(b, bool)
    text_bw = np.zeros((b, shape.text), np.int32) if shape.guesses else None
    keys_b2, labels_b = np.zeros((b, 2), np.uint32), np.zeros(b, np.uint8)
    return programs.Slots(zeros, labels_b, zeros, zeros, no, no, keys_b2, Draw.idle(b), text_bw, zeros)


def engine(config: LocalConfig, cfg: ModelConfig, layout: Layout, dtype: str, work: Sampling, name: str = "") -> Engine:
    """The engine of a config on a mesh, its caches as long as its work wants."""
    model = Decoder(cfg, abstract_params(cfg, layout, dtype), stacked=True, layout=layout)  # type: ignore[arg-type]
    guesses = _guesses(config)
    slots = _even_slots(config.slots, layout, 1 if guesses else 2)
    width = programs.fresh_width(config.chunk, guesses)
    row = cache.capacity(max(work.prompt + work.tokens, config.row or 0) + width)
    shape = Shape(slots, row, 0, 0, config.chunk, guesses)
    return Engine(name, cfg, layout, model, shape, _capture(config.capture, cfg.n_layers), work)


def serving(layout: Layout, own: Sequence[Any] | None = None) -> Layout:
    """The sampler's on the devices of a trainer's. own: where several hosts train, those of one alone (the compiler
    knows no part of a slice), in which the first one's lie as they do in the slice.

    Raises UsageError where no host has room for one.
    """
    if own is None:
        return Layout(layout.mesh, SERVING)
    part = host_layout(layout, SERVING, 0)
    alone = {_place(device): device for device in own}
    grid = np.array([alone[_place(device)] for device in part.mesh.devices.flat], object)
    return Layout(Mesh(grid.reshape(part.mesh.devices.shape), MESH_AXES), SERVING)


def _place(device: Any) -> tuple[int, ...]:
    return (*device.coords, device.core_on_chip)
