"""Hosts that join, talk, fail and fall silent, without jax: threads that stand for processes."""

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from noisyjax import hosts
from noisyjax.config import Schema
from noisyjax.errors import RunError, UsageError
from noisyjax.hosts import HostsConfig, lines
from noisyjax.hosts.lines import Failure, First, Hello, Other, Part
from noisyjax.hosts.tunnel import tunnel
from noisyjax.interrupts import PASSED_ON, Stopped

KEPT = []
"""Hosts of all tests: one that is collected closes its lines, which the others would hear during a later test."""


@pytest.fixture
def address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()


@pytest.fixture(autouse=True)
def ended(monkeypatch):
    """What would have ended a process, and the news that would have cut its work.

    `_end` is never put back: the threads that read outlive their test, and must not end the process of the tests.
    """
    found = SimpleNamespace(texts=[], cuts=0)
    lines._end = found.texts.append
    monkeypatch.setattr(lines._thread, "interrupt_main", lambda number: setattr(found, "cuts", found.cuts + 1))
    return found


def join(address, index, count, about="x", seconds=10.0):
    kind = Other if index else First
    return kind(address, Hello(index, count, about, f"machine-{index}"), seconds)


def all_join(address, *joining, **named):
    """(index, count, about) of each; what each got, or the error that it met."""
    with ThreadPoolExecutor(len(joining)) as pool:
        waiting = [pool.submit(join, address, *arguments, **named) for arguments in joining]
        got = [w.exception() or w.result() for w in waiting]
    KEPT.extend(got)
    return got


def eventually(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_rounds(address):
    """Parts arrive in the order of hosts, however late each is and whatever its size; many rounds do not mix."""
    circle = all_join(address, (0, 3), (1, 3), (2, 3))
    assert [host.names for host in circle] == [{0: "machine-0", 1: "machine-1", 2: "machine-2"}] * 3

    def talk(host):
        heard = []
        for number in range(20):
            time.sleep(0.001 * ((number * 7 + host.index * 3) % 5))
            body = bytes([host.index]) * (1 + 200_000 * ((number + host.index) % 3))
            heard.append([part.body for part in host.exchange(Part(body, None))])
        return heard

    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(talk, circle))
    assert told[0] == told[1] == told[2]
    assert [body[0] for body in told[0][0]] == [0, 1, 2]
    assert [len(body) for body in told[0][1]] == [200_001, 400_001, 1]


def test_hosts_that_do_not_come_are_named(address):
    met = all_join(address, (0, 4), (2, 4), seconds=0.5)
    for error in met:
        assert isinstance(error, RunError)
        assert str(error).startswith("2 of 4 hosts did not join within 0.5 s: host 1, host 3. Start the same command")


def test_a_first_host_that_does_not_come(address):
    (error,) = all_join(address, (1, 2), seconds=0.3)
    assert isinstance(error, RunError)
    assert str(error).startswith(f"host 0 did not join within 0.3 s: nothing answers at 127.0.0.1:{address[1]}")


@pytest.mark.parametrize(
    ("joining", "words"),
    [
        ([(0, 3), (1, 3), (1, 3)], "two hosts have hosts.index=1: machine-1 and machine-1"),
        ([(0, 2), (1, 3)], "hosts.count is 2 on host 0 and 3 on host 1 (machine-1)"),
        ([(0, 2), (1, 2, "y")], "host 1 (machine-1) was started with another config than host 0"),
    ],
)
def test_hosts_that_do_not_belong_together(address, joining, words):
    for error in all_join(address, *joining):
        assert isinstance(error, UsageError)
        assert words in str(error)


def test_an_address_of_another_machine():
    with pytest.raises(UsageError, match=r"cannot listen at 192\.0\.2\.1:8483"):
        join(("192.0.2.1", 8483), 0, 2)


class Run(Schema):
    hosts: HostsConfig = HostsConfig()


