"""Sessions go through TLS and through proxies, too."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from remote_peers import Talk, lets_through, peer, plays, plays_over_http, replies_slowly
from remote_worlds import transport
from tls_servers import self_signed

from envweave_gym import NotAvailable
from envweave_gym.net import http
from envweave_gym.remote.address import Address
from envweave_gym.remote.session import RemoteSession
from envweave_gym.remote.transports.websockets import WebSocketTransport
from envweave_gym.wire.messages import Create

__all__ = ["transport"]
CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """What a server on loopback shows, which clients are told to trust."""
    certificate = self_signed(tmp_path)
    for name in CA_BUNDLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(CA_BUNDLES[0], str(certificate.file))
    return certificate.context()


def test_tls(tls: ssl.SSLContext, transport: str) -> None:
    with peer(plays if transport == "websocket" else plays_over_http, tls=tls) as server:
        assert server.session(30.0).reset(0, {"x": "x" * 300_000}).observation == 0


def test_a_deadline_holds_there(tls: ssl.SSLContext) -> None:
    with peer(replies_slowly, tls=tls) as server, pytest.raises(TimeoutError):
        server.session(0.6).reset(0, None)


@pytest.mark.parametrize("name", CA_BUNDLES)
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_trusted_certificates_may_be_in_a_file_or_a_directory(
    name: str, kind: str, tls: ssl.SSLContext, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, certificate = tmp_path / "trusted", tmp_path / "certificate"
    trusted.mkdir()
    hashed = ["openssl", "x509", "-hash", "-noout", "-in", str(certificate)]
    subject = subprocess.run(hashed, check=True, capture_output=True, text=True).stdout.strip()
    shutil.copy(certificate, trusted / f"{subject}.0")
    monkeypatch.delenv(CA_BUNDLES[0])
    monkeypatch.setenv(name, str(certificate if kind == "file" else trusted))
    with peer(plays if transport == "websocket" else plays_over_http, tls=tls) as server:
        assert server.session(30.0).reset(0, None).observation == 0


def test_an_untrusted_certificate_fails_at_once(
    tls: ssl.SSLContext, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    started = time.monotonic()
    with peer(plays, tls=tls) as server, pytest.raises(NotAvailable, match="is not trusted: self-signed"):
        server.session(30.0).reset(0, None)
    assert time.monotonic() - started < 10


def test_a_handshake_of_tls_that_trickles_is_given_up_at_the_deadline(
    tls: ssl.SSLContext, transport: str
) -> None:
    def trickles(talk: Talk) -> None:
        talk.trickle(b"\x16\x03\x03\x40\x00" + bytes(2000))

    started = time.monotonic()
    with peer(trickles) as slow:
        session = RemoteSession(Address.of("x", slow.url.replace("http:", "https:")), Create("x"), 0.6)
        with pytest.raises(TimeoutError):
            session.reset(0, None)
    assert time.monotonic() - started < 5


# Addresses


def test_the_second_address_of_a_name_is_tried_although_nothing_is_heard_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(host: str, port: int, **how: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", where) for where in (hole, ("127.0.0.1", port))]

    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, ExitStack() as waiting:
        hole = silent.getsockname()
        for _ in range(2):  # fill its queue: who comes now hears nothing
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(hole)
        with peer(plays) as server:
            monkeypatch.setattr(socket, "getaddrinfo", both)
            assert server.session(3.0).reset(0, None).observation == 0


def test_a_connection_that_comes_too_late_for_its_handshake_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(http, "dial", lambda *_, **how: ours)
    with theirs, pytest.raises(TimeoutError):
        WebSocketTransport(Address("http://127.0.0.1:9"), "x", time.monotonic() - 1)
    assert ours.fileno() == -1


def test_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(lets_through(plays)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        session = RemoteSession(Address.of("x", "http://far.invalid"), Create("x"), 30.0)
        assert session.reset(0, None).observation == 0
        assert proxy.methods == ["CONNECT", "GET"]
