"""The order in which training sees its records, and the one number that remembers how far it got.

    epoch 0                epoch 1
    r3 r0 r4 r1 r2 | r1 r4 r0 r2 r3 | ...          the global order: a permutation per epoch, drawn by the seed
             ^ cursor = 3

Every process walks the same global order and prepares the same records, so all agree without a word on what is left
out; each then takes its share of the batch. That costs each process the tokenising of the whole batch (at the paper's
sizes a fraction of a second, done ahead in threads) and buys that the cursor is one number that holds for any number
of processes: a run goes on elsewhere without a gap and without a repeat.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from noisyjax.bench.seeds import digest
from noisyjax.config import Schema, validate
from noisyjax.errors import UsageError
from noisyjax.instruct.files import Identified, RecordFiles
from noisyjax.instruct.schema import DataConfig


@dataclass(frozen=True)
class Kept[T]:
    """What was made of a record, with notes that are only counted."""

    item: T
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Left:
    """A record that is left out, and why, in a word that is counted."""

    reason: str


@dataclass(frozen=True)
class Batch[T]:
    """A process's share of the next records.

    `total` is the size of the whole batch, the same in all processes: less than asked for only at the end of the
    last epoch, 0 behind it. `first` is the place of the share's first item in the whole batch; shares are contiguous,
    in the order of processes. `state` is the cursor behind this batch, for the checkpoint of the step that uses it.
    """

    items: tuple[T, ...]
    total: int
    first: int
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Counts:
    """Over the global order, since this process began: the same in every process, not part of the cursor."""

    seen: int
    left: Mapping[str, int]
    """Records left out, by reason."""
    notes: Mapping[str, int]
    """Records kept, by what was noted of them."""

    @property
    def kept(self) -> int:
        return self.seen - sum(self.left.values())

    @property
    def kept_share(self) -> float | None:
        """None before anything was seen."""
        return self.kept / self.seen if self.seen else None


class Cursor(Schema):
    """Where in the global order a run stands. Holds no process, host or thread."""

    epoch: int = Field(ge=0)
    cursor: int = Field(ge=0)
    """Records of this epoch's order that are done."""
    seed: int | None
    """None for the order of the files."""
    fingerprint: str
    """Of the data, see `RecordFiles`."""


@dataclass
class _Tally:
    seen: int = 0
    left: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


class RecordStream[R: Identified, T]:
    """Batches of what `prepare` makes of the records, in the global order.

    `prepare` must be a pure function and safe to call from threads. `process_index` and `process_count` are JAX's.
    Raises UsageError for a process that cannot be, and when the `train` extra is missing.
    """

    def __init__(
        self,
        records: RecordFiles[R],
        prepare: Callable[[R], Kept[T] | Left],
        config: DataConfig,
        *,
        seed: int = 0,
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        if not 0 <= process_index < process_count:
            raise UsageError(f"process {process_index} of {process_count} cannot be")
        self.records = records
        self._prepare = prepare
        self._seed = seed if config.shuffle else None
        self._process = (process_index, process_count)
        self._tally = _Tally()
        self._since_kept = 0
        self._done = 0
        order = _global_order(len(records), self._seed, config.epochs)
        self._length = len(order)
        self._iterator = _iterate(order.map(self._make), config)

    def take(self, n: int) -> Batch[T]:
        """This process's share of the next `n` records of the global order that are not left out.

        Raises ValueError for n < 1, and UsageError that names the record when one cannot be used, or when a whole
        pass over the data gave nothing.
        """
        if n < 1:
            raise ValueError(f"a batch holds at least one record, not {n}")
        items: list[T] = []
        while len(items) < n:
            try:
                made = next(self._iterator)
            except StopIteration:
                break
            self._count(made)
            if isinstance(made, Kept):
                items.append(made.item)
        index, count = self._process
        first, end = index * len(items) // count, (index + 1) * len(items) // count
        return Batch(tuple(items[first:end]), len(items), first, self.state())

    def batches(self, n: int) -> Iterator[Batch[T]]:
        """Batches of `n` until the epochs are over; the last may be smaller."""
        while (batch := self.take(n)).total:
            yield batch

    def state(self) -> dict[str, Any]:
        """The cursor, JSON-ready: what `restore` of any process of any number of them takes."""
        epoch, cursor = divmod(self._done, len(self.records))
        return Cursor(epoch=epoch, cursor=cursor, seed=self._seed, fingerprint=self.records.fingerprint).model_dump()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on behind `state`. Raises UsageError when it belongs to other data or another order."""
        cursor = validate(Cursor, state, "the data cursor of the checkpoint")
        if cursor.fingerprint != self.records.fingerprint:
            raise UsageError(
                f"the training data has changed: the checkpoint was made on {cursor.fingerprint}, these files are "
                f"{self.records.fingerprint}. Give the files it began with (and skip_bad as it was), or start a new run"
            )
        if cursor.seed != self._seed:
            raise UsageError(
                f"the order of the data has changed: the checkpoint's seed is {cursor.seed}, this run's is "
                f"{self._seed} (none without shuffle). Set it back, or start a new run"
            )
        done = cursor.epoch * len(self.records) + cursor.cursor
        if cursor.cursor >= len(self.records) or done > self._length:
            raise UsageError(f"the data cursor of the checkpoint lies behind the data's end (record {done})")
        self._iterator.set_state({"next_index": done})
        self._done, self._since_kept = done, 0

    @property
    def counts(self) -> Counts:
        """What was seen, kept and left out so far."""
        return Counts(self._tally.seen, dict(self._tally.left), dict(self._tally.notes))

    def close(self) -> None:
        """End the threads that prepare ahead."""
        self._iterator.close()

    def _make(self, i: int) -> Kept[T] | Left:
        record = self.records[i]
        try:
            return self._prepare(record)
        except UsageError as error:
            raise UsageError(f"{self.records.where(i)} ({record.id}): {error}") from error

    def _count(self, made: Kept[T] | Left) -> None:
        self._done += 1
        self._tally.seen += 1
        if isinstance(made, Kept):
            self._since_kept = 0
            self._tally.notes.update(made.notes)
            return
        self._tally.left[made.reason] += 1
        self._since_kept += 1
        if self._since_kept >= len(self.records):
            reasons = ", ".join(f"{n} {reason}" for reason, n in self._tally.left.most_common())
            raise UsageError(f"none of the {len(self.records)} records can be used ({reasons}): raise the limits")


def _global_order(records: int, seed: int | None, epochs: int | None) -> Any:
    """A grain dataset of record numbers, all epochs in a row, each with a permutation of its own."""
    try:
        import grain
    except ImportError as error:
        raise UsageError("reading training data needs the extra: pip install 'noisyjax[train]'") from error
    order = grain.MapDataset.range(records)
    if seed is not None:
        # grain draws epoch e by seed + e: hashed, so that the epochs of seed 1 are not those of seed 0 moved by one.
        order = order.shuffle(seed=digest("instruct", seed) % 2**32)
    return order.repeat(epochs)


def _iterate(dataset: Any, config: DataConfig) -> Any:
    """An iterator that prepares ahead in threads; its position can be set."""
    import grain

    ahead = config.ahead if config.threads else 0
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=config.threads, prefetch_buffer_size=ahead)))
