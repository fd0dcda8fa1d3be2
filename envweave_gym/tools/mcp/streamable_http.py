"""An MCP server behind a URL: every message is a POST, answered with JSON or with a stream of events."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import requests
import urllib3

from envweave_gym.core.faults import shown
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
from envweave_gym.tools.mcp.mcp_errors import McpClosed, McpTimeout, left
from envweave_gym.tools.mcp.server_spec import ServerSpec
from envweave_gym.tools.timed import deadline_of_call, timed_session
from envweave_gym.tools.tool import ToolError

_SESSION, _VERSION = "Mcp-Session-Id", "MCP-Protocol-Version"
_KINDS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
_PIECE = 1 << 16
_PLAIN = re.compile(r"(?!=\?base64\?.*\?=$)(?![ \t])[\t\x20-\x7e]*(?<![ \t])")
_FAREWELL = 1.0
_AFTERMATH = 0.005
_TAKEN, _MOVED = 202, (307, 308)
_LONGEST_WORDS = 300
_abandoned: list[requests.Session] = []


class HttpTransport:
    """The way to one server, for the calls of any number of threads."""

    def __init__(self, spec: ServerSpec) -> None:
        self._what, self._url = str(spec), spec.url or ""
        self._headers = {**spec.resolved_headers(), **_KINDS, "Accept-Encoding": "identity"}
        self._session = timed_session(self._url)
        self._id: dict[str, str] = {}
        self.failed = False

    def request(self, message: Message, deadline: float, headers: dict[str, str] | None = None) -> Message:
        """Send a request and wait for its answer; who is too late tells the server not to go on."""
        headers = headers or {}
        try:
            return self._exchange(message, deadline, headers)
        except TimeoutError:
            if headers.get(_VERSION, STATELESS) != STATELESS:  # else hanging up says it
                with suppress(ToolError):
                    self.notify(cancellation(message["id"]), until(_FAREWELL), headers)
            raise self._late(message) from None

    def notify(self, message: Message, deadline: float, headers: dict[str, str] | None = None) -> None:
        """Send what nobody answers."""
        try:
            with self._post(message, deadline, headers or {}) as response, deadline_of_call(deadline):
                if response.status_code == _TAKEN:  # read to its end, so that the connection serves again
                    list(self._pieces(response))
        except TimeoutError:
            raise self._late(message) from None

    def _late(self, message: Message) -> McpTimeout:
        return McpTimeout(f"{self._what} has not answered {message['method']} in time")

    def close(self) -> None:
        """End the session, if the server keeps one."""
        self.failed = True
        with suppress(requests.RequestException, TimeoutError), deadline_of_call(until(_FAREWELL)):
            if self._id:
                headers = {**self._headers, **self._id}
                self._session.delete(self._url, headers=headers, timeout=_FAREWELL, allow_redirects=False)
        self._session.close()

    def forget(self) -> None:
        """In a forked process: leave the session to the parent.

        Its connections stay open: closing them asks for locks that a thread of the parent may have held.
        """
        self._id = {}
        _abandoned.append(self._session)

    # One request

    def _exchange(self, message: Message, deadline: float, headers: dict[str, str]) -> Message:
        with self._post(message, deadline, headers) as response, deadline_of_call(deadline):
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            if message["method"] == "initialize" and (found := response.headers.get(_SESSION)):
                self._id = {_SESSION: found}
            try:
                if kind == "text/event-stream" and response.ok:
                    return self._streamed(response, message, deadline, headers)
                return self._whole(response, message)
            except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
                raise self._broken(error, deadline) from None

    def _post(self, message: Message, deadline: float, headers: dict[str, str]) -> requests.Response:
        """Send a message, also to where the server says that it is found instead."""
        data = msgspec.json.encode(message)
        response = self._posted(data, deadline, headers)
        if response.status_code in _MOVED:
            response.close()
            moved = urljoin(self._url, response.headers.get("Location", ""))
            if urlsplit(moved)[:2] != urlsplit(self._url)[:2]:
                raise ToolError(f"{self._what} has moved to another host; give its new URL")
            self._url = moved
            response = self._posted(data, deadline, headers)
        return response

    def _posted(self, data: bytes, deadline: float, headers: dict[str, str]) -> requests.Response:
        try:
            with deadline_of_call(deadline):
                return self._session.post(
                    self._url,
                    data=data,
                    headers={**self._headers, **_in_ascii(headers), **self._id},
                    timeout=left(deadline),
                    stream=True,
                    allow_redirects=False,
                )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise self._broken(error, deadline) from None

    def _broken(self, error: Exception, deadline: float) -> Exception:
        """What a connection that breaks amounts to; whoever could not connect has not been heard."""
        if isinstance(error, TimeoutError | requests.Timeout) or time.monotonic() >= deadline:
            return TimeoutError()
        reason = _innermost(error)
        text = f"{self._what} is out of reach: {reason}"
        unheard = isinstance(error, requests.ConnectionError) and "NewConnectionError" in repr(error)
        return McpClosed.before(text) if unheard else McpClosed(text)

    # Its answer

    def _whole(self, response: requests.Response, message: Message) -> Message:
        """The answer that is the body of a response, or what its status says."""
        body = b"".join(self._pieces(response))
        found = messages_in(body) or []
        answer = next((each for each in found if "result" in each or "error" in each), None)
        if self._id and (response.status_code == 404 or (response.status_code == 400 and b"ession" in body)):
            raise McpClosed.before(f"{self._what} knows the session no more")
        if answer is None or ("result" in answer and not response.ok):
            words = shown(body[:_LONGEST_WORDS].decode(errors="replace"))
            hint = "; give headers= that let us in" if response.status_code in (401, 403) else ""
            with_what = f"with status {response.status_code} and {words}{hint}"
            raise ToolError(f"{self._what} answers {message['method']} {with_what}")
        if answer.get("id") != message["id"] and "result" in answer:
            raise ToolError(f"{self._what} answers {shown(answer.get('id'))}, which was not asked")
        return answer

    def _streamed(
        self, response: requests.Response, message: Message, deadline: float, headers: dict[str, str]
    ) -> Message:
        """The answer among the events of a stream, in which the server may also ask."""
        for data in self._events(response):
            for found in messages_in(data) or []:
                if "method" in found:
                    if found.get("id") is not None:
                        self.notify(reply_to(found), deadline, headers)
                elif found.get("id") == message["id"]:
                    self._read_end(response)
                    return found
                else:
                    raise ToolError(f"{self._what} answers {shown(found.get('id'))}, which was not asked")
        raise McpClosed(f"{self._what} has hung up before it answered {message['method']}")

    def _read_end(self, response: requests.Response) -> None:
        """Read the end of a stream, which mostly comes with the answer: the connection then serves again."""
        with suppress(urllib3.exceptions.HTTPError, OSError), deadline_of_call(until(_AFTERMATH)):
            next(self._pieces(response), b"")

    def _events(self, response: requests.Response) -> Iterator[bytes]:
        """The data of each event of a stream."""
        data: list[bytes] = []
        for line in self._lines(response):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
                if sum(map(len, data)) > LARGEST_MESSAGE:
                    raise ToolError(too_large(self._what))
            elif not line and data:
                yield b"\n".join(data)
                data = []

    def _lines(self, response: requests.Response) -> Iterator[bytes]:
        rest, searched = bytearray(), 0
        for piece in self._pieces(response, at_most=None):
            rest += piece
            while (end := rest.find(b"\n", searched)) >= 0:
                yield bytes(rest[:end]).removesuffix(b"\r")
                del rest[: end + 1]
                searched = 0
            searched = len(rest)
            if searched > LARGEST_MESSAGE:
                raise ToolError(too_large(self._what))

    def _pieces(self, response: requests.Response, at_most: int | None = LARGEST_MESSAGE) -> Iterator[bytes]:
        """What comes of a body, as soon as it comes."""
        raw: Any = response.raw
        read = getattr(raw, "read1", raw.read)
        size = 0
        while piece := read(_PIECE):
            size += len(piece)
            if at_most is not None and size > at_most:
                raise ToolError(too_large(self._what))
            yield piece


def _in_ascii(headers: dict[str, str]) -> dict[str, str]:
    """The headers with values that HTTP can carry: Base64 of those that it cannot."""
    return {key: value if _PLAIN.fullmatch(value) else _base64(value) for key, value in headers.items()}


def _base64(value: str) -> str:
    return f"=?base64?{base64.b64encode(value.encode(errors='replace')).decode()}?="


def _innermost(error: BaseException) -> str:
    """Why a connection failed, in the words of the system and without its URL."""
    seen: Any = error
    while isinstance(seen, BaseException):
        if isinstance(seen, OSError) and seen.strerror and not isinstance(seen, requests.RequestException):
            return seen.strerror
        inner = next((each for each in seen.args if isinstance(each, BaseException)), None)
        seen = getattr(seen, "reason", None) or inner or seen.__cause__ or seen.__context__
    return type(error).__name__
