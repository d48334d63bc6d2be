"""Several hosts that make one run: every one is a process that runs the same program on its own devices.

    with joined(config):                        waits for all of them, and starts jax on all of their devices
        mine = share(items)                     what this host does of something
        all = gather(lambda: work(mine))        and what every host made of its share

A host alone is the case that costs nothing: `gather(work)` is `[work()]`. With several the rule is that all take part
in the same rounds (`gather`, `agree`, `first_only`) in the same order, each with as much or as little work as it has.
A round in which one host fails, or is told to stop, fails on all of them, so none waits for one that has left. What
their devices compute together goes into `collective`.
"""

import hashlib
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from noisyjax.config import Schema, to_yaml
from noisyjax.errors import RunError, UsageError
from noisyjax.hosts.lines import Failure, First, Hello, Lines, Other, Part, listening
from noisyjax.hosts.tunnel import tunnel
from noisyjax.interrupts import Interrupts, Stopped, held

_FREE: dict[str, Any] = {"affects_results": False}


class HostsConfig(Schema):
    """The hosts of a run. On a TPU of several hosts they find each other, unless `count` is 1; elsewhere a run is this
    host's alone, unless `coordinator`, `count` and `index` are given."""

    coordinator: str | None = Field(default=None, json_schema_extra=_FREE)
    """ADDRESS:PORT of the first host, the same for all; PORT and the one after it must be free there."""
    count: int | None = Field(default=None, ge=1, json_schema_extra=_FREE)
    """How many there are."""
    index: int | None = Field(default=None, ge=0, json_schema_extra=_FREE)
    """Which of them this one is, from 0."""
    join_s: float = Field(default=300.0, gt=0, json_schema_extra=_FREE)
    """Seconds to wait for the others at the start."""

    @field_validator("coordinator")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            host, _, port = value.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65535:
                raise ValueError(f"it is ADDRESS:PORT with PORT below 65535, such as 10.0.0.2:8482; got '{value}'")
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = {"coordinator": self.coordinator, "count": self.count, "index": self.index}
        missing = [name for name, value in given.items() if value is None]
        if missing and len(missing) < len(given) and self.count != 1:
            raise ValueError(f"coordinator, count and index go together; missing: {', '.join(missing)}")
        if self.index is not None and self.count is not None and self.index >= self.count:
            raise ValueError(f"index {self.index} is none of {self.count} hosts: they count from 0")
        return self


_lines: Lines | None = None
_agreed: BaseException | None = None
"""The failure of the last round, which all hosts know of."""


def count() -> int:
    """How many hosts this run has."""
    return 1 if _lines is None else _lines.count


def index() -> int:
    """Which of them this one is."""
    return 0 if _lines is None else _lines.index


def first() -> bool:
    """Whether this host is the one that speaks, and writes what is written once."""
    return index() == 0


