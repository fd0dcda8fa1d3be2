"""MCP over streamable HTTP: each message is a POST, answered with JSON or with server-sent events."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import urljoin, urlsplit

import msgspec

from envweave_gym.core.faults import ToolError, shown
from envweave_gym.net.http import BodyTooLarge, HttpConnection, Response
from envweave_gym.tools.mcp.mcp_session import (
    LARGEST_MESSAGE,
    STATELESS,
    LineBuffer,
    McpClosed,
    McpTimeout,
    Message,
    cancellation,
    messages_in,
    response_to,
    too_large,
)
from envweave_gym.tools.mcp.server_spec import ServerSpec

_SESSION, _VERSION = "Mcp-Session-Id", "MCP-Protocol-Version"
_CONTENT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_PLAIN = re.compile(r"(?!=\?base64\?.*\?=$)(?![ \t])[\t\x20-\x7e]*(?<![ \t])")
"""Values that need no Base64 encoding in a header."""
_CLOSE_TIMEOUT_S = 1.0
_END_OF_STREAM_S = 0.005
"""Seconds to wait for the end of a stream after its last event, with which it mostly comes.

Waiting longer would cost more than opening another connection."""
_ACCEPTED, _REDIRECTS = 202, (307, 308)
_MAX_QUOTE_CHARS = 300


class HttpTransport:
    """A ``Transport`` over pooled HTTP connections to the server's URL."""

    def __init__(self, spec: ServerSpec) -> None:
        self._server, self._url = str(spec), spec.url or ""
        self._headers = {**spec.resolved_headers(), **_CONTENT}
        self._idle: list[HttpConnection] = []
        self._session: dict[str, str] = {}
        """The header with the ID of the session, if the server has given one."""
        self.failed = False

    def request(self, message: Message, deadline: float, headers: Mapping[str, str]) -> Message:
        """Send a request and return its response; at the deadline cancel it and raise ``McpTimeout``."""
        try:
            with self._posted(message, deadline, headers) as response:
                if message["method"] == "initialize" and (found := response.headers.get(_SESSION)):
                    self._session = {_SESSION: found}
                kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
                if kind == "text/event-stream" and response.status < 400:
                    return self._from_events(response, message, deadline, headers)
                return self._from_body(response, message)
        except TimeoutError:
            # for a stateless server, the end of the connection cancels the request
            if headers.get(_VERSION, STATELESS) != STATELESS:
                with suppress(ToolError):
                    self.notify(cancellation(message["id"]), time.monotonic() + _CLOSE_TIMEOUT_S, headers)
            raise self._timeout(message) from None

    def notify(self, message: Message, deadline: float, headers: Mapping[str, str]) -> None:
        """Send a notification, which has no response."""
        try:
            with self._posted(message, deadline, headers) as response:
                if response.status == _ACCEPTED:  # read to its end, the connection can be used again
                    response.body(LARGEST_MESSAGE)
        except TimeoutError:
            raise self._timeout(message) from None

    def _timeout(self, message: Message) -> McpTimeout:
        what = message.get("method", "a response")
        return McpTimeout(f"{self._server} has not answered {what} in time")

    def close(self) -> None:
        """End the session, if the server has one."""
        self.failed = True
        if self._session:
            headers, deadline = {**self._headers, **self._session}, time.monotonic() + _CLOSE_TIMEOUT_S
            with suppress(OSError, ValueError), HttpConnection(self._url) as connection:
                connection.request("DELETE", "", deadline, headers)
        self._close_idle()

    def forget(self) -> None:
        """Close the connections in a forked process, without ending the session, which the parent uses."""
        self._session = {}
        self._close_idle()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _posted(self, message: Message, deadline: float, headers: Mapping[str, str]) -> Generator[Response]:
        """Post a message over an idle connection or a new one; follow redirects to paths of the same host."""
        data = msgspec.json.encode(message)
        carried = {name: _carried(value) for name, value in headers.items()}
        arguments = "POST", "", deadline, {**self._headers, **carried, **self._session}, data
        connection, unsent = self._idle.pop() if self._idle else HttpConnection(self._url), True
        try:
            connection.connect(deadline)
            unsent = False  # from here on the server may have executed the request, even if an error follows
            response = connection.request(*arguments)
            if response.status in _REDIRECTS:
                connection.close()
                connection = HttpConnection(self._follow(response))
                response = connection.request(*arguments)
            yield response
            if response.is_whole:
                self._idle.append(connection)
                connection = None
        except BodyTooLarge:
            raise too_large(self._server) from None
        except OSError as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                raise TimeoutError from None
            text = f"{self._server} is out of reach: {error.strerror or error}"
            raise McpClosed(text, unsent=unsent) from None
        except ValueError as error:
            raise ToolError(f"{self._server} cannot be asked: {error}") from None
        finally:
            if connection is not None:
                connection.close()

    def _follow(self, response: Response) -> str:
        url = urljoin(self._url, response.headers.get("Location", ""))
        if urlsplit(url)[:2] != urlsplit(self._url)[:2]:
            raise ToolError(f"{self._server} has moved to another host; give its new URL")
        self._close_idle()
        self._url = url
        return url

    def _from_body(self, response: Response, message: Message) -> Message:
        """Read the response to a request from the body; for any other body raise an error that quotes it."""
        body = response.body(LARGEST_MESSAGE)
        found = messages_in(body) or []
        answer = next((one for one in found if "result" in one or "error" in one), None)
        # The protocol demands 404 for an unknown session; some servers answer 400 with a text about it.
        if self._session and (response.status == 404 or (response.status == 400 and b"ession" in body)):
            raise McpClosed(f"{self._server} does not know the session any more", unsent=True)
        if answer is None or ("result" in answer and response.status >= 400):
            quote = shown(body[:_MAX_QUOTE_CHARS].decode(errors="replace"))
            hint = "; give headers= that let us in" if response.status in (401, 403) else ""
            status = f"status {response.status} and {quote}{hint}"
            raise ToolError(f"{self._server} answers {message['method']} with {status}")
        if "result" in answer:
            self._require_id(answer, message)
        return answer

    def _from_events(
        self, response: Response, message: Message, deadline: float, headers: Mapping[str, str]
    ) -> Message:
        """Read server-sent events up to the response to a request; respond to requests of the server in between."""
        for data in self._events(response):
            for found in messages_in(data) or []:
                if "method" not in found:
                    self._require_id(found, message)
                    with suppress(OSError):
                        next(response.pieces(time.monotonic() + _END_OF_STREAM_S), b"")
                    return found
                if found.get("id") is not None:
                    self.notify(response_to(found), deadline, headers)
        raise McpClosed(f"{self._server} has hung up before it answered {message['method']}")

    def _require_id(self, answer: Message, message: Message) -> None:
        if answer.get("id") != message["id"]:
            raise ToolError(
                f"{self._server} sends a response with the id {shown(answer.get('id'))}, which no request has"
            )

    def _events(self, response: Response) -> Generator[bytes]:
        """Yield the data of each server-sent event."""
        buffer, data = LineBuffer(self._server), list[bytes]()
        for piece in response.pieces():
            for line in buffer.lines_with(piece):
                if line.startswith(b"data:"):
                    data.append(line[5:].removeprefix(b" "))
                elif not line and data:
                    yield b"\n".join(data)
                    data = []
            if sum(map(len, data)) > LARGEST_MESSAGE:
                raise too_large(self._server)


def _carried(value: str) -> str:
    """Return a header value unchanged if HTTP can carry it, else encoded as ``=?base64?…?=``."""
    if _PLAIN.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode(errors='replace')).decode()}?="
