"""Sessions go through TLS and through proxies, too."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_peers import lets_through, peer, plays, plays_over_http, replies_slowly
from remote_worlds import transport

from envweave_gym.remote import websockets
from envweave_gym.remote.address import Address
from envweave_gym.remote.session import RemoteSession
from envweave_gym.wire.messages import Create

__all__ = ["transport"]


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLContext]:
    """What a server on loopback shows, which clients are told to trust."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    files = [str(tmp_path / name) for name in ("certificate", "key")]
    words = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*words.split(), "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", files[0])
    websockets._tls.cache_clear()
    yield context
    websockets._tls.cache_clear()


def test_tls(tls: ssl.SSLContext, transport: str) -> None:
    with peer(plays if transport == "websocket" else plays_over_http, tls=tls) as server:
        assert server.session(30.0).reset(0, {"x": "x" * 300_000}).observation == 0


def test_a_deadline_holds_there(tls: ssl.SSLContext) -> None:
    with peer(replies_slowly, tls=tls) as server, pytest.raises(TimeoutError):
        server.session(0.6).reset(0, None)


def test_nobody_is_trusted_who_is_not_known(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with peer(plays, tls=tls) as server, pytest.raises(ConnectionError, match="certificate"):
        server.session(0.5).reset(0, None)


def test_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(lets_through(plays)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        session = RemoteSession(Address.of("x", "http://far.invalid"), Create("x"), 30.0)
        assert session.reset(0, None).observation == 0
        assert proxy.methods == ["CONNECT", "GET"]