def share[T](items: Sequence[T]) -> Sequence[T]:
    """This host's part of `items`, which all hosts have: contiguous, in the order of hosts, empty where few are."""
    n = len(items)
    return items[index() * n // count() : (index() + 1) * n // count()]


def gather[T](work: Callable[[], T]) -> list[T]:
    """What `work` gives on each host, in their order, on every host; it is sent, so it must be picklable.

    What it raises on one host is raised there, and as a RunError (or UsageError, or Stopped) on the others. Signals do
    not cut the waiting for other hosts, but for a second one.
    """
    global _agreed
    if _lines is None:
        return [work()]
    mine, body = None, b""
    try:
        body = pickle.dumps(work())
    except BaseException as error:
        if error is _agreed:  # of a round inside `work`
            raise
        mine = error
    with held():
        parts = _lines.exchange(Part(body, None if mine is None else _failure(mine)))
        if problem := _problem(parts, mine):
            _agreed = problem
            raise problem
    return [pickle.loads(part.body) for part in parts]


def agree[T](work: Callable[[], T]) -> T:
    """`work()` of this host, once it is known that it succeeded on all; raises as `gather` does."""
    kept: list[T] = []
    gather(lambda: kept.append(work()))
    return kept[0]


def first_only[T](work: Callable[[], T]) -> T | None:
    """`work()` on the first host, None on the others; raises as `gather` does."""
    return agree(lambda: work() if first() else None)


@contextmanager
def collective() -> Iterator[None]:
    """For what the devices of all hosts compute together: no host begins it unless all do, and none is cut inside.

    Anything that may be cut (`Interrupts.allowed`) needs it around such work; elsewhere it does nothing.
    """
    now = Interrupts.present
    if _lines is None or now is None or not now.waiting:
        yield
        return
    with held():
        agree(now.check)
        yield


def _failure(error: BaseException) -> Failure:
    if isinstance(error, Stopped):
        return Failure(str(error), error.exit_code, error.exit_code - 128)
    told = hasattr(error, "exit_code")  # what a person can cause or meet; else a bug
    return Failure(str(error) if told else f"{type(error).__name__}: {error}", getattr(error, "exit_code", 1))


def _problem(parts: Sequence[Part], mine: BaseException | None) -> BaseException | None:
    """What to raise on this host after a round."""
    failures = {i: part.failure for i, part in enumerate(parts) if part.failure}
    if not failures:
        return None
    who, what = next(((i, f) for i, f in failures.items() if not f.passed_on), next(iter(failures.items())))
    if mine is not None and not failures[index()].passed_on:
        return mine
    if what.stop:
        return Stopped(what.stop, str(mine) if mine is not None else f"host {who} was told to stop: {what.text}")
    return (UsageError if what.code == UsageError.exit_code else RunError)(f"host {who} failed: {what.text}")


# ---- joining and leaving


class _Place(NamedTuple):
    host: str
    port: int
    of: int
    which: int


@contextmanager
def joined(*runs: Any, detect: bool = True) -> Iterator[None]:
    """All hosts, from the start of these runs (configs with a `hosts`) to their end, with jax on all of their devices.

    Nothing where there is one host. Must be entered before jax is used. detect: look for a TPU's other hosts where the
    config names none. Raises RunError that names the hosts that did not come, UsageError for those that do not belong
    together: what they run must be the same, but for `hosts`.
    """
    global _lines
    config: HostsConfig = runs[0].hosts
    place = _place(config, detect)
    if place is None or place.of == 1:
        yield
        return
    texts = [to_yaml(run.model_copy(update={"hosts": HostsConfig()})) for run in runs]
    about = hashlib.sha256("".join(texts).encode()).hexdigest()
    hello = Hello(place.which, place.of, about, socket.gethostname())
    if place.which == 0:
        listening((place.host, place.port)).close()  # jax will, and ends the process where it cannot
    _lines = (Other if place.which else First)((place.host, place.port + 1), hello, config.join_s)
    try:
        _start_jax(place)
        yield
        agree(lambda: None)  # nobody goes while others are at work
        _stop_jax()
    except BaseException as error:
        known = error is _agreed or (isinstance(error, Stopped) and isinstance(_agreed, Stopped))
        if known:  # as above: what all end for they may still have to store together
            _lines.exchange(Part(b"", None))
        _lines.leave(None if known else _failure(error).text)
        raise
    _lines.leave(None)
    _lines = None


def leave(code: int) -> None:
    """End this process with `code` if it is one of several hosts and its run has failed.

    An ordinary end would wait for the other hosts, which wait for nobody any more.
    """
    if _lines is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def settle() -> None:
    """A moment for the news that another host is gone, which ends this process: its own error would only follow."""
    if _lines is not None:
        time.sleep(2.0)


def _place(config: HostsConfig, detect: bool) -> _Place | None:
    if config.coordinator is not None and config.count is not None and config.index is not None:
        host, _, port = config.coordinator.rpartition(":")
        return _Place(host.strip("[]"), int(port), config.count, config.index)
    return _tpu_place(config.join_s) if detect and config.count != 1 else None


def _tpu_place(seconds: float) -> _Place | None:
    """As a TPU's machines tell it; None where none is used."""
    if find_spec("libtpu") is None or not _uses_tpu():
        return None
    # jax knows how to ask on Compute Engine and on GKE; `jax.distributed.initialize()` does it by this call.
    from jax._src.clusters import ClusterEnv

    address, hosts, which, _ = ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, None, None, int(seconds)
    )
    if address is None or hosts is None or which is None:
        return None
    host, _, port = address.rpartition(":")
    return _Place(host, int(port), hosts, which)


def _uses_tpu() -> bool:
    if "tpu" not in os.environ.get("JAX_PLATFORMS", "tpu"):  # known without jax, which takes long to import
        return False
    import jax

    return "tpu" in (jax.config.jax_platforms or "")  # jax sets it where there are chips


def _start_jax(place: _Place) -> None:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM is `Interrupts`', which all hosts agree on
    address = f"{place.host}:{place.port}" if place.which == 0 else tunnel(place.host, place.port)
    jax.distributed.initialize(address, place.of, place.which, cluster_detection_method="deactivate")
    _keep_programs()


def _keep_programs() -> None:
    """Let every host keep what it compiles, as the first does, and not compile it again at every start.

    jax leaves that to process 0, so that not all write the same into one folder. Here each host samples and judges by
    programs of its own; where two compile the same, either's will do.
    """
    with suppress(ImportError, AttributeError):  # private names of jax: without them a start is only slower
        from jax._src import compiler, distributed

        seen = copy(distributed.global_state)
        seen.process_id = 0
        # A module is to be there; the compiler asks it for nothing but `global_state`.
        compiler.distributed = SimpleNamespace(global_state=seen)  # type: ignore[assignment]


def _stop_jax() -> None:
    import jax

    jax.distributed.shutdown()
