"""Where a run lives: a local folder or a prefix of an object store, behind one small interface.

Both hold whole files (written atomically) and append-only logs of lines. What `Log.flush` has returned for is durable.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from noisyjax.errors import RunError, UsageError


@dataclass(frozen=True)
class Batch:
    """Flush when this many records, bytes or seconds have gathered, whichever comes first."""

    records: int
    size: int
    seconds: float


class Log(Protocol):
    """An append-only log of lines that end in a newline byte."""

    def lines(self) -> Iterator[bytes]:
        """Every durable line, oldest first, without its newline. A line that was cut short is not one."""

    def put(self, line: bytes) -> None:
        """Take a line (with its newline). It is durable only after the next `flush`."""

    def flush(self) -> None: ...

    def replace(self, lines: Iterable[bytes]) -> None:
        """Put `lines` in the place of all that the log holds, at once: a reader sees the old or the new."""

    def close(self) -> None:
        """Give back what is open, without flushing."""


class Folder(Protocol):
    url: str
    batch: Batch

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, data: bytes) -> None: ...

    def create(self, name: str, data: bytes) -> bool:
        """Write the file only if there is none; says whether it did."""

    def delete(self, name: str) -> None: ...

    def age(self, name: str) -> float | None:
        """Seconds since the file was last written; None when there is none or the store cannot tell."""

    def names(self) -> list[str]:
        """Names of everything inside, sorted; none for a folder that is not there."""

    def children(self) -> list[str]:
        """Names of the folders inside, sorted."""

    def child(self, name: str) -> "Folder": ...

    def log(self, name: str) -> Log: ...


def open_folder(url: str | Path) -> Folder:
    """`gs://bucket/run` and other URLs through fsspec, anything else as a local path."""
    text = str(url)
    if "://" not in text or text.startswith("file://"):
        return LocalFolder(Path(text.removeprefix("file://")))
    from noisyjax.store.objects import ObjectFolder

    return ObjectFolder.from_url(text)


def write_text(out: Path, content: str) -> Path:
    """Write a whole file that is no run's, or leave the old one; returns its path. RunError where that fails.

    A link's target is written, and what is no file, such as a pipe or `/dev/null`, is written into and stays what it
    is. Texts of models may hold lone surrogates, which no file can; they become `?`.
    """
    try:
        data = content.encode(errors="replace")
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and not out.is_file():
            out.write_bytes(data)
        else:
            _replace_file(out.resolve(), [data])
    except OSError as error:
        raise RunError(f"could not write {out}: {error.strerror or error}") from error
    return out


@contextlib.contextmanager
def storing(url: str) -> Iterator[None]:
    """Turn a full disk or a lost connection into a RunError that says what is safe and what to do."""
    try:
        yield
    except OSError as error:
        raise storing_failed(url, error) from error


def storing_failed(url: str, error: BaseException) -> RunError:
    return RunError(
        f"could not store to {url}: {_reason(error)}. Nothing stored before is harmed; "
        f"{remedy(error)} and run the same command again: it goes on from there."
    )


def reading_failed(url: str, error: BaseException) -> RunError:
    return RunError(
        f"could not read {url}: {_reason(error)}. Give this account the right to read there (or bring the connection "
        "back) and run the same command again"
    )


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def remedy(error: BaseException) -> str:
    """What a person has to do before storage works again; client libraries have names of their own for what it was."""
    told = f"{type(error).__name__} {error}".casefold()
    if isinstance(error, FileNotFoundError):
        return "make the bucket (or correct its name)"
    if any(word in told for word in ("permission", "forbidden", "denied", "unauthorized", "credential")):
        return "give this account the right to read and write there"
    return "make room (or bring the connection back)"


class LocalFolder:
    """A folder on a local (or mounted) file system: every record is flushed at once."""

    batch = Batch(records=1, size=0, seconds=0.0)

    def __init__(self, path: Path):
        self.path = path
        self.url = str(path)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"{self.path} cannot be a run folder: a file is in the way") from None

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise RunError(f"could not read {self.path / name}: {error.strerror or error}") from error

    def write(self, name: str, data: bytes) -> None:
        with storing(self.url):
            self._make()
            _replace_file(self.path / name, [data])

    def create(self, name: str, data: bytes) -> bool:
        with storing(self.url):
            self._make()
            beside = self.path / f".{name}.{os.getpid()}"
            try:
                beside.write_bytes(data)
                os.link(beside, self.path / name)  # whole or not at all: a reader never sees half a file
            except FileExistsError:
                return False
            finally:
                beside.unlink(missing_ok=True)
            return True

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def age(self, name: str) -> float | None:
        try:
            return time.time() - (self.path / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return sorted(p.name for p in self._inside())

    def children(self) -> list[str]:
        return sorted(p.name for p in self._inside() if p.is_dir())

    def _inside(self) -> list[Path]:
        try:
            return list(self.path.iterdir()) if self.path.is_dir() else []
        except OSError as error:
            raise RunError(f"could not read {self.path}: {error.strerror or error}") from error

    def child(self, name: str) -> "LocalFolder":
        return LocalFolder(self.path / name)

    def log(self, name: str) -> "LocalLog":
        return LocalLog(self.path / f"{name}.jsonl")


class LocalLog:
    """One `.jsonl` file: append, then fsync. A half-written last line is cut off before the first append."""

    def __init__(self, path: Path):
        self.path = path
        self._fd: int | None = None
        self._size = 0
        self._waiting: list[bytes] = []

    def lines(self) -> Iterator[bytes]:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            for line in file:  # binary files split on b"\n" only
                if line.endswith(b"\n"):
                    yield line[:-1]

    def put(self, line: bytes) -> None:
        self._waiting.append(line)

    def flush(self) -> None:
        if not self._waiting:
            return
        data, self._waiting = b"".join(self._waiting), []
        with storing(str(self.path.parent)):
            fd = self._open()
            try:
                _write_all(fd, data)
                os.fsync(fd)
            except BaseException:  # a signal may interrupt the write as well
                # Take the torn line back where the system lets us; the next open would do it otherwise.
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, self._size)
                raise
            self._size += len(data)

    def _open(self) -> int:
        if self._fd is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._size = _whole_lines(self._fd)
            os.ftruncate(self._fd, self._size)
            _sync_folder(self.path.parent)
        return self._fd

    def replace(self, lines: Iterable[bytes]) -> None:
        self.close()
        with storing(str(self.path.parent)):
            _replace_file(self.path, lines)

    def close(self) -> None:
        self._waiting = []
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _whole_lines(fd: int) -> int:
    """Length of the file up to and including its last newline byte."""
    size = os.fstat(fd).st_size
    end = size
    while end > 0:
        start = max(0, end - 65536)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _replace_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Write beside, fsync, rename: the old file or the new one, never a half."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """Make a new name in the folder durable; some file systems cannot, and say so with an OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)
