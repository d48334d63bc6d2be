"""A port of this machine that leads to another one's, and does not close when that one does.

jax ends a process, with a stack trace, the moment its coordinator's connection closes. Behind a tunnel it sees silence
instead, so that this host can say which one is gone.
"""

import contextlib
import socket
import threading
import time

PATIENCE = 30.0
"""Seconds in which the far end may still come up."""


def tunnel(host: str, port: int) -> str:
    """`127.0.0.1:PORT`, which leads to `host:port` as long as this process lives."""
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(server, host, port), daemon=True, name="tunnel").start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def _serve(server: socket.socket, host: str, port: int) -> None:
    while True:
        near, _ = server.accept()
        far = _reach(host, port)
        if far is None:
            near.close()
            continue
        for source, sink, close in ((near, far, True), (far, near, False)):
            threading.Thread(target=_pump, args=(source, sink, close), daemon=True, name="tunnel").start()


def _reach(host: str, port: int) -> socket.socket | None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            far = socket.create_connection((host, port), timeout=PATIENCE)
        except OSError:
            time.sleep(0.1)
        else:
            far.settimeout(None)
            return far
    return None


def _pump(source: socket.socket, sink: socket.socket, close: bool) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    if close:
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
