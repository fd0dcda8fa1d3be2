"""HTTP/1.1 client: one deadline for each exchange, streamed bodies, and a shutdown from any thread."""

from __future__ import annotations

import io
import re
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import Any, cast
from urllib.parse import urlsplit

from envweave_gym.core.faults import shown
from envweave_gym.net.deadlines import TimedSocket
from envweave_gym.net.dial import dial, proxy_for, proxy_headers, unix_path

_PIECE_BYTES = 1 << 16
_WITH_BODY = ("POST", "PUT", "PATCH")
_AGENT = "envweave-gym"
_MAX_COOKIES = 20
_ONE_LINE = re.compile(r"[^\r\n\0\u0100-\U0010ffff]*")


class BodyTooLarge(ConnectionError):
    """Error if the body of a response is larger than the limit."""


class HttpConnection:
    """Connection to one server, for one request at a time; the first request dials the server.

    It uses the proxy of the environment variables and follows no redirects. It sends cookies back, as a load
    balancer may route by them. Every lost connection raises an ``OSError``: ``TimeoutError`` after the
    deadline, ``SSLCertVerificationError`` for a wrong certificate.
    """

    def __init__(
        self, url: str, *, at: Callable[[], tuple[str, int] | None] | None = None, tunnels: bool = False
    ) -> None:
        """``at`` returns a host and port to connect to instead of the URL's, or ``None``.

        A proxy forwards requests for ``http:`` URLs; with ``tunnels`` it must open a tunnel for them too.
        """
        self.url, self._at, self._tunnels = url, at, tunnels
        self._parts = urlsplit(url if unix_path(url) is None else "http://localhost")
        self._host = self._parts.netloc.rpartition("@")[2]
        self._is_cut = False
        self._socket: TimedSocket | None = None
        self._origin, self._proxy_headers = "", dict[str, str]()
        self._response: Response | None = None
        self._cookies: dict[str, str] = {}

    def request(
        self,
        method: str,
        path: str,
        deadline: float,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Response:
        """Send a request, and return the response after its head was received.

        ``path`` is appended to the path of the URL; if it is empty, the request is for the URL itself.
        """
        self.connect(deadline)
        try:
            assert self._socket is not None
            data = self._head(method, path, headers or {}, body) + body
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have said why it reads no more
                self._socket.send_all(data, deadline)
            self._response = Response(self._socket, method, deadline)
            self._keep_cookies(self._response.headers.get_all("Set-Cookie", []))
        except BaseException:
            self.close()
            raise
        return self._response

    def connect(self, deadline: float) -> None:
        """Dial the server, unless the connection of the last request can be used again."""
        if self._is_reusable():
            return
        self.close()
        at = self._at() if self._at is not None else None
        proxy = proxy_for(self.url) if at is None else None
        if proxy is not None and self._parts.scheme == "http" and not self._tunnels:
            # a proxy forwards a request with a whole URL
            self._origin, self._proxy_headers = f"http://{self._host}", proxy_headers(proxy)
            opened = dial(proxy, deadline)
        else:
            opened = dial(self.url, deadline, at=at, proxy=proxy)
        self._socket = TimedSocket(opened)
        if self._is_cut:
            self.close()
            raise ConnectionAbortedError("it was cut")

    def _is_reusable(self) -> bool:
        if self._is_cut or self._socket is None or (self._response and not self._response.is_whole):
            return False
        if self._socket.fileno() < 0:  # this is a forked child
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)  # what can be read now is the end of the connection
        return not self._socket.ahead and not poll.poll(0)

    def _head(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        lines = {"Host": self._host, "User-Agent": _AGENT, "Accept-Encoding": "identity"}
        if self._cookies:
            lines["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        lines |= {**self._proxy_headers, **headers}
        if body or method in _WITH_BODY:
            lines["Content-Length"] = str(len(body))
        base, query = self._parts.path, self._parts.query
        target = f"{base.rstrip('/')}{path}" if path else f"{base or '/'}{query and '?'}{query}"
        for name, value in {**lines, "path": target}.items():
            if not _ONE_LINE.fullmatch(value):  # which may be a secret
                raise ValueError(f"{name} of a request has line breaks, or characters that HTTP cannot carry")
        text = [f"{method} {self._origin}{target} HTTP/1.1"]
        text += [f"{name}: {value}" for name, value in lines.items()]
        return "\r\n".join([*text, "", ""]).encode("latin-1")

    def _keep_cookies(self, headers: list[str]) -> None:
        """Store the names and values of cookies; all requests go to one server, so attributes do not matter."""
        for header in headers[:_MAX_COOKIES]:
            name, equals, value = header.partition(";")[0].partition("=")
            if equals and len(self._cookies) < _MAX_COOKIES and _ONE_LINE.fullmatch(header):
                self._cookies[name.strip()] = value.strip()

    def detach(self) -> TimedSocket:
        """Return the connection's socket and forget it, after a response that switches the protocol."""
        connected, self._socket = self._socket, None
        assert connected is not None
        return connected

    def cut(self) -> None:
        """Shut down the connection from any thread: the current request fails, and so do all later ones.

        In a forked child this does not end the parent's connection, because the child has closed its copy of the
        socket.
        """
        self._is_cut, there = True, self._socket
        if there is not None:
            there.cut()

    def close(self) -> None:
        """Close the connection; the next request dials again."""
        there, self._socket, self._response = self._socket, None, None
        if there is not None:
            there.close()

    def __enter__(self) -> HttpConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Response:
    """Response to a request; its body is received when it is read."""

    def __init__(self, source: TimedSocket, method: str, deadline: float) -> None:
        self._reader = _Reader(source, deadline)
        self._response = HTTPResponse(cast(Any, self._reader), method=method)
        try:
            self._response.begin()
        except HTTPException as error:
            raise _mangled(error) from None
        self.status: int = self._response.status
        self.headers: HTTPMessage = self._response.headers

    def body(self, largest: int, deadline: float | None = None) -> bytes:
        """Receive the whole body; raise :class:`BodyTooLarge` if it has more than ``largest`` bytes."""
        body = bytearray()
        for piece in self.pieces(deadline):
            body += piece
            if len(body) > largest:
                raise BodyTooLarge(f"the body is larger than {largest} bytes")
        return bytes(body)

    def pieces(self, deadline: float | None = None) -> Iterator[bytes]:
        """Yield the body in pieces, each as soon as it arrives; ``deadline`` replaces that of the request."""
        if deadline is not None:
            self._reader.deadline = deadline
        response = self._response
        try:
            # read1() of a body with a length does not see its end before Python 3.12.1
            while (
                piece := response.read1(_PIECE_BYTES)
                if response.length is None
                else response.read(_PIECE_BYTES)
            ):
                yield piece
        except HTTPException as error:
            raise _mangled(error) from None
        if response.length:
            raise ConnectionResetError(
                f"the peer has closed the connection {response.length} bytes too early"
            )

    @property
    def is_whole(self) -> bool:
        """Whether the body was read to its end, so that the connection can be used for another request."""
        return self._response.isclosed() and not self._response.will_close


def _mangled(error: HTTPException) -> ConnectionError:
    what = (
        shown(str(error)) if str(error) else type(error).__name__
    )  # shown() escapes what a terminal would obey
    return ConnectionError(f"what came is no response of HTTP: {what}")


class _Reader(io.BufferedIOBase):
    """File object from which ``HTTPResponse`` reads: a socket's read-ahead buffer, then the socket, with a deadline."""

    def __init__(self, source: TimedSocket, deadline: float) -> None:
        self._source, self.deadline = source, deadline

    def makefile(self, _mode: str) -> _Reader:
        return self

    def read1(self, size: int | None = -1, /) -> bytes:
        source = self._source
        if not source.ahead:
            source.ahead = source.receive_some(_PIECE_BYTES, self.deadline)
        end = len(source.ahead) if size is None or size < 0 else size
        data, source.ahead = source.ahead[:end], source.ahead[end:]
        return data

    def read(self, size: int | None = -1, /) -> bytes:
        parts: list[bytes] = []
        missing = size
        while missing != 0 and (data := self.read1(missing)):
            parts.append(data)
            missing = None if missing is None or missing < 0 else missing - len(data)
        return b"".join(parts)

    def readline(self, size: int | None = -1, /) -> bytes:
        source, limit = self._source, sys.maxsize if size is None or size < 0 else size
        while (end := source.ahead.find(b"\n") + 1) == 0 and len(source.ahead) < limit:
            data = source.receive_some(_PIECE_BYTES, self.deadline)
            if not data and source.ahead:
                raise ConnectionResetError("the peer has closed the connection in the middle of a line")
            if not data:
                return b""
            source.ahead += data
        return self.read1(min(end or limit, limit))
