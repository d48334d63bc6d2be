"""Hosts other than the first keep what they compile too, which jax leaves to process 0."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
from jax._src import compiler, distributed
from jax.experimental.compilation_cache import compilation_cache

from noisyjax import hosts

SETTINGS = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1}


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Callable[[int], int]]:
    """`kept(number)`: how many files are kept in a folder of the test's own once another program is compiled."""
    before = {name: getattr(jax.config, name) for name in (*SETTINGS, "jax_compilation_cache_dir")}

    def use(settings: dict) -> None:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    def compiled(number: int) -> int:
        jax.jit(lambda x: x * number)(jax.numpy.ones(3)).block_until_ready()
        return len(list(tmp_path.iterdir()))

    use(SETTINGS | {"jax_compilation_cache_dir": str(tmp_path)})
    yield compiled
    use(before)


def test_every_host_keeps_what_it_compiles(kept, monkeypatch):
    """Red too where jax has given up the private names that this hangs on: a start would be slower, and say nothing."""
    monkeypatch.setattr(compiler, "distributed", compiler.distributed)  # put back in the end
    first = kept(3)
    assert first > 0
    monkeypatch.setattr(distributed.global_state, "process_id", 1)
    assert kept(4) == first  # what jax does by itself
    hosts._keep_programs()
    assert kept(5) > first
    assert distributed.global_state.process_id == 1  # for all else it is who it is
