"""One run folder: manifest, resolved config, and append-only logs (docs/store.md).

    questions  every question that was asked, once each, with its gold answers
    texts      the distinct texts that prompts are made of, once each
    prompts    every prompt as labelled references to texts
    samples    one completion per (cell, question, sample)
    verdicts   what a judge said about answers (written by `noisyjax.judge.VerdictCache`)
    scores     what scoring made of them; `rescore` rewrites these and nothing else

A sample counts as done once it is durable. A log may hold a key twice (a failed sample that was tried again, a crash
between two writes): readers take the last record, but never a failure in place of a success.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from noisyjax.config import RESOLVED_NAME
from noisyjax.errors import RunError, UsageError, nearest
from noisyjax.records import Completion, Finish, Score
from noisyjax.store.encode import encode_completion, encode_score, to_line
from noisyjax.store.folder import Folder, Log, open_folder
from noisyjax.store.lock import LOCK_NAME, Lock
from noisyjax.store.manifest import MANIFEST_NAME, Manifest

_log = logging.getLogger(__name__)

LOGS = ("questions", "texts", "prompts", "samples", "verdicts", "scores")
"""In the order in which they are flushed: what a record refers to is durable before the record."""

_NEEDED = {
    "questions": {"id"},
    "texts": {"id"},
    "prompts": {"id"},
    "samples": {"cell", "question", "sample", "finish"},
    "scores": {"cell", "question", "sample"},
}
"""Keys without which a record cannot be placed."""


class Key(NamedTuple):
    """What a sample is of. `cell` is the cell's hashed id."""

    cell: str
    question: str
    sample: int


