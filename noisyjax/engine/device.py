"""The device side of the local engine: arrays on the mesh and the programs that work on them.

Every program is compiled once per shape, and the shapes are few: three prefill tiles for short prompts, one that takes
a long prompt in pieces, their copies into a slot, and the decode loop; where mass is replayed, a copy out of a slot and
a piece with capture. `compiled` lists what was compiled, when and how long it took.
"""

import functools
import importlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from noisyjax.engine import cache, programs
from noisyjax.engine.cache import BLOCK, View
from noisyjax.models.decoder import Decoder
from noisyjax.models.sharding import compiler_options, platform
from noisyjax.records import LABEL_ID

log = logging.getLogger(__name__)

TILES = ((8, 64), (4, 128), (2, 256))
"""(rows, tokens) of the prefill programs for short prompts: each is 512 tokens of work, enough to fill the machine."""
PIECE = 512
"""Tokens of a long prompt that are prefilled at a time."""


def keep_programs(folder: Path | None = None) -> None:
    """Keep compiled programs on disk between processes, unless jax was already told where (JAX_COMPILATION_CACHE_DIR).

    A resumed or repeated run then starts in seconds. Default folder: `noisyjax` in the user's cache folder.
    """
    if jax.config.jax_compilation_cache_dir is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(folder or home / "noisyjax" / "programs"))


@dataclass(frozen=True)
class Shape:
    """Capacities, fixed for the life of a device: slots, tokens per row, shared prefixes and their tokens (or 0),
    tokens of a chunk, and those that are guessed at each of its steps."""

    slots: int
    row: int
    prefixes: int
    prefix: int
    chunk: int
    guesses: int = 0

    @property
    def text(self) -> int:
        """Tokens of a row with its prefix."""
        return self.prefix + self.row


@dataclass
class Tile:
    """Prefilled prompts on the device: keys and values of `rows` prompts, waiting for a slot."""

    kv: Any
    rows: int


