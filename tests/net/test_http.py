"""HTTP exchanges: bodies of every form, connections that are used again, deadlines, proxies and cuts."""

from __future__ import annotations

import base64
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from remote_peers import Peer, Script, Talk, answers, peer

from envweave_gym.net.dial import dial
from envweave_gym.net.http import BodyTooLarge, HttpConnection

BODY = os.urandom(200_000)
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def soon() -> float:
    return time.monotonic() + 10


def get(there: Peer, path: str = "/") -> bytes:
    with HttpConnection(there.url) as connection:
        return connection.request("GET", path, soon()).body(1 << 20)


def chunked(body: bytes) -> bytes:
    half = len(body) // 2
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]))
    return b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def says(data: bytes, *, again: bool = True):
    """Answers each request with these bytes, or one and hangs up."""

    def script(talk: Talk) -> None:
        talk.request()
        talk.send(data)
        while again:
            talk.request()
            talk.send(data)

    return script


# Bodies


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 x\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
        chunked(BODY),
        b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(BODY),
    ],
    ids=["length", "chunks", "continue"],
)
def test_a_connection_serves_again_after_a_body_that_was_read(response: bytes) -> None:
    with peer(says(response), answers(500)) as there, HttpConnection(there.url) as connection:
        for _ in range(3):
            assert connection.request("GET", "/", soon()).body(len(BODY)) == BODY
    assert there.methods == ["GET"] * 3, "the second script would answer a second connection"


def test_cookies_are_sent_back() -> None:
    """As a load balancer sets them that sends all requests of a client to one server."""
    seen: list[str | None] = []

    def script(talk: Talk) -> None:
        for number in range(3):
            seen.append(talk.request()[0].get("cookie"))
            cookie = b"Set-Cookie: route=%d; Path=/; HttpOnly\r\n" % number
            talk.send(b"HTTP/1.1 200 x\r\n" + cookie + b"Content-Length: 0\r\n\r\n")

    with peer(script) as there, HttpConnection(there.url) as connection:
        for _ in range(3):
            connection.request("GET", "/", soon()).body(0)
    assert seen == [None, "route=0", "route=1"]


def test_a_body_may_end_with_its_connection() -> None:
    ends = says(b"HTTP/1.0 200 x\r\n\r\n" + BODY, again=False)
    with peer(ends, ends) as there, HttpConnection(there.url) as connection:
        for _ in range(2):
            assert connection.request("GET", "/", soon()).body(len(BODY)) == BODY


def test_a_body_that_was_not_read_costs_its_connection() -> None:
    with peer(says(chunked(BODY)), says(chunked(b"other"))) as there, HttpConnection(there.url) as connection:
        assert next(connection.request("GET", "/", soon()).pieces())
        assert connection.request("GET", "/", soon()).body(100) == b"other"


def test_a_connection_that_the_server_has_closed_meanwhile_is_made_anew() -> None:
    ends = says(chunked(b"body"), again=False)
    with peer(ends, ends) as there, HttpConnection(there.url) as connection:
        for _ in range(2):
            assert connection.request("GET", "/", soon()).body(100) == b"body"
            time.sleep(0.05)


def test_pieces_come_as_soon_as_they_are_there() -> None:
    second = threading.Event()

    def drips(talk: Talk) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        second.wait(10)
        talk.send(b"6\r\nsecond\r\n0\r\n\r\n")

    with peer(drips) as there, HttpConnection(there.url) as connection:
        pieces = connection.request("GET", "/", soon()).pieces()
        assert next(pieces) == b"first"
        second.set()
        assert list(pieces) == [b"second"]


def test_a_body_above_the_limit_is_not_read_to_its_end() -> None:
    with (
        peer(says(chunked(BODY))) as there,
        HttpConnection(there.url) as connection,
        pytest.raises(BodyTooLarge, match="1000"),
    ):
        connection.request("GET", "/", soon()).body(1000)


MANGLED = {
    "no response": b"\x82\x7f\xff\xff\r\n\r\n",
    "codes for a terminal": b"SSH \x1b]0;title\x07\x1b[31m" + b"x" * 500 + b"\r\n\r\n",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 x\r\nContent-",
    "half a body": b"HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\nhalf",
    "half a chunk": b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf",
    "a chunk without a size": b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nbody\r\n",
    "an endless head": b"HTTP/1.1 200 x\r\n" + b"X: y\r\n" * 1000,
}


@pytest.mark.parametrize("data", MANGLED.values(), ids=MANGLED)
def test_bytes_that_are_no_response_are_a_lost_connection(data: bytes) -> None:
    with peer(says(data, again=False)) as there, pytest.raises(ConnectionError) as raised:
        get(there)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 200


