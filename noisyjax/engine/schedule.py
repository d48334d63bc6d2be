"""The host's loop: keep the slots of the compiled decode loop busy, and take out what has finished.

Waiting requests are prefilled ahead of need (a shared prefix once, short prompts several at a time), copied into slots
as these fall free, and decoded a chunk at a time.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from noisyjax.chat.stops import StopFinder
from noisyjax.engine import cache, programs, sample
from noisyjax.engine.device import TILES, Device, Tile, replay
from noisyjax.engine.plan import Group
from noisyjax.records import LABEL_ID, LABELS, Completion, Finish, Request

if TYPE_CHECKING:
    from noisyjax.engine.local import LocalEngine


@dataclass
class Stats:
    """What the engine did, for progress lines, benchmarks and tests. Seconds are wall clock, compilation included;
    replay_s are those of second passes for attention mass."""

    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    completion_tokens: int = 0
    decode_steps: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    replay_s: float = 0.0
    compiled: list[tuple[str, float]] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens per second of decoding."""
        return self.completion_tokens / self.decode_s if self.decode_s else 0.0


@dataclass
class _Ready:
    """A prefilled request and the samples of it that have no slot yet."""

    request: Request
    tile: Tile | None
    row: int
    own: np.ndarray
    prefix: int
    base: int
    samples: deque[int]
    prompt_mass: np.ndarray | None = None
    """Made with the first sample that is done, for all of them."""


@dataclass
class _Row:
    """A slot at work on one sample."""

    ready: _Ready
    sample: int
    filled: int
    token: int
    label: int
    made: int
    budget: int
    finder: StopFinder
    pieces: list[dict[str, np.ndarray]] = field(default_factory=list)


