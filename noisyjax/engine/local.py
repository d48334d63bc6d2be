"""The local engine: a model on this machine's devices, behind `records.Engine`.

All requests of one call run under one schedule (`schedule.py`) on one set of device arrays (`device.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from noisyjax import models
from noisyjax.chat.tokenizer import ChatTokenizer
from noisyjax.engine import cache, programs
from noisyjax.engine.config import CaptureConfig, LocalConfig, MeshConfig
from noisyjax.engine.device import Device, Shape
from noisyjax.engine.mesh import open_layout
from noisyjax.engine.plan import Group, group_by_prefix
from noisyjax.engine.schedule import Schedule, Stats
from noisyjax.engine.weights import Parked, relayout
from noisyjax.errors import UsageError
from noisyjax.models.decoder import Decoder
from noisyjax.models.sharding import SERVING, Layout, platform
from noisyjax.records import Completion, Finish, Request

__all__ = ["CaptureConfig", "LocalConfig", "LocalEngine", "MeshConfig", "Stats", "load_model"]


GUESSES = 3
"""Tokens that are guessed at each step where one or two rows decode."""


class LocalEngine:
    """Build with a config, or hand in a model and a tokenizer that are already loaded.

    devices: those to choose from for the config's mesh; None for all of this machine. A model that is handed in lies
    where it lies.
    Raises ModelError for a folder that cannot be read or a mesh that cannot cut the model, and UsageError for a mesh
    these devices do not make.
    """

    def __init__(
        self,
        config: LocalConfig,
        model: Decoder | None = None,
        tokenizer: ChatTokenizer | None = None,
        devices: Sequence[Any] | None = None,
    ) -> None:
        self.config = config
        self.name = Path(config.model).name
        layout = None
        if model is None:  # what cannot work is refused before the weights are read
            layout = open_layout(config.mesh, models.read_config(config.model), SERVING, devices=devices)
        self.tokenizer = tokenizer or ChatTokenizer.load(config.model, config.chat_template)
        self.model = model or load_model(config, layout)
        self.window = self.model.cfg.max_positions
        self.stats = Stats()
        self.capture = _capture(config.capture, self.model.cfg.n_layers)
        self.replayed = self.capture._replace(layers=_replayed(config.capture, self.model.cfg.n_layers))
        self.valid_v = np.asarray(self.tokenizer.decodable_vocab(self.model.cfg.vocab_size))
        stops = sorted(self.tokenizer.stop_ids)
        self.stop_ids = np.full(max(16, len(stops)), -1, np.int32)
        self.stop_ids[: len(stops)] = stops
        self._device: Device | None = None
        self._parked: Parked | None = None
        if config.offload:
            self.sleep()

    def close(self) -> None:
        """Free the caches."""
        self._device = None

    def sleep(self) -> None:
        """Leave the devices: caches are freed, and the weights wait in host memory until the next `generate`."""
        if self._parked is None:
            if self._device is not None:
                self._device.release()
            graph, state = nnx.split(self.model)
            self._parked = Parked(state)
            self.model = nnx.merge(graph, self._parked.tree)

    def _wake(self) -> None:
        if self._parked is not None:
            graph, _ = nnx.split(self.model)
            self.model, self._parked = nnx.merge(graph, self._parked.fetch()), None
            self._renew()

    def _renew(self) -> None:
        """Give the present weights to the device's programs."""
        if self._device is not None:
            self._device.take(nnx.split(self.model)[1])

    def load_params(self, params: Mapping[str, jax.Array]) -> None:
        """Take other weights of the same model (path -> array, `models.param_specs`), as a trainer does every step.

        They are cast and laid out as this engine holds its own, by one program that is compiled once. The old weights
        are let go first, so that the devices never hold both.
        """
        model = self.model
        form = model.cfg, model.embed.w_vd[...].dtype, model.stacked, model.layout
        self._parked = None
        if self._device is not None:
            self._device.state = None
        del model, self.model
        self.model = relayout(params, *form)
        self._renew()

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions in the order they finish; see `records.Engine`. All requests are read before the first answer."""
        todo: list[Request] = []
        for request in requests:
            if not len(request.prompt.ids):
                raise UsageError(f"request {request.id} has no token ids: render its prompt with the model's tokenizer")
            if request.sampling.max_tokens < 1:
                raise UsageError(f"request {request.id} asks for max_tokens={request.sampling.max_tokens}: at least 1")
            if request.prompt.over_length or len(request.prompt.ids) >= self._limit():
                yield from _refused(request)
            elif request.n > 0:
                todo.append(request)
        if not todo:
            return
        self._wake()
        least = self.config.min_prefix
        groups = group_by_prefix(todo, least) if least else [Group(0, tuple(todo))]
        try:
            yield from Schedule(self, self._device_for(groups), groups).run()
        finally:
            if self.config.offload:
                self.sleep()

    def _limit(self) -> int:
        return self.window if self.config.context is None else min(self.window, self.config.context)

    def budget(self, request: Request) -> int:
        """Tokens that may be drawn: what was asked for, or what the window leaves."""
        return min(request.sampling.max_tokens, self._limit() - len(request.prompt.ids))

    def _device_for(self, groups: Sequence[Group]) -> Device:
        """The device state for these requests; kept from the last call when it is large enough."""
        chunk, guesses = self.config.chunk, _guesses(self.config)
        need_row = max(len(r.prompt.ids) - g.length + self.budget(r) for g in groups for r in g.requests)
        need_row = max(need_row, self.config.row or 0) + programs.fresh_width(chunk, guesses)
        slots = _even_slots(self.config.slots, self.model.layout, 1 if guesses else 2)
        shape = Shape(
            slots=slots,
            row=cache.capacity(need_row),
            prefixes=_places(groups, slots, self.config.prefixes),
            prefix=cache.n_blocks(max(g.length for g in groups)) * cache.BLOCK,
            chunk=chunk,
            guesses=guesses,
        )
        held = self._device
        if held is None or any(getattr(held.shape, x) < getattr(shape, x) for x in ("row", "prefixes", "prefix")):
            self._device = None  # free the old caches before the new ones are made
            self._device = Device(self.model, shape, self.capture, self.replayed)
            self.stats.compiled = self._device.compiled
        assert self._device is not None
        return self._device


def _places(groups: Sequence[Group], slots: int, most: int | None) -> int:
    """Prefixes to hold at a time: enough groups to fill the slots, and two more, or slots would wait for stragglers.

    Four at most unless the config says more: each is visited by code of its own in every layer of the decode program.
    """
    samples = [sum(r.n for r in g.requests) for g in groups if g.length]
    if not samples:
        return 0
    return min(len(samples), most or min(4, -(-slots // min(samples)) + 2))


def _refused(request: Request) -> Iterator[Completion]:
    for number in range(request.first_sample, request.first_sample + request.n):
        yield Completion(
            request_id=request.id,
            sample=number,
            text="",
            finish=Finish.OVER_LENGTH,
            prompt_tokens=len(request.prompt.ids),
        )


def _capture(config: CaptureConfig, n_layers: int) -> programs.Capture:
    """What the decode loop records: without the layers that are replayed."""
    named, replayed = _layers("attention", config.attention, n_layers), _replayed(config, n_layers)
    if config.prompt and not named and not replayed:
        raise UsageError("capture.prompt needs capture.attention or capture.replay: which layers to record")
    inline = tuple(layer for layer in named if layer not in replayed)
    return programs.Capture(config.logprobs, config.entropy, config.top, inline, config.heads == "all")


def _replayed(config: CaptureConfig, n_layers: int) -> tuple[int, ...]:
    """The layers of the second pass over a completion, in order."""
    if config.replay == "rest":
        named = _layers("attention", config.attention, n_layers)
        return tuple(layer for layer in range(n_layers) if layer not in named)
    return _layers("replay", config.replay, n_layers)


def _layers(key: str, asked: str | tuple[int, ...], n_layers: int) -> tuple[int, ...]:
    if isinstance(asked, str):
        return tuple(range(n_layers)) if asked == "all" else ()
    layers = tuple(sorted(set(asked)))
    if layers and not 0 <= layers[0] <= layers[-1] < n_layers:
        raise UsageError(f"capture.{key} names layers {list(layers)}; the model has 0 to {n_layers - 1}")
    return layers


def _even_slots(slots: int, layout: Layout | None, least: int) -> int:
    """At least so many, a multiple of the batch's axes. A one-row product is the slow case of XLA's CPU backend."""
    shards = 1 if layout is None else layout.shards()
    return -(-max(least, slots) // shards) * shards


def _guesses(config: LocalConfig) -> int:
    """Tokens to guess at each step; by default only where reading the weights for few rows takes the time."""
    return config.guesses if config.guesses is not None else GUESSES if config.slots <= 2 else 0


def load_model(config: LocalConfig, layout: Layout | None) -> Decoder:
    """Read the model folder onto its devices."""
    mesh, rules = (None, None) if layout is None else (layout.mesh, layout.rules)
    dtype = None if config.dtype == "auto" else config.dtype
    loaded = models.load(config.model, mesh, rules, dtype, keep_quantised=config.quantised == "keep")
    stacked = config.stacked if config.stacked is not None else platform(layout) != "cpu"
    return Decoder(loaded.cfg, loaded.params, stacked=stacked, layout=layout)