class Device:
    """Holds the parameters, the caches and the compiled programs. All methods take and give host arrays.

    capture: what the decode loop records; replayed: the layers and heads of `replay`.
    """

    def __init__(
        self, model: Decoder, shape: Shape, capture: programs.Capture, replayed: programs.Capture | None = None
    ):
        self.shape, self.capture, self.layout = shape, capture, model.layout
        if platform(self.layout) == "tpu":  # imported later it changes what jax knows programs by: all compile anew
            importlib.import_module("noisyjax.models.kernels.splash")
        self.graph, state = nnx.split(model)
        self.state: Any = state
        self.cfg, self.stacked = model.cfg, model.stacked
        self.dtype = jnp.dtype(model.embed.w_vd.dtype)
        self.compiled: list[tuple[str, float]] = []
        self.owner: object = None
        """The schedule whose rows lie in the slots."""
        self._seen: set[tuple] = set()
        self._where = jax.tree.leaves(self.state)[0].sharding
        self.rows: Any = None
        self.prefixes: list[Any] = []
        self.take(self.state)
        # Outputs are laid out as the stores are made: an array that came in otherwise would be another program.
        rows, one = self._sharding(shape.slots), self._sharding(1)
        prefill = functools.partial(programs.prefill, self.graph, None)
        decode = functools.partial(programs.decode, self.graph, capture, shape.chunk, shape.guesses)
        how: dict[str, Any] = {"donate_argnums": (1,), "compiler_options": compiler_options(self.layout)}
        self._prefill = jax.jit(prefill, out_shardings=(one, None), **how)
        self._decode = jax.jit(decode, out_shardings=(rows, None), **how)
        self._copy_row = jax.jit(cache.copy_row, donate_argnums=(0,), out_shardings=rows)
        replay = functools.partial(programs.prefill, self.graph, replayed)
        self._replay = jax.jit(replay, out_shardings=(one, None), **how)
        self._copy_out = jax.jit(cache.copy_row, donate_argnums=(0,), out_shardings=one)

    def _sharding(self, rows: int) -> Sharding:
        """How a store of so many rows lies on the devices: rows and key-value heads are cut, if they can."""
        if self.layout is None:
            return self._where
        spec = (self.layout.batch_axes(rows), self.layout.cut("kv_heads", self.cfg.n_kv_heads), None, None)
        return self.layout.sharding(*((None, *spec) if self.stacked else spec))

    def take(self, state: Any) -> None:
        """Work with these weights from now on; with empty caches after `release`."""
        self.state = state
        if self.rows is None:
            shape = self.shape
            self.rows = self._allocate(shape.slots, shape.row)
            self.prefixes = [self._allocate(1, shape.prefix) for _ in range(shape.prefixes)]

    def release(self) -> None:
        """Let go of weights and caches, and keep the programs. What lay in the slots is lost."""
        self.state, self.rows, self.prefixes, self.owner = None, None, [], None

    def _allocate(self, rows: int, length: int) -> Any:
        return cache.allocate(self.cfg, rows, length, self.dtype, self.stacked, self._sharding(rows))

    def _run(self, name: str, program: Callable, *args: Any) -> Any:
        """Call a jitted program; the first call of a shape is logged as a compilation."""
        shapes = tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(args) if hasattr(x, "shape"))
        key = (name, shapes, jax.tree.structure(args))
        if key in self._seen:
            return program(*args)
        self._seen.add(key)
        begin = time.perf_counter()
        out = program(*args)
        jax.block_until_ready(out)
        self.compiled.append((name, time.perf_counter() - begin))
        log.info("compiled %s in %.1f s (program %d)", *self.compiled[-1], len(self.compiled))
        return out

    def view(self) -> View:
        """An empty view of all slots and prefixes."""
        return cache.idle_view(self.shape.slots, self.shape.row, self.shape.prefixes, self.shape.prefix)

    def prefill_tile(self, prompts: list[np.ndarray], which: int, prefix_length: int) -> Tile:
        """Prefill short prompts (at most 256 tokens each, without their shared prefix) in one call.

        which: the shared prefix they continue (-1: none) and its length. Raises ValueError when they fit no tile.
        """
        longest = max(map(len, prompts))
        r, t = next((r, t) for r, t in TILES if longest <= t and len(prompts) <= r)
        ids_rt = np.zeros((r, t), np.int32)
        for row, ids in zip(ids_rt, prompts, strict=False):
            row[: len(ids)] = ids
        prefixes, view = self._one_prefix(r, 1, which, prefix_length)
        label_rt = np.zeros_like(ids_rt, np.uint8)
        kv, _ = self._run(f"prefill {r}x{t}", self._prefill, self.state, None, prefixes, ids_rt, label_rt, view)
        return Tile(kv, r)

    def prefill_long(self, ids: np.ndarray, capacity: int, which: int = -1, prefix_length: int = 0) -> Tile:
        """Prefill one prompt of any length up to `capacity`, PIECE tokens at a time; memory is linear in its length."""
        capacity = cache.n_blocks(capacity) * BLOCK
        scratch = self._allocate(1, capacity)
        prefixes, view = self._one_prefix(1, capacity, which, prefix_length)
        program = functools.partial(self._run, f"prefill piece of {capacity}", self._prefill, self.state)
        scratch, _ = _in_pieces(program, scratch, prefixes, ids, np.zeros(len(ids), np.uint8), view)
        return Tile(scratch, 1)

    def _one_prefix(self, rows: int, capacity: int, which: int, length: int) -> tuple[tuple[Any, ...], View]:
        """What a prefill of `rows` rows sees: the prefix `which` alone, or (-1) any, unseen, for the same program."""
        prefixes = tuple(self.prefixes[max(which, 0) :][:1])
        view = cache.idle_view(rows, capacity, len(prefixes), self.shape.prefix)
        if which < 0:
            return prefixes, view
        seen = view._replace(prefix_b=np.zeros(rows, np.int32), base_b=np.full(rows, length, np.int32))
        return prefixes, seen._replace(prefix_length_x=np.full(1, length, np.int32))

    def load_prefix(self, ids: np.ndarray, which: int) -> None:
        """Prefill a shared prefix into place `which`. Rows that still use the place must be gone."""
        self.prefixes[which] = self.prefill_long(ids, self.shape.prefix).kv

    def insert(self, tile: Tile, row: int, slot: int) -> None:
        """Copy row `row` of a tile into a slot."""
        name = f"insert {tile.rows} rows"
        self.rows = self._run(name, self._copy_row, self.rows, tile.kv, np.int32(row), np.int32(slot))

    def decode(
        self, slots: programs.Slots, view: View, valid_v: np.ndarray, stop_ids: np.ndarray, early: bool
    ) -> programs.Chunk:
        """Run one chunk; the result is host arrays."""
        self.rows, chunk = self._run(
            "decode",
            self._decode,
            self.state,
            self.rows,
            tuple(self.prefixes),
            slots,
            view,
            valid_v,
            stop_ids,
            np.bool_(early),
        )
        return jax.device_get(chunk)

    def replay(
        self, slot: int, ids: np.ndarray, labels: np.ndarray, first: int, which: int = -1, prefix_length: int = 0
    ) -> np.ndarray:
        """Attention mass per label of a row's queries from position `first` on, float32 [T - first, Q, A, Z].

        ids int32 [T], labels uint8 [T]: the row's text from its shared prefix (`which`, -1: none) on. What comes before
        `first` is read where it lies, in the prefix and the slot, and only the rest is computed again; the slot stays
        as it is. Row i is the query at position first + i, as in `replay` of a whole text.
        """
        capacity = (cache.n_blocks(self.shape.row) + 1) * BLOCK  # the last piece may begin at the row's last token
        scratch, where = self._allocate(1, capacity), (np.int32(slot), np.int32(0))
        scratch = self._run("copy out of a slot", self._copy_out, scratch, self.rows, *where)
        prefixes, view = self._one_prefix(1, capacity, which, prefix_length)
        view.prefix_label_xs[:, :prefix_length] = labels[:prefix_length]
        view.row_label_bs[0, : len(labels) - prefix_length] = labels[prefix_length:]
        view.filled_b[0] = first - prefix_length
        program = functools.partial(self._run, f"replay piece of {capacity}", self._replay, self.state)
        return _in_pieces(program, scratch, prefixes, ids[first:], labels[first:], view)[1]