class RunReader:
    """Reads a run, finished or not, also while somebody else writes it."""

    def __init__(self, folder: Folder):
        raw = folder.read(MANIFEST_NAME)
        if raw is None:
            raise _not_a_run(folder)
        self.folder = folder
        self.manifest = Manifest.from_json(raw, folder.url)
        self.logs: dict[str, Log] = {name: folder.log(name) for name in LOGS}

    def records(self, log: str) -> Iterator[dict[str, Any]]:
        """Every record of a log in stored order; a line that is no such record is a RunError with its place."""
        for number, line in enumerate(self.logs[log].lines(), start=1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not _NEEDED.get(log, set()) <= record.keys():
                raise RunError(f"{self.folder.url}: line {number} of the log '{log}' is broken; remove it to go on")
            yield record

    def latest(self, log: str) -> dict[Key, dict[str, Any]]:
        """The record that holds for each key; a success is never replaced by a later failure."""
        found: dict[Key, dict[str, Any]] = {}
        for record in self.records(log):
            key = key_of(record)
            if record.get("finish") != Finish.ERROR or key not in found:
                found[key] = record
        return found


class RunWriter(RunReader):
    """The only writer of a run: holds its lock from `open` to `close`."""

    def __init__(self, folder: Folder, lock: Lock):
        super().__init__(folder)
        self._lock = lock
        self._known = {name: {r["id"] for r in self.records(name)} for name in ("questions", "texts", "prompts")}
        self.done: set[Key] = {key_of(r) for r in self.records("samples") if r["finish"] != Finish.ERROR}
        """Durable samples. A failed one (Finish.ERROR) is not among them, so that a resumed run tries it again."""
        self._fresh: list[Key] = []
        self._records, self._bytes, self._since = 0, 0, 0.0

    @classmethod
    def open(
        cls,
        url: str | Path,
        manifest: Manifest,
        resolved: str,
        say: Callable[[str], None] = _log.warning,
    ) -> "RunWriter":
        """Begin the run at `url`, or go on with it. `resolved` is the YAML written beside it.

        UsageError when `url` holds a run with another config, or files that are no run; RunError when another process
        writes it.
        """
        check_place(url)
        folder = open_folder(url)
        lock = Lock(folder, say)
        try:
            raw = folder.read(MANIFEST_NAME)
            if raw is None:
                folder.write(RESOLVED_NAME, resolved.encode())
                folder.write(MANIFEST_NAME, manifest.to_json())
            else:
                manifest.check_resumes(Manifest.from_json(raw, folder.url), folder.url)
            return cls(folder, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def reopen(cls, url: str | Path, say: Callable[[str], None] = _log.warning) -> "RunWriter":
        """Open an existing run for writing as it is (rescoring, judging). UsageError when there is none."""
        folder = open_folder(url)
        if folder.read(MANIFEST_NAME) is None:
            raise _not_a_run(folder)
        lock = Lock(folder, say)
        try:
            return cls(folder, lock)
        except BaseException:
            lock.release()
            raise

    def put_once(self, log: str, record: Mapping[str, Any]) -> None:
        """Store a question, text or prompt; `record["id"]` identifies it, and one that is known is not stored again."""
        if record["id"] not in self._known[log]:
            self._known[log].add(record["id"])
            self._put(log, record)

    def put_sample(self, key: Key, prompt: str, completion: Completion) -> None:
        """Store one completion; durable on return for a local folder, with the next segment elsewhere."""
        self._put("samples", {**key._asdict(), "prompt": prompt, **encode_completion(completion)})
        if completion.finish != Finish.ERROR:
            self._fresh.append(key)
        self._flush_if_due()

    def put_score(self, key: Key, score: Score) -> None:
        """Scores can be made again from samples, so they wait for the next flush."""
        self._put("scores", score_record(key, score))

    def replace_scores(self, scores: Iterable[tuple[Key, Score]]) -> None:
        """Put these scores in the place of all stored ones, at once."""
        self.flush()
        self.logs["scores"].replace(to_line(score_record(key, score)) for key, score in scores)

    def set_about(self, name: str, value: Any) -> None:
        """Note something for readers in the manifest; it is never compared."""
        if self.manifest.about.get(name) != value:
            self.manifest = replace(self.manifest, about={**self.manifest.about, name: value})
            self.folder.write(MANIFEST_NAME, self.manifest.to_json())

    def _put(self, log: str, record: Mapping[str, Any]) -> None:
        line = to_line(record)
        if not self._records:
            self._since = time.monotonic()
        self._records += 1
        self._bytes += len(line)
        self.logs[log].put(line)

    def _flush_if_due(self) -> None:
        batch = self.folder.batch
        waited = time.monotonic() - self._since
        if self._records >= batch.records or self._bytes >= batch.size or waited >= batch.seconds:
            self.flush()

    def flush(self) -> None:
        """Make everything put so far durable."""
        for name in LOGS:
            self.logs[name].flush()
        self.done.update(self._fresh)
        self._fresh = []
        self._records = self._bytes = 0
        self._lock.renew()

    def close(self, flush: bool = True) -> None:
        """Flush (unless storing has just failed) and give the lock back."""
        try:
            if flush:
                self.flush()
        finally:
            for log in self.logs.values():
                log.close()
            self._lock.release()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After a failed write another attempt would only hide the first error; after an interrupt it keeps work.
        self.close(flush=kind is None or not issubclass(kind, RunError))


def key_of(record: Mapping[str, Any]) -> Key:
    return Key(record["cell"], record["question"], record["sample"])


def score_record(key: Key, score: Score) -> dict[str, Any]:
    return {**key._asdict(), **encode_score(score)}


def open_readers(url: str | Path) -> list[RunReader]:
    """The run at `url`, or all its shards when it was made by several hosts. UsageError names what is missing."""
    folder = open_folder(url)
    if folder.read(MANIFEST_NAME) is not None:
        return [RunReader(folder)]
    if not (shards := _shards(folder)):
        raise _not_a_run(folder)
    return [RunReader(folder.child(name)) for name in shards]


def is_run(folder: Folder) -> bool:
    """Whether the folder says that it is a run, or the shards of one; whether it can be read is another question."""
    return folder.read(MANIFEST_NAME) is not None or bool(_shards(folder))


def _shards(folder: Folder) -> list[str]:
    return [name for name in folder.children() if name.startswith("shard-")]


def check_place(url: str | Path) -> None:
    """UsageError when `url` is neither empty nor a run: a run never mixes its files with others."""
    folder = open_folder(url)
    own = {LOCK_NAME, RESOLVED_NAME, MANIFEST_NAME}
    names = folder.names()
    foreign = [name for name in names if name not in own and not name.startswith(".")]
    if not foreign or MANIFEST_NAME in names:
        return
    if any(name.removesuffix(".jsonl") == "samples" for name in foreign):
        raise UsageError(
            f"{folder.url} holds samples of a run whose {MANIFEST_NAME} is lost: restore that file, or choose another "
            "folder with out=FOLDER"
        )
    few = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
    raise UsageError(
        f"{folder.url} is not empty and holds no run ({few}). Choose a new or an empty folder with out=FOLDER"
    )


def _not_a_run(folder: Folder) -> UsageError:
    """Names the nearest run beside the one that is not there."""
    above, _, name = folder.url.rstrip("/").rpartition("/")
    beside = open_folder(above or ".")
    runs = [child for child in beside.children() if beside.child(child).read(MANIFEST_NAME) is not None]
    hint = f"; {nearest(name, runs)}" if runs else ""
    there = folder.names() or folder.children()
    why = f"it has no {MANIFEST_NAME}" if there else "there is nothing at that place"
    return UsageError(f"{folder.url} is not a run: {why}{hint}")
