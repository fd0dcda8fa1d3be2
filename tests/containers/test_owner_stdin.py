"""The connection to a container's standard input, as docker-py gives it for each kind of engine."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from envweave_gym.containers.owner_stdin import OwnerStdin


class Kept(socket.socket):
    """A socket that takes attributes, as one of TLS does."""


@pytest.mark.parametrize("is_file", [True, False])
def test_over_a_file_around_the_socket_and_over_the_socket_itself(is_file: bool) -> None:
    ours, theirs = socket.socketpair()
    attached: Any = ours.makefile("rwb", buffering=0) if is_file else Kept(fileno=ours.detach())
    attached._response = SimpleNamespace(close=lambda: None)
    api = SimpleNamespace(attach_socket=lambda *_, **__: attached)
    stdin = OwnerStdin(SimpleNamespace(api=api), SimpleNamespace(id="c0ffee"))
    with theirs:
        theirs.settimeout(10)
        stdin.send(b"token\n")
        assert theirs.recv(100) == b"token\n"
        stdin.close()
        assert theirs.recv(100) == b""
        stdin.close()
    ours.close()