def _in_pieces(
    program: Callable,
    scratch: Any,
    prefixes: tuple[Any, ...],
    ids: np.ndarray,
    labels: np.ndarray,
    view: View,
) -> tuple[Any, Any]:
    """Run tokens through `programs.prefill`, PIECE at a time, behind the view.filled_b that the scratch holds already.

    Gives the scratch with them, and their mass [T, Q, A, Z] where the program captures it.
    """
    held, masses = int(view.filled_b[0]), []
    for begin in range(0, len(ids), PIECE):
        ids_rt, label_rt = np.zeros((1, PIECE), np.int32), np.full((1, PIECE), LABEL_ID["template"], np.uint8)
        n, filled = len(ids[begin : begin + PIECE]), held + begin
        ids_rt[0, :n], label_rt[0, :n] = ids[begin : begin + n], labels[begin : begin + n]
        view = view._replace(filled_b=np.full(1, filled, np.int32), row_blocks=np.int32(cache.n_blocks(filled)))
        scratch, mass = program(scratch, prefixes, ids_rt, label_rt, view)
        if mass is not None:
            masses.append(np.asarray(mass)[0, :n])
    return scratch, np.concatenate(masses) if masses else None


def replay(
    model: Decoder,
    ids: np.ndarray,
    labels: np.ndarray,
    capture: programs.Capture,
    dtype: Any = None,
    kernel: bool | None = None,
) -> np.ndarray:
    """Attention mass per label of every position of a finished sequence, float32 [T, Q, A, Z], by a second pass.

    Teacher-forced through the prefill program, PIECE queries and BLOCK keys at a time, so that no [T, T] matrix ever
    exists. Row t is the query at position t: what produced token t + 1. Agrees with inline capture to 1e-4.
    kernel: as in `programs.prefill`.
    """
    graph, state = nnx.split(model)
    capacity = BLOCK << (cache.n_blocks(len(ids)) - 1).bit_length()  # doubling: few programs for many lengths
    dtype = dtype or model.embed.w_vd[...].dtype
    where = jax.tree.leaves(state)[0].sharding
    where = NamedSharding(where.mesh, PartitionSpec()) if isinstance(where, NamedSharding) else where
    scratch = cache.allocate(model.cfg, 1, capacity, dtype, model.stacked, where)
    program = _replay_program(graph, capture, where, kernel)
    view = cache.idle_view(1, capacity, 0, 0)
    view.row_label_bs[0, : len(labels)] = labels
    return _in_pieces(functools.partial(program, state), scratch, (), ids, labels, view)[1]


@functools.lru_cache(maxsize=8)
def _replay_program(graph: nnx.GraphDef, capture: programs.Capture, where: Sharding, kernel: bool | None) -> Callable:
    program = functools.partial(programs.prefill, graph, capture, kernel=kernel)
    return jax.jit(program, donate_argnums=(1,), out_shardings=(where, None))