class Schedule:
    """One call's host loop: slots, waiting requests and prefixes."""

    def __init__(self, engine: "LocalEngine", device: Device, groups: Sequence[Group]) -> None:
        self.engine, self.device, self.stats = engine, device, engine.stats
        device.owner = self
        self.waiting = deque((g, deque(g.requests)) for g in groups)
        self.ready: deque[_Ready] = deque()
        self.rows: list[_Row | None] = [None] * device.shape.slots
        self.held: list[Group | None] = [None] * device.shape.prefixes
        self.view = device.view()
        self.draw = sample.Draw.idle(device.shape.slots)
        self.key_b2 = np.zeros((device.shape.slots, 2), np.uint32)
        self.text_bw = np.zeros((device.shape.slots, device.shape.text), np.int32) if device.shape.guesses else None

    def run(self) -> Iterator[Completion]:
        """Fill, decode, hand out, until nothing is left."""
        while self.waiting or self.ready or any(self.rows):
            if self.device.owner is not self:
                raise RuntimeError("another call of generate has taken this engine's slots; finish one before the next")
            begin = time.perf_counter()
            self._fill()
            middle = time.perf_counter()
            ended = self._decode()
            end = time.perf_counter()
            done = [self._completion(*how) for how in ended]  # before anything else is put into their slots
            self.stats.prefill_s += middle - begin
            self.stats.decode_s += end - middle
            self.stats.replay_s += time.perf_counter() - end
            yield from done

    # -- filling -------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        for slot, row in enumerate(self.rows):
            if row is None:
                if not self.ready and not self._prefill_next():
                    return
                self._occupy(slot)

    def _occupy(self, slot: int) -> None:
        ready = self.ready[0]
        request, number = ready.request, ready.samples.popleft()
        if ready.tile is not None:
            self.device.insert(ready.tile, ready.row, slot)
        prompt = request.prompt
        finder = StopFinder(
            self.engine.tokenizer, request.sampling.stop, self.engine.tokenizer.opens_thought(prompt.ids)
        )
        self.rows[slot] = _Row(
            ready=ready,
            sample=number,
            filled=len(ready.own),
            token=int(prompt.ids[-1]),
            label=int(_labels(request)[-1]),
            made=0,
            budget=self.engine.budget(request),
            finder=finder,
        )
        self.draw.set(slot, request.sampling)
        self.key_b2[slot] = sample.row_key(request.seed, request.step, request.key or request.id, number)
        if self.text_bw is not None:
            self.text_bw[slot, : len(prompt.ids)] = prompt.ids
        labels = _labels(request)[ready.base :]  # the last token's too: the first chunk writes it behind the others
        self.view.row_label_bs[slot] = LABEL_ID["generated"]
        self.view.row_label_bs[slot, : len(labels)] = labels
        if not ready.samples:
            self.ready.popleft()

    def _prefill_next(self) -> bool:
        """Prefill the next waiting requests; False when there are none, or when a prefix has to wait for a place."""
        if not self.waiting:
            return False
        group, requests = self.waiting[0]
        which = self._place(group) if group.length else -1
        if group.length and which < 0:
            return False
        batch = self._take_batch(group, requests)
        own = [r.prompt.ids[group.length : -1] for r in batch]
        tile: Tile | None = None
        if len(own[0]) > TILES[-1][1]:
            tile = self.device.prefill_long(own[0], self.device.shape.row, which, group.length)
        elif max(map(len, own)):
            tile = self.device.prefill_tile(own, which, group.length)
        for row, (request, ids) in enumerate(zip(batch, own, strict=True)):
            samples = deque(range(request.first_sample, request.first_sample + request.n))
            held = tile if len(ids) else None
            self.ready.append(_Ready(request, held, row, ids, which, group.length, samples))
            self.stats.prompt_tokens += len(request.prompt.ids)
            self.stats.prefilled_tokens += len(ids)
        if not requests:
            self.waiting.popleft()
        return True

    @staticmethod
    def _take_batch(group: Group, requests: deque[Request]) -> list[Request]:
        """The first waiting request and the next few that fit the same tile."""

        def length(request: Request) -> int:
            return len(request.prompt.ids) - group.length - 1

        batch = [requests.popleft()]
        fitting = [(r, t) for r, t in TILES if length(batch[0]) <= t]
        if fitting:
            rows, tokens = fitting[0]
            while requests and len(batch) < rows and length(requests[0]) <= tokens:
                batch.append(requests.popleft())
        return batch

    def _place(self, group: Group) -> int:
        """Where a group's prefix lies, loading it if need be; -1 when every place is still in use."""
        for which, held in enumerate(self.held):
            if held is group:
                return which
        used = {row.ready.prefix for row in self.rows if row} | {r.prefix for r in self.ready}
        free = [i for i in range(len(self.held)) if i not in used]
        if not free:
            return -1
        which = next((i for i in free if self.held[i] is None), free[0])
        self.held[which] = group
        self.device.load_prefix(group.prefix, which)
        self.stats.prefilled_tokens += group.length
        self.view.prefix_label_xs[which, : group.length] = _labels(group.requests[0])[: group.length]
        return which

    # -- decoding ------------------------------------------------------------------------------------------------

    def _decode(self) -> list[tuple[int, _Row, int, Finish]]:
        """Run a chunk; the rows that ended with it, as `_completion` takes them."""
        active = [(slot, row) for slot, row in enumerate(self.rows) if row is not None]
        if not active:
            return []
        slots, view = self._inputs(active)
        early = bool(self.waiting or self.ready)
        chunk = self.device.decode(slots, view, self.engine.valid_v, self.engine.stop_ids, early)
        self.stats.decode_steps += int(chunk.steps)
        return [(slot, row, *end) for slot, row in active if (end := self._advance(slot, row, chunk))]

    def _inputs(self, active: Sequence[tuple[int, _Row]]) -> tuple[programs.Slots, cache.View]:
        b = len(self.rows)
        slots = programs.Slots(
            token_b=np.zeros(b, np.int32),
            label_b=np.full(b, LABEL_ID["generated"], np.uint8),
            made_b=np.zeros(b, np.int32),
            budget_b=np.zeros(b, np.int32),
            active_b=np.zeros(b, bool),
            eos_stops_b=np.zeros(b, bool),
            key_b2=self.key_b2,
            draw=self.draw,
            text_bw=self.text_bw,
            held_b=np.ones(b, np.int32),
        )
        view = self.view._replace(base_b=np.zeros(b, np.int32), prefix_b=np.full(b, -1, np.int32))
        view.filled_b[:] = 0
        for slot, row in active:
            slots.token_b[slot], slots.label_b[slot], slots.made_b[slot] = row.token, row.label, row.made
            slots.budget_b[slot] = row.budget - row.made
            slots.active_b[slot] = True
            slots.held_b[slot] = row.ready.base + row.filled + 1
            slots.eos_stops_b[slot] = not row.ready.request.sampling.ignore_eos
            view.filled_b[slot] = row.filled
            view.base_b[slot], view.prefix_b[slot] = row.ready.base, row.ready.prefix
        return slots, self._with_lengths(view, {row.ready.prefix for _, row in active} - {-1})

    def _with_lengths(self, view: cache.View, prefixes: set[int]) -> cache.View:
        lengths = np.zeros_like(view.prefix_length_x)
        for which in prefixes:
            group = self.held[which]
            assert group is not None
            lengths[which] = group.length
        return view._replace(prefix_length_x=lengths, row_blocks=np.int32(cache.n_blocks(view.filled_b.max())))

    def _advance(self, slot: int, row: _Row, chunk: programs.Chunk) -> tuple[int, Finish] | None:
        """Take a row's new tokens in; when the row is done, how many of its tokens count, and why it ended."""
        n = int(chunk.count_b[slot])
        names = [name for name in chunk._fields[3:] if getattr(chunk, name) is not None]
        row.pieces.append({name: getattr(chunk, name)[slot, :n] for name in names})
        tokens = row.pieces[-1]["token_bc"]
        row.made, row.filled, row.token, row.label = (
            row.made + n,
            row.filled + n,
            int(tokens[-1]),
            LABEL_ID["generated"],
        )
        stopped = not row.ready.request.sampling.ignore_eos and bool(np.isin(tokens[-1], self.engine.stop_ids))
        keep = row.finder.push(tokens[:-1] if stopped else tokens)
        self.stats.completion_tokens += n
        if self.text_bw is not None:
            held = row.ready.base + row.filled + 1
            self.text_bw[slot, held - n : held] = tokens
        if keep is None and not stopped and row.made < row.budget:
            return None
        self.rows[slot] = None
        self.draw.set(slot, _IDLE)
        finish = Finish.STOP if stopped or keep is not None else Finish.LENGTH
        return row.made if keep is None else keep, finish

    def _completion(self, slot: int, row: _Row, keep: int, finish: Finish) -> Completion:
        request = row.ready.request
        made: dict[str, np.ndarray] = {
            name: np.concatenate([piece[name] for piece in row.pieces])[:keep] for name in row.pieces[0]
        }
        if self.engine.config.capture.prompt and row.ready.prompt_mass is None:
            capture = self.engine.capture
            capture = capture._replace(layers=tuple(sorted(capture.layers + self.engine.replayed.layers)))
            mass = replay(self.engine.model, request.prompt.ids, _labels(request), capture)
            row.ready.prompt_mass = mass[..., : len(LABELS)]
        return Completion(
            request_id=request.id,
            sample=row.sample,
            text=row.finder.finish(),
            finish=finish,
            ids=made["token_bc"],
            logprobs=made.get("logprob_bc"),
            entropy=made.get("entropy_bc"),
            top_ids=made.get("top_id_bcj"),
            top_logprobs=made.get("top_logprob_bcj"),
            mass=self._mass(slot, row, made),
            prompt_mass=row.ready.prompt_mass,
            prompt_tokens=len(request.prompt.ids),
            completion_tokens=keep,
        )

    def _mass(self, slot: int, row: _Row, made: dict[str, np.ndarray]) -> np.ndarray | None:
        """Attention mass of a row's tokens [R, L, A, N]: captured in the loop, or replayed now, in layer order."""
        ready, replayed = row.ready, self.engine.replayed.layers
        parts = [made["mass_bcqaz"]] if "mass_bcqaz" in made else []
        if replayed:
            prompt, token_c = ready.request.prompt.ids, made["token_bc"]
            ids = np.concatenate([prompt, token_c])[:-1]  # the last token is never a query
            labels = np.full(len(ids), LABEL_ID["generated"], np.uint8)
            labels[: len(prompt)] = _labels(ready.request)
            parts.append(self.device.replay(slot, ids, labels, len(prompt) - 1, ready.prefix, ready.base))
        if not parts:
            return None
        order = np.argsort(self.engine.capture.layers + replayed)
        return np.concatenate(parts, 1)[:, order, :, : len(LABELS)]


_IDLE = sample.Sampling()


def _labels(request: Request) -> np.ndarray:
    """uint8 [T]; a prompt without labels is all template."""
    prompt = request.prompt
    return prompt.labels if len(prompt.labels) else np.full(len(prompt.ids), LABEL_ID["template"], np.uint8)
