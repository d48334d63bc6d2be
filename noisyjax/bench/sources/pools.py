"""Load the pool of a kind: its files (named, found in the data folder, or streamed from the hub) in seeded order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from noisyjax.bench.questions.files import hub_rows
from noisyjax.bench.questions.rows import BadRows, Row, read_rows
from noisyjax.bench.schema import ChatPoolConfig, PoolConfig
from noisyjax.bench.seeds import seeded_order
from noisyjax.bench.sources.chats import ChatFilter, read_chats
from noisyjax.bench.sources.documents import read_documents
from noisyjax.bench.task import Hub
from noisyjax.errors import UsageError, nearest
from noisyjax.records import Unit

Group = tuple[Unit, ...]
PoolKind = Literal["RD", "RC"]

PLACES = {
    "RD": (
        "hotpotqa/hotpot*.json",
        "hotpot_dev_distractor_v1.json",
        "hotpot*.json",
        "hotpotqa/*.jsonl",
        "hotpotqa/*.parquet",
    ),
    "RC": (
        "wildchat/*.jsonl",
        "wildchat/*.parquet",
        "WildChat*.jsonl",
        "chat_standin/mtbench101.jsonl",
        "mtbench101.jsonl",
    ),
}
HUBS = {
    "RD": Hub(dataset="hotpotqa/hotpot_qa", config="distractor", split="validation"),
    "RC": Hub(dataset="allenai/WildChat-1M", split="train", gated=True),
}


@dataclass(frozen=True)
class Pool:
    """`groups` are all groups of the source in the order of (block seed, id); the first `size` are the pool proper.

    The rest are the reserve that contaminated units are swapped against.
    """

    kind: PoolKind
    groups: tuple[Group, ...]
    size: int
    files: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()


def load_pool(
    kind: PoolKind, config: PoolConfig, data: Path | None, block_seed: int, skip_bad: bool = False
) -> Pool | None:
    """The pool of `kind`; None when no file was named and none lies in `data`. `data` None means the hub.

    Raises UsageError for a named file that is missing, a broken row, and fewer groups than `config.pool`.
    """
    bad = BadRows(skip_bad)
    files = list(existing(config.files)) if config.files else _find(kind, data)
    rows: Iterable[Row]
    if files:
        rows = (row for path in files for row in read_rows(path, bad))
    elif data is None:
        rows = islice(hub_rows(HUBS[kind], f"the {kind} pool", stream=True), config.hub_rows)
    else:
        return None
    groups = _groups(kind, rows, config, bad)
    if len(groups) < config.pool:
        raise UsageError(
            f"{kind}: a pool of {config.pool} was asked for, {', '.join(map(str, files)) or 'the hub'} has "
            f"{len(groups)} that fit: set {kind.lower()}.pool={len(groups)} or give a larger file"
        )
    ordered = seeded_order(groups, lambda group: group[0].id, block_seed, kind)
    return Pool(kind, tuple(ordered), config.pool, tuple(map(str, files)), tuple(bad.found))


def _groups(kind: str, rows: Iterable[Row], config: PoolConfig, bad: BadRows) -> list[Group]:
    if isinstance(config, ChatPoolConfig):
        return read_chats(rows, bad, ChatFilter(config.language, config.min_turns, config.max_turns))
    return read_documents(rows, bad)


def _find(kind: str, data: Path | None) -> list[Path]:
    if data is None:
        return []
    for pattern in PLACES[kind]:
        found = sorted(data.glob(pattern))
        if found:
            return found
    return []


def existing(names: Iterable[str]) -> Iterator[Path]:
    """The files called `names`. Raises UsageError with the nearest name for one that is not there."""
    for name in names:
        path = Path(name).expanduser()
        if not path.is_file():
            near = nearest(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
            raise UsageError(f"{name}: no such file. {near}".rstrip())
        yield path
