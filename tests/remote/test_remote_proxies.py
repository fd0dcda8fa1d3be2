"""Proxies stand where the environment variables say, and never before loopback."""

from __future__ import annotations

import base64
import socket
from pathlib import Path
from typing import Any

import pytest
from remote_peers import (
    HTML,
    Talk,
    answers,
    lets_through,
    peer,
    plays,
    plays_over_http,
    reply_to,
)
from remote_worlds import block_websockets, transport, url

import envweave_gym as ew
from envweave_gym.net.dial import proxy_for
from envweave_gym.remote.address import Address, remember_token
from envweave_gym.remote.session import RemoteSession
from envweave_gym.wire.messages import CONTENT_TYPE, Create

__all__ = ["transport", "url"]
FAR = "http://far.invalid"
VARIABLES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def session(url: str) -> RemoteSession:
    return RemoteSession(Address.of("x", url), Create("x"), 10.0)


# Loopback


@pytest.mark.parametrize("name", VARIABLES)
def test_a_server_on_loopback_is_reached_without_a_proxy_which_never_sees_its_token(
    name: str, transport: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with peer(answers(502)) as proxy:
        monkeypatch.setenv(name, proxy.url)
        env = ew.make("envweave/LineWorld-v0", backend=url, length=40 + VARIABLES.index(name))
        env.reset(seed=1)
        env.step(1)
        env.close()
        assert proxy.methods == []


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.9.8.7", "localhost", "LOCALHOST.", "a.localhost", "[::1]", "[::ffff:127.0.0.1]"],
)
def test_nothing_stands_before_loopback_whatever_its_name(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    assert proxy_for(f"http://{host}:8000") is None


@pytest.mark.parametrize("host", ["notlocalhost", "localhost.example", "10.0.0.1", "[2001:db8::1]"])
def test_a_host_that_looks_like_loopback_is_remote(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "proxy:3128")
    assert proxy_for(f"http://{host}:8000") == "http://proxy:3128"


# Far away


@pytest.mark.parametrize("name", VARIABLES)
def test_a_remote_host_is_reached_through_the_proxy(
    name: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with peer(lets_through(plays) if transport == "websocket" else plays_over_http) as proxy:
        monkeypatch.setenv(name, proxy.url)
        assert session(FAR).reset(0, None).observation == 0
    assert proxy.methods[0] == ("CONNECT" if transport == "websocket" else "POST")


def test_a_host_in_no_proxy_is_reached_directly(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo

    def nearby(host: str, port: int, *how: Any, **more: Any) -> Any:
        return found("127.0.0.1", port, *how, **more)

    monkeypatch.setattr(socket, "getaddrinfo", nearby)
    monkeypatch.setenv("NO_PROXY", "other.example, .invalid")
    with (
        peer(plays if transport == "websocket" else plays_over_http) as server,
        peer(answers(502)) as proxy,
    ):
        monkeypatch.setenv("http_proxy", proxy.url)
        there = server.url.replace("127.0.0.1", "far.invalid")
        assert session(there).reset(0, None).observation == 0
        assert proxy.methods == []


def test_one_that_opens_no_tunnel_takes_requests_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(answers(403), plays_over_http) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert session(FAR).reset(0, None).observation == 0
    assert proxy.methods == ["CONNECT", "POST", "POST"]


def test_one_that_does_not_reach_the_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(answers(502), answers(504), lets_through(plays)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert session(FAR).reset(0, None).observation == 0
    assert proxy.methods == ["CONNECT", "CONNECT", "CONNECT", "GET"]


def test_a_parser_that_takes_the_agent_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[dict[str, str]] = []

    def wants_to_know(talk: Talk) -> None:
        reported.append(talk.request()[0])
        talk.open_tunnel()
        plays(talk)

    with peer(wants_to_know) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:p%40ss@"))
        assert session(FAR).reset(0, None).observation == 0
    assert reported[0]["proxy-authorization"] == f"Basic {base64.b64encode(b'me:p@ss').decode()}"
    assert "authorization" not in reported[0]


def test_a_password_of_this_machine_does_not_take_the_place_of_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def looks(talk: Talk) -> None:
        while True:
            headers, body = talk.request()
            shown.append(headers["authorization"])
            talk.respond(200, reply_to(body) if body else HTML, CONTENT_TYPE)

    (tmp_path / "netrc").write_text("default login me password mine\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    block_websockets(monkeypatch)
    with peer(looks) as server:
        remember_token(server.url, "its-token")
        session(server.url).reset(0, None)
    assert set(shown) == {"Bearer its-token"}