def test_a_port_of_jax_that_is_taken():
    """Told before anybody joins."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        run = Run(hosts=HostsConfig(coordinator=f"127.0.0.1:{port}", count=2, index=0))
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port} .*two free ports"), hosts.joined(run):
            pass


def test_the_first_fails_for_its_own_reason(address, ended):
    """What it does to the others is no news to it."""
    first, other = all_join(address, (0, 2), (1, 2))
    first.leave("no room")
    eventually(lambda: ended.texts)
    socket.socket(fileno=os.dup(other._line._connection.fileno())).shutdown(socket.SHUT_RDWR)
    time.sleep(0.3)
    assert ended.texts[0] == f"host 0 ended: no room. {lines.GOES_ON}"
    assert not any("host 1" in text for text in ended.texts)


def test_a_host_that_is_gone_ends_the_others(address, ended):
    first, gone, other = all_join(address, (0, 3), (1, 3), (2, 3))
    assert (first.count, other.count) == (3, 3)
    socket.socket(fileno=os.dup(gone._line._connection.fileno())).shutdown(socket.SHUT_RDWR)  # as a death does
    text = f"host 1 (machine-1) is gone: it ended, or cannot be reached any more. {lines.GOES_ON}"
    eventually(lambda: ended.texts.count(text) == 2)


def test_one_that_says_why_and_one_that_says_goodbye(address, ended):
    first, other = all_join(address, (0, 2), (1, 2))
    other.leave("the disk is full")
    eventually(lambda: ended.texts)
    assert ended.texts == [f"host 1 ended: the disk is full. {lines.GOES_ON}"]
    first.leave(None)
    eventually(lambda: other._left == {0})


def test_a_failure_cuts_the_work_of_others(address, ended):
    circle = all_join(address, (0, 3), (1, 3), (2, 3))
    circle[1]._say("part", Part(b"", Failure("no", 1)))
    eventually(lambda: ended.cuts == 2)


# ---- rounds as the rooms see them


@pytest.fixture
def together(address, monkeypatch):
    """`together(work, ...)`: what each host gets or raises from the round of these works, one host each."""

    def run(*works):
        circle = all_join(address, *((i, len(works)) for i in range(len(works))))
        here = threading.local()

        def one(host, work):
            here.host = host
            try:
                return hosts.gather(work)
            except BaseException as error:  # noqa: BLE001 - it is looked at
                return error

        monkeypatch.setattr(hosts, "_lines", _Here(here))
        with ThreadPoolExecutor(len(works)) as pool:
            return list(pool.map(one, circle, works))

    return run


class _Here:
    """The lines of the thread that asks."""

    def __init__(self, here):
        self._here = here

    def __getattr__(self, name):
        return getattr(self._here.host, name)


def fail(error):
    raise error


def test_gather_gives_all_to_all(together):
    assert together(lambda: "a", lambda: None, lambda: [1]) == [["a", None, [1]]] * 3


def test_an_error_on_one_is_an_error_on_all(together):
    mine = RunError("the endpoint went away")
    got = together(lambda: 1, lambda: fail(mine), lambda: 3)
    assert got[1] is mine
    assert [type(error) for error in got] == [RunError] * 3
    assert str(got[0]) == str(got[2]) == "host 1 failed: the endpoint went away"


def test_a_wrong_request_and_a_bug_keep_what_they_are(together):
    assert [type(e) for e in together(lambda: fail(UsageError("no such file")), lambda: 1)] == [UsageError] * 2
    bug = together(lambda: 1, lambda: fail(KeyError("x")))
    assert (type(bug[0]), str(bug[0]), type(bug[1])) == (RunError, "host 1 failed: KeyError: 'x'", KeyError)


def test_a_stop_at_one_is_a_stop_at_all(together):
    """Whoever was cut by the news, and whoever had finished, stop with the signal of the one that got it."""
    got = together(lambda: fail(Stopped(PASSED_ON, "mine")), lambda: fail(Stopped(15, "stored")), lambda: 1)
    assert [type(error) for error in got] == [Stopped] * 3
    assert {error.exit_code for error in got} == {143}
    assert [str(error) for error in got] == ["mine", "stored", "host 1 was told to stop: stored"]


def test_shares_are_whole_contiguous_and_may_be_empty(monkeypatch):
    def shares(n, count):
        found = []
        for index in range(count):
            monkeypatch.setattr(hosts, "_lines", SimpleNamespace(index=index, count=count))
            found.append(list(hosts.share(range(n))))
        return found

    assert shares(10, 4) == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert shares(1, 4) == [[], [], [], [0]]
    assert shares(0, 2) == [[], []]


def test_alone_everything_is_itself():
    assert (hosts.count(), hosts.index(), hosts.first()) == (1, 0, True)
    assert hosts.gather(lambda: 7) == [7]
    assert hosts.agree(lambda: 7) == hosts.first_only(lambda: 7) == 7
    assert list(hosts.share([1, 2])) == [1, 2]
    with hosts.joined(SimpleNamespace(hosts=HostsConfig())):
        assert hosts.count() == 1


# ---- what may be said about hosts


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"coordinator": "here:1"}, "go together; missing: count, index"),
        ({"coordinator": "here", "count": 2, "index": 0}, "it is ADDRESS:PORT"),
        ({"coordinator": "here:65535", "count": 2, "index": 0}, "PORT below 65535"),
        ({"coordinator": "here:1", "count": 2, "index": 2}, "index 2 is none of 2 hosts"),
    ],
)
def test_configs_that_cannot_be(given, words):
    with pytest.raises(ValueError, match=words):
        HostsConfig(**given)


def test_a_tpu_tells_its_hosts(monkeypatch):
    """jax finds them on Compute Engine and GKE; nothing is looked for where no TPU is used."""
    from jax._src.clusters import ClusterEnv

    asked = []
    answer = ("10.0.0.2:8482", 4, 3, None)
    monkeypatch.setattr(
        ClusterEnv, "auto_detect_unset_distributed_params", lambda *given: asked.append(given) or answer
    )
    monkeypatch.setattr(hosts, "find_spec", lambda name: object())
    assert hosts._place(HostsConfig(), detect=True) is None  # tests run on the CPU
    monkeypatch.setattr(hosts, "_uses_tpu", lambda: True)
    assert hosts._place(HostsConfig(), detect=False) is None
    assert hosts._place(HostsConfig(count=1), detect=True) is None
    assert not asked
    assert hosts._place(HostsConfig(), detect=True) == ("10.0.0.2", 8482, 4, 3)
    given = HostsConfig(coordinator="[::1]:9000", count=2, index=1)
    assert hosts._place(given, detect=True) == ("::1", 9000, 2, 1)


def test_a_tunnel_outlives_the_other_end(address):
    """Bytes go both ways; when the far end closes, the near one hears nothing."""
    with socket.create_server(address) as server:
        host, port = tunnel(*address).split(":")
        near = socket.create_connection((host, int(port)))
        far, _ = server.accept()
        near.sendall(b"ping")
        assert far.recv(4) == b"ping"
        far.sendall(b"pong")
        assert near.recv(4) == b"pong"
        far.close()
        near.settimeout(0.3)
        with pytest.raises(TimeoutError):
            near.recv(1)
        near.close()