def test_a_server_that_refuses_a_large_body_before_it_has_come_is_heard() -> None:
    def refuses(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 413 x\r\nContent-Length: 0\r\n\r\n")

    with peer(refuses) as there, HttpConnection(there.url) as connection:
        assert connection.request("POST", "/", soon(), body=bytes(50_000_000)).status == 413


# Requests


def test_a_request_has_its_length_its_host_and_the_headers_that_are_given() -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    def listens(talk: Talk) -> None:
        seen.append(talk.request())
        talk.respond(204, b"")

    with peer(listens) as there, HttpConnection(there.url) as connection:
        connection.request("POST", "/x", soon(), {"Authorization": "Bearer token"}, b"body")
    headers, body = seen[0]
    assert body == b"body"
    assert headers["content-length"] == "4"
    assert headers["host"] == there.url.removeprefix("http://")
    assert headers["authorization"] == "Bearer token"


@pytest.mark.parametrize(
    ("base", "path", "target"),
    [
        ("", "/a", "/a"),
        ("/base/", "/a", "/base/a"),
        ("/base/?key=1", "", "/base/?key=1"),
        ("", "", "/"),
    ],
)
def test_the_path_of_a_request_follows_that_of_the_url(base: str, path: str, target: str) -> None:
    lines: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            client = listener.accept()[0]
            with client:
                lines.append(client.recv(1 << 16).partition(b"\r\n")[0])
                client.sendall(b"HTTP/1.1 204 x\r\n\r\n")

        thread = threading.Thread(target=listen)
        thread.start()
        with HttpConnection(f"http://127.0.0.1:{listener.getsockname()[1]}{base}") as connection:
            connection.request("GET", path, soon())
        thread.join(10)
    assert lines == [f"GET {target} HTTP/1.1".encode()]


@pytest.mark.parametrize("value", ["y\r\nAuthorization: mine", "\u20ac"])
def test_a_header_that_http_cannot_carry_is_refused_by_its_name(value: str) -> None:
    with (
        peer(answers(200)) as there,
        HttpConnection(there.url) as connection,
        pytest.raises(ValueError, match="X-Secret"),
    ):
        connection.request("GET", "/", soon(), {"X-Secret": value})
    assert there.methods == []


# Ways


def test_a_unix_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()

        def serve() -> None:
            client = listener.accept()[0]
            with client:
                client.recv(1 << 16)
                client.sendall(chunked(b"body"))

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http+unix://{str(tmp_path / 'socket').replace('/', '%2F')}"
        with HttpConnection(url) as connection:
            assert connection.request("GET", "/", soon()).body(100) == b"body"
        thread.join(10)


def test_a_proxy_forwards_requests_with_whole_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def forwards(talk: Talk) -> None:
        seen.append(talk.request()[0])
        talk.respond(200, b"body")

    with peer(forwards) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//me:p%40ss@"))
        with HttpConnection("http://far.invalid/base") as connection:
            assert connection.request("GET", "/", soon()).body(100) == b"body"
    assert seen[0]["host"] == "far.invalid"
    assert seen[0]["proxy-authorization"] == f"Basic {base64.b64encode(b'me:p@ss').decode()}"


@pytest.mark.parametrize("proxy", ["socks5://here:1", "http://here:port", "https://here:1"])
def test_a_proxy_that_cannot_be_used_is_said_without_its_password(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy.replace("//", "//me:secret@"))
    with HttpConnection("https://far.invalid") as connection, pytest.raises(ConnectionError) as raised:
        connection.request("GET", "/", soon())
    assert "proxy" in str(raised.value) or "proxies" in str(raised.value)
    assert "secret" not in str(raised.value)


# Deadlines and cuts


def trickles(talk: Talk) -> None:
    talk.request()
    talk.begin_to_respond(200, bytes(1000), "text/plain")


@pytest.mark.parametrize("script", [trickles, lambda talk: time.sleep(10)], ids=["slow", "silent"])
def test_the_deadline_holds_for_the_whole_exchange(script: Script) -> None:
    started = time.monotonic()
    with peer(script) as there, HttpConnection(there.url) as connection, pytest.raises(TimeoutError):
        connection.request("GET", "/", started + 0.4).body(1 << 20)
    assert 0.4 <= time.monotonic() - started < 5


def test_another_thread_cuts_an_exchange_and_those_to_come() -> None:
    with peer(trickles) as there, HttpConnection(there.url) as connection:
        threading.Timer(0.2, connection.cut).start()
        started = time.monotonic()
        with pytest.raises(ConnectionError):
            connection.request("GET", "/", soon()).body(1 << 20)
        with pytest.raises(ConnectionError, match="cut"):
            connection.request("GET", "/", soon())
        assert time.monotonic() - started < 5
    assert there.methods == ["GET"]


def test_a_forked_process_leaves_the_connection_to_its_parent() -> None:
    with peer(says(chunked(b"body"))) as there, HttpConnection(there.url) as connection:
        assert connection.request("GET", "/", soon()).body(100) == b"body"
        child = os.fork()
        if not child:
            with suppress(BaseException):
                connection.request("GET", "/", soon()).body(100)
                connection.cut()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert connection.request("GET", "/", soon()).body(100) == b"body"
    assert there.methods == ["GET"] * 3


def test_a_host_is_looked_up_also_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with socket.create_server(("localhost", 0)) as listener:
        url = f"http://localhost:{listener.getsockname()[1]}"
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            dial(url, soon()).close()
