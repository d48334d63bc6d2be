"""Runs of several processes on this machine, each with a few CPU devices of its own."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

REPO = Path(__file__).resolve().parents[2]
MOMENTS = REPO / "tests" / "train" / "whole"
"""Where `moments` is, a module of reward functions that sends its process a signal at a chosen moment."""


class Ended(NamedTuple):
    """How a process ended: exit code, stdout, stderr."""

    code: int
    said: str
    cried: str


@pytest.fixture(scope="session")
def coordinator() -> Callable[[], str]:
    """`coordinator()`: an address with two free ports."""

    def find() -> str:
        while True:
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
                try:
                    socket.create_server(("127.0.0.1", port + 1)).close()
                except (OSError, OverflowError):
                    continue
                return f"127.0.0.1:{port}"

    return find


@pytest.fixture(scope="session")
def run(coordinator: Callable[[], str]) -> Callable[..., list[Ended]]:
    """`run(words, hosts=2, devices=2)`: the command line on so many hosts, and how each of them ended.

    moments: host -> MOMENT. programs: host -> a program that takes the words in place of the command line. only: the
    hosts that are started; all by default.
    """

    def start(
        *words: str | Path,
        hosts: int = 1,
        devices: int = 1,
        moments: dict[int, str] | None = None,
        programs: dict[int, str] | None = None,
        only: tuple[int, ...] | None = None,
    ) -> list[Ended]:
        own = {
            "PYTHONPATH": os.pathsep.join([str(REPO), str(MOMENTS)]),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_COMPILATION_CACHE_DIR": str(REPO / ".pytest_cache" / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # as tests/train/conftest.py: tiny models, compiled over and over
            "HF_HUB_OFFLINE": "1",
        }
        where = coordinator()
        processes = []
        for index in range(hosts) if only is None else only:
            place = [f"hosts.coordinator={where}", f"hosts.count={hosts}", f"hosts.index={index}"] if hosts > 1 else []
            moment = {"MOMENT": moments[index]} if moments and index in moments else {}
            program = ("-c", programs[index]) if programs and index in programs else ("-m", "noisyjax")
            processes.append(
                subprocess.Popen(
                    [sys.executable, *program, *map(str, words), *place],
                    env={**os.environ, **own, **moment},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            ended = [process.communicate(timeout=400) for process in processes]
        finally:
            for process in processes:
                process.kill()
        return [Ended(p.returncode, *map(own_words, texts)) for p, texts in zip(processes, ended, strict=True)]

    return start


_GLOO = re.compile(
    r"(\[Gloo\] Rank |is connected to|peer ranks\.|Expected number of connected peer ranks is :|[\s\d])*"
)


def own_words(text: str) -> str:
    """Without what gloo says of itself as it connects, from several threads at once."""
    return "".join(line for line in text.splitlines(keepends=True) if not _GLOO.fullmatch(line))
