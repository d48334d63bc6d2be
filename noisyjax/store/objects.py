"""A run on an object store (gs://, s3://, memory:// ...) through fsspec.

Objects cannot be appended to, so a log is a row of immutable segments, `samples/g0-000001.jsonl`, listed with their
sizes in `samples/segments.json`. A segment is written whole before the list names it; one that the list does not name
yet (the writer died between the two) is taken in by the next reader. Replacing a log starts a new generation `g1-...`,
which counts from the moment the list says so.
"""

import json
import posixpath
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from noisyjax.errors import RunError, UsageError
from noisyjax.store.folder import Batch, reading_failed, storing_failed

SEGMENTS = Batch(records=64, size=4 << 20, seconds=30.0)
"""When a segment is written: a request to an object store per sample would be slow and dear."""


class ObjectFolder:
    """A prefix of an object store."""

    batch = SEGMENTS

    def __init__(self, fs: Any, root: str, url: str):
        self.fs, self.root, self.url = fs, root.rstrip("/"), url.rstrip("/")

    @classmethod
    def from_url(cls, url: str) -> "ObjectFolder":
        import fsspec

        try:
            fs, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            how = "pip install 'noisyjax[gcs]'" if url.startswith("gs://") else str(error)
            raise UsageError(f"{url}: this kind of storage needs a package that is not here: {how}") from None
        except ValueError as error:
            raise UsageError(f"{url}: this kind of storage cannot be opened here: {error}") from None
        return cls(fs, root, url)

    def call[T](self, action: Callable[[], T], failed: Callable[[str, BaseException], RunError] = storing_failed) -> T:
        """Run a storage call; whatever its client raises for a lost connection becomes the RunError of `failed`."""
        try:
            return action()
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            # Each client library has exceptions of its own, most of them no OSError.
            raise failed(self.url, error) from error

    def _put[T](self, action: Callable[[], T]) -> T:
        """`call` for what makes an object: only a bucket can be missing then."""
        try:
            return self.call(action)
        except FileNotFoundError as error:
            raise storing_failed(self.url, error) from error

    def path(self, name: str) -> str:
        return posixpath.join(self.root, name)

    def read(self, name: str) -> bytes | None:
        try:
            return self.call(lambda: self.fs.cat_file(self.path(name)), reading_failed)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        self._put(lambda: self.fs.pipe_file(self.path(name), data))

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._put(lambda: self.fs.pipe_file(self.path(name), data, mode="create"))
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        try:
            self.call(lambda: self.fs.rm_file(self.path(name)))
        except FileNotFoundError:
            return

    def age(self, name: str) -> float | None:
        try:
            when = self.call(lambda: self.fs.modified(self.path(name)))
        except FileNotFoundError:
            return None
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return (datetime.now(UTC) - when).total_seconds()

    def sizes(self, name: str = "") -> dict[str, int]:
        """File name -> bytes, for the files directly inside."""
        return {posixpath.basename(i["name"]): i["size"] for i in self._list(name) if i["type"] == "file"}

    def names(self) -> list[str]:
        return sorted(posixpath.basename(i["name"].rstrip("/")) for i in self._list(""))

    def children(self) -> list[str]:
        return sorted(posixpath.basename(i["name"].rstrip("/")) for i in self._list("") if i["type"] == "directory")

    def _list(self, name: str) -> list[dict[str, Any]]:
        where = self.path(name) if name else self.root
        try:
            self.fs.invalidate_cache()
            return self.call(lambda: self.fs.ls(where, detail=True), reading_failed)
        except FileNotFoundError:
            return []

    def child(self, name: str) -> "ObjectFolder":
        return ObjectFolder(self.fs, self.path(name), f"{self.url}/{name}")

    def log(self, name: str) -> "ObjectLog":
        return ObjectLog(self, name)


class ObjectLog:
    """Lines gathered into segments, one per flush."""

    def __init__(self, folder: ObjectFolder, name: str):
        self.folder, self.name = folder, name
        self._waiting: list[bytes] = []
        self._index: dict[str, Any] | None = None

    def _load(self) -> dict[str, Any]:
        """`{"generation": 0, "segments": {file name: bytes}}`, with unlisted segments taken in."""
        raw = self.folder.read(f"{self.name}/segments.json")
        index: dict[str, Any] = json.loads(raw) if raw else {"generation": 0, "segments": {}}
        present = self.folder.sizes(self.name)
        for file, size in index["segments"].items():
            if present.get(file) != size:
                found = "missing" if file not in present else f"{present[file]} bytes long"
                raise RunError(f"{self.folder.url}/{self.name}/{file} should be {size} bytes, but is {found}")
        prefix = f"g{index['generation']}-"
        index["segments"] |= {f: s for f, s in present.items() if f.startswith(prefix) and f not in index["segments"]}
        return index

    def lines(self) -> Iterator[bytes]:
        for file in sorted(self._load()["segments"]):
            data = self.folder.read(f"{self.name}/{file}") or b""
            yield from data.split(b"\n")[:-1]

    def put(self, line: bytes) -> None:
        self._waiting.append(line)

    def flush(self) -> None:
        if not self._waiting:
            return
        lines, self._waiting = self._waiting, []
        if self._index is None:
            self._index = self._load()
        self._write(self._index, lines)

    def _write(self, index: dict[str, Any], lines: list[bytes]) -> None:
        generation, data = index["generation"], b"".join(lines)
        number = 1 + max((int(f[f.index("-") + 1 : -6]) for f in index["segments"]), default=0)
        file = f"g{generation}-{number:06d}.jsonl"
        if not self.folder.create(f"{self.name}/{file}", data):
            raise RunError(f"{self.folder.url}/{self.name}/{file} appeared meanwhile: another process writes this run")
        index["segments"][file] = len(data)
        self.folder.write(f"{self.name}/segments.json", json.dumps(index).encode())

    def replace(self, lines: Iterable[bytes]) -> None:
        self._waiting = []
        index = {"generation": self._load()["generation"] + 1, "segments": {}}
        for file in self.folder.sizes(self.name):  # left by a replacement that died half-way
            if file.startswith(f"g{index['generation']}-"):
                self.folder.delete(f"{self.name}/{file}")
        self._write(index, list(lines))
        self._index = index

    def close(self) -> None:
        self._waiting = []
