"""An MCP server behind a URL: every message is a POST, answered with JSON or with a stream of events."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urljoin, urlsplit

import msgspec

from envweave_gym.core.faults import ToolError, shown
from envweave_gym.net.http import BodyTooLarge, HttpConnection, Response
from envweave_gym.tools.mcp.json_rpc import (
    LARGEST_MESSAGE,
    STATELESS,
    Message,
    cancellation,
    messages_in,
    reply_to,
    too_large,
    until,
)
from envweave_gym.tools.mcp.mcp_errors import McpClosed, McpTimeout
from envweave_gym.tools.mcp.server_spec import ServerSpec

_SESSION, _VERSION = "Mcp-Session-Id", "MCP-Protocol-Version"
_KINDS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_PLAIN = re.compile(r"(?!=\?base64\?.*\?=$)(?![ \t])[\t\x20-\x7e]*(?<![ \t])")
_CLOSE_TIMEOUT_S = 1.0
_END_OF_STREAM_S = 0.005
"""The end of a stream mostly comes with the answer; longer than this it is not worth a connection."""
_TAKEN, _MOVED = 202, (307, 308)
_LONGEST_QUOTE = 300


class HttpTransport:
    """The connections to one server, for the calls of any number of threads."""

    def __init__(self, spec: ServerSpec) -> None:
        self._name, self._url = str(spec), spec.url or ""
        self._headers = {**spec.resolved_headers(), **_KINDS}
        self._idle: list[HttpConnection] = []
        self._id: dict[str, str] = {}
        self.failed = False

    def request(self, message: Message, deadline: float, headers: dict[str, str] | None = None) -> Message:
        """Send a request and wait for its answer; one that is too late is cancelled."""
        headers = headers or {}
        try:
            return self._exchange(message, deadline, headers)
        except TimeoutError:
            if headers.get(_VERSION, STATELESS) != STATELESS:  # else the end of the connection cancels it
                with suppress(ToolError):
                    self.notify(cancellation(message["id"]), until(_CLOSE_TIMEOUT_S), headers)
            raise self._late(message) from None

    def notify(self, message: Message, deadline: float, headers: dict[str, str] | None = None) -> None:
        """Send a message that has no answer."""
        try:
            with self._posted(message, deadline, headers or {}) as response:
                if response.status == _TAKEN:  # read to its end, so that the connection serves again
                    response.body(LARGEST_MESSAGE)
        except TimeoutError:
            raise self._late(message) from None

    def _late(self, message: Message) -> McpTimeout:
        return McpTimeout(f"{self._name} has not answered {message['method']} in time")

    def close(self) -> None:
        """End the session, if the server keeps one."""
        self.failed = True
        if self._id:
            with suppress(OSError, ValueError), HttpConnection(self._url) as connection:
                connection.request("DELETE", "", until(_CLOSE_TIMEOUT_S), {**self._headers, **self._id})
        self._close_idle()

    def forget(self) -> None:
        """In a forked process: leave the session to the parent."""
        self._id = {}
        self._close_idle()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # One request

    def _exchange(self, message: Message, deadline: float, headers: dict[str, str]) -> Message:
        with self._posted(message, deadline, headers) as response:
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            if message["method"] == "initialize" and (found := response.headers.get(_SESSION)):
                self._id = {_SESSION: found}
            if kind == "text/event-stream" and response.status < 400:
                return self._streamed(response, message, deadline, headers)
            return self._whole(response, message)

    @contextmanager
    def _posted(self, message: Message, deadline: float, headers: dict[str, str]) -> Generator[Response]:
        """Post a message, over an idle connection or a new one, also to where the server has moved."""
        data = msgspec.json.encode(message)
        all_headers = {**self._headers, **_in_ascii(headers), **self._id}
        connection, unsent = self._idle.pop() if self._idle else HttpConnection(self._url), True
        try:
            connection.connect(deadline)
            unsent = False
            response = connection.request("POST", "", deadline, all_headers, data)
            if response.status in _MOVED:
                connection.close()
                connection = HttpConnection(self._moved(response))
                response = connection.request("POST", "", deadline, all_headers, data)
            yield response
            if response.is_whole:
                self._idle.append(connection)
                connection = None
        except BodyTooLarge:
            raise ToolError(too_large(self._name)) from None
        except OSError as error:
            raise self._lost(error, deadline, unsent=unsent) from None
        except ValueError as error:
            raise ToolError(f"{self._name} cannot be asked: {error}") from None
        finally:
            if connection is not None:
                connection.close()

    def _moved(self, response: Response) -> str:
        moved = urljoin(self._url, response.headers.get("Location", ""))
        if urlsplit(moved)[:2] != urlsplit(self._url)[:2]:
            raise ToolError(f"{self._name} has moved to another host; give its new URL")
        self._close_idle()
        self._url = moved
        return moved

    def _lost(self, error: OSError, deadline: float, *, unsent: bool) -> Exception:
        """The error of a connection that breaks; ``unsent`` says that the server has heard nothing."""
        if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
            return TimeoutError()
        text = f"{self._name} is out of reach: {error.strerror or error}"
        return McpClosed.before(text) if unsent else McpClosed(text)

    # Its answer

    def _whole(self, response: Response, message: Message) -> Message:
        """The answer that is the body of a response; an error that quotes what else it is."""
        body = response.body(LARGEST_MESSAGE)
        found = messages_in(body) or []
        answer = next((each for each in found if "result" in each or "error" in each), None)
        if self._id and (response.status == 404 or (response.status == 400 and b"ession" in body)):
            raise McpClosed.before(f"{self._name} knows the session no more")
        if answer is None or ("result" in answer and response.status >= 400):
            quote = shown(body[:_LONGEST_QUOTE].decode(errors="replace"))
            hint = "; give headers= that let us in" if response.status in (401, 403) else ""
            with_status = f"with status {response.status} and {quote}{hint}"
            raise ToolError(f"{self._name} answers {message['method']} {with_status}")
        if answer.get("id") != message["id"] and "result" in answer:
            raise ToolError(f"{self._name} answers {shown(answer.get('id'))}, which was not asked")
        return answer

    def _streamed(
        self, response: Response, message: Message, deadline: float, headers: dict[str, str]
    ) -> Message:
        """The answer among the events of a stream, in which the server may also send requests."""
        for data in self._events(response):
            for found in messages_in(data) or []:
                if "method" in found:
                    if found.get("id") is not None:
                        self.notify(reply_to(found), deadline, headers)
                elif found.get("id") == message["id"]:
                    with suppress(OSError):
                        next(response.pieces(until(_END_OF_STREAM_S)), b"")
                    return found
                else:
                    raise ToolError(f"{self._name} answers {shown(found.get('id'))}, which was not asked")
        raise McpClosed(f"{self._name} has hung up before it answered {message['method']}")

    def _events(self, response: Response) -> Iterator[bytes]:
        """The data of each event of a stream."""
        data: list[bytes] = []
        for line in self._lines(response):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
                if sum(map(len, data)) > LARGEST_MESSAGE:
                    raise ToolError(too_large(self._name))
            elif not line and data:
                yield b"\n".join(data)
                data = []

    def _lines(self, response: Response) -> Iterator[bytes]:
        rest, searched = bytearray(), 0
        for piece in response.pieces():
            rest += piece
            while (end := rest.find(b"\n", searched)) >= 0:
                yield bytes(rest[:end]).removesuffix(b"\r")
                del rest[: end + 1]
                searched = 0
            searched = len(rest)
            if searched > LARGEST_MESSAGE:
                raise ToolError(too_large(self._name))


def _in_ascii(headers: dict[str, str]) -> dict[str, str]:
    """The headers with values that HTTP can carry: Base64 of those that it cannot."""
    return {key: value if _PLAIN.fullmatch(value) else _base64(value) for key, value in headers.items()}


def _base64(value: str) -> str:
    return f"=?base64?{base64.b64encode(value.encode(errors='replace')).decode()}?="
