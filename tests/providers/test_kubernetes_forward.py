"""The port whose connections are carried to a Pod."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from envweave_gym.providers.kubernetes.port_forward import Direct, PortForward


def echo(server: socket.socket) -> None:
    """Send back what the first one who comes sends."""
    with server.accept()[0] as one:
        one.sendall(one.recv(100))


def test_where_no_thread_can_begin_a_connection_is_hung_up_and_the_next_one_is_carried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, full = threading.Thread.start, True

    def start_unless_full(thread: Any) -> None:
        if full and thread.name.startswith("forwarded connection"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_full)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        forward = PortForward(lambda: Direct(server.getsockname()))
        forward.open()
        place = ("127.0.0.1", forward.port)
        with socket.create_connection(place, 10) as one:
            assert one.recv(100) == b""
        full = False
        with socket.create_connection(place, 10) as other:
            other.sendall(b"hello")
            assert other.recv(100) == b"hello"
        forward.close()
    assert not forward._connections
