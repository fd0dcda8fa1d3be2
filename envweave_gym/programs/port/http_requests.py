"""Incremental parser of HTTP/1.1 requests, for the server's end: bytes as they arrive to whole requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_HEAD_BYTES = 1 << 16
MAX_BODY_BYTES = 32 << 20
_REQUEST_LINE = re.compile(r"([A-Z]{1,20}) (\S{1,8000}) HTTP/1\.1")
_END = b"\r\n\r\n"
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    426: "Upgrade Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Refused(Exception):
    """Raised for a request that is not read any further; it has the status of the response, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class HttpRequest:
    """One request; ``path`` is without the query, and the names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""


class RequestReader:
    """Parser of the requests of one connection.

    After :class:`Refused`, ``missing`` is the number of bytes of the refused request that are yet to be received.

    ``check`` is called with each head before its body is received, and may raise :class:`Refused`: whoever has no
    token cannot make the server hold a body.
    """

    def __init__(self, check: Callable[[HttpRequest], None]) -> None:
        self._check = check
        self._buffer = bytearray()
        self._searched = 0
        self.head: HttpRequest | None = None
        self._size = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun to arrive."""
        return self.head is None and not self._buffer

    @property
    def missing(self) -> int:
        """The bytes of the body that are yet to be received."""
        given = "" if self.head is None else self.head.headers.get("content-length", "")
        return max(int(given) - len(self._buffer), 0) if _is_length(given) else 0

    def feed(self, data: bytes) -> HttpRequest | None:
        """Add received bytes, and return the request that they complete, if they do; call again with ``b""`` for more.

        Raise :class:`Refused` for one that is not HTTP, too large, or refused by ``check``.
        """
        self._buffer += data
        if self.head is None and not self._read_head():
            return None
        assert self.head is not None
        if len(self._buffer) < self._size:
            return None
        head, body = self.head, bytes(self._buffer[: self._size])
        del self._buffer[: self._size]
        self.head, self._size = None, 0
        return HttpRequest(head.method, head.path, head.query, head.headers, body)

    def _read_head(self) -> bool:
        # The part that was searched before is not searched again, but for a separator that it may begin.
        end = self._buffer.find(_END, max(self._searched - len(_END), 0), MAX_HEAD_BYTES)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched >= MAX_HEAD_BYTES:
                raise Refused(431, f"the head of the request has more than {MAX_HEAD_BYTES} bytes")
            return False
        text = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + len(_END)]
        self._searched = 0
        self.head = _head_of(text)
        self._check(self.head)
        self._size = _body_size(self.head)
        return True


def _head_of(text: str) -> HttpRequest:
    line, *rest = text.split("\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise Refused(400, "this is not a request of HTTP/1.1")
    headers: dict[str, str] = {}
    for one in rest:
        name, colon, value = one.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(400, "a header of the request is not 'name: value'")
        headers[name.lower()] = value.strip()
    path, _, query = found[2].partition("?")
    return HttpRequest(found[1], path, query, headers)


def _body_size(head: HttpRequest) -> int:
    if "transfer-encoding" in head.headers:
        raise Refused(411, "give the body's length in a Content-Length header")
    if head.headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, "send the body as it is, without Content-Encoding")
    given = head.headers.get("content-length", "0")
    if not _is_length(given):
        raise Refused(400, "Content-Length is not a number")
    if int(given) > MAX_BODY_BYTES:
        raise Refused(413, f"the body has more than {MAX_BODY_BYTES >> 20} MB")
    return int(given)


def _is_length(given: str) -> bool:
    return given.isascii() and given.isdecimal() and len(given) <= 12


def response(status: int, content_type: str, body: bytes, *, closes: bool = False) -> bytes:
    """Return the bytes of a response; ``closes`` announces that the connection ends after it."""
    length = f"Content-Length: {len(body)}"
    return _head(status, content_type, length, closes).encode("latin-1") + body


def chunked_head(content_type: str) -> bytes:
    """Return the head of a response of status 200 whose body is sent in chunks."""
    return _head(200, content_type, "Transfer-Encoding: chunked", False).encode("latin-1")


def chunk(data: bytes, *, is_last: bool = False) -> bytes:
    """Return a piece of a body that is sent in chunks."""
    return b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if is_last else b"")


def _head(status: int, content_type: str, length: str, closes: bool) -> str:
    close = "Connection: close\r\n" if closes else ""
    reason = REASONS.get(status, "Error")
    return f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n{length}\r\n{close}\r\n"
