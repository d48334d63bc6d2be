"""One writer per run. The lock is a file that names its holder; a holder that is known to be gone is replaced."""

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from noisyjax.errors import RunError
from noisyjax.store.folder import Folder

LOCK_NAME = "lock.json"
STALE_SECONDS = 900.0
"""A holder on another host that has not renewed its lock for this long counts as gone."""
RENEW_SECONDS = 60.0


class Lock:
    """Held from construction to `release`. Raises RunError when somebody else holds it."""

    def __init__(self, folder: Folder, say: Callable[[str], None]):
        self._folder = folder
        self._me = {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}
        self._renewed = time.monotonic()
        data = json.dumps(self._me).encode()
        if folder.create(LOCK_NAME, data):
            return
        holder = self._holder()
        if holder is not None and not self._gone(holder):
            raise RunError(
                f"{folder.url} is being written by process {holder.get('pid')} on {holder.get('host')}. "
                f"Wait for it, or stop it first; if it is gone for certain, delete {LOCK_NAME} in that folder."
            )
        who = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "an unreadable lock"
        say(f"taking over {folder.url} from {who}, which is gone")
        folder.delete(LOCK_NAME)
        if not folder.create(LOCK_NAME, data):
            raise RunError(f"{folder.url} was taken by another process at this moment; try again")

    def _holder(self) -> dict[str, Any] | None:
        raw = self._folder.read(LOCK_NAME)
        try:
            return json.loads(raw) if raw else None
        except ValueError:
            return None

    def _gone(self, holder: dict[str, Any]) -> bool:
        if holder.get("host") == self._me["host"]:
            # The pid alone is not enough: numbers are used again, in containers at once.
            return _born(int(holder.get("pid", -1))) != holder.get("born")
        age = self._folder.age(LOCK_NAME)
        return age is not None and age > STALE_SECONDS

    def renew(self) -> None:
        """Show that the holder lives; called with every flush, acts at most once a minute.

        RunError when the lock is somebody else's by now: two processes took over a stale one at the same moment, or a
        person deleted it.
        """
        if time.monotonic() - self._renewed < RENEW_SECONDS:
            return
        self._renewed = time.monotonic()
        holder = self._holder()
        if holder != self._me:
            who = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "nobody"
            raise RunError(f"{self._folder.url} is no longer this process's to write: its lock belongs to {who}")
        self._folder.write(LOCK_NAME, json.dumps(self._me).encode())

    def release(self) -> None:
        if self._holder() == self._me:
            self._folder.delete(LOCK_NAME)


def _born(pid: int) -> str | None:
    """Something that differs between two processes that had the same number; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[19]  # start time in clock ticks
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return None
    except PermissionError:
        return "alive"
    return "alive"
