"""The messages of MCP, which are JSON-RPC: what is asked, and how a connection begins.

A server of the protocol up to 2025-11-25 is greeted with ``initialize``. One that refuses that is asked
``server/discover``, as of 2026-07-28, from which on each request says of itself what the greeting said.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from envweave_gym.core.faults import ToolError, shown
from envweave_gym.tools.mcp.mcp_errors import McpRefused, left

Message = dict[str, Any]

LATEST = "2025-11-25"
GREETED = ("2024-11-05", "2025-03-26", "2025-06-18", LATEST)
"""The versions that begin with a greeting."""
STATELESS = "2026-07-28"
LARGEST_MESSAGE = 64 << 20
"""Bytes of a message."""
MOST_PAGES = 1000
"""Pages of a list."""

_METHOD_NOT_FOUND = -32601
_UNSUPPORTED_VERSION = -32022
_META = "io.modelcontextprotocol/"


class Transport(Protocol):
    """The way to one server."""

    def request(self, message: Message, deadline: float, headers: Any = None) -> Message:
        """Send a request and wait for its answer."""
        ...

    def notify(self, message: Message, deadline: float, headers: Any = None) -> None:
        """Send what nobody answers."""
        ...

    @property
    def failed(self) -> bool:
        """Whether it is of no use any more."""
        ...

    def close(self) -> None:
        """End it."""
        ...

    def forget(self) -> None:
        """Let go of it, in a forked process."""
        ...


class Connection:
    """A server that has been greeted, and speaks a version of the protocol that is known."""

    def __init__(self, what: str, transport: Transport, deadline: float) -> None:
        """``what`` is what errors call the server."""
        self._what, self.transport = what, transport
        self._numbers = itertools.count(1)
        self.version = ""
        try:
            self.version = self._greeted(deadline)
        except BaseException:
            transport.close()
            raise

    def _greeted(self, deadline: float) -> str:
        greeting = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": _client()}
        try:
            result = self.ask("initialize", greeting, deadline)
        except McpRefused as refusal:
            return self._discovered(refusal, deadline)
        version = result.get("protocolVersion")
        if version not in GREETED:
            raise ToolError(
                f"{self._what} speaks MCP of {shown(version)}; known are {', '.join(GREETED)} and {STATELESS}"
            )
        self.version = version
        headers = self._headers("notifications/initialized", {})
        self.transport.notify(_notification("notifications/initialized"), deadline, headers)
        return version

    def _discovered(self, refusal: McpRefused, deadline: float) -> str:
        """The version of a server that takes no greeting, which it says by any error that it likes."""
        self.version = STATELESS
        try:
            versions = self.ask("server/discover", {}, deadline).get("supportedVersions")
        except McpRefused as error:
            if error.code != _UNSUPPORTED_VERSION:
                raise refusal from None
            versions = error.data.get("supported") if isinstance(error.data, dict) else None
        if not isinstance(versions, list) or STATELESS not in versions:
            known = f"{', '.join(GREETED)} and {STATELESS}"
            raise ToolError(f"{self._what} speaks MCP of {shown(versions)}; known are {known}")
        return STATELESS

    @property
    def is_stateless(self) -> bool:
        """Whether the server remembers nothing from one request to the next."""
        return self.version == STATELESS

    def ask(
        self, method: str, params: Message, deadline: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """The result of a request; ``headers`` go with it where there are any."""
        if self.is_stateless:
            params = {**params, "_meta": {**params.get("_meta", {}), **_meta()}}
        message = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}
        own = self._headers(method, params)
        answer = self.transport.request(message, deadline, {**own, **(headers or {})})
        if (error := answer.get("error")) is not None:
            raise self._refusal(method, error)
        result = answer.get("result")
        if not isinstance(result, dict):
            raise ToolError(f"{self._what} answers {method} with {shown(result)}, which is no result")
        return result

    def _refusal(self, method: str, error: Any) -> McpRefused:
        given: Message = error if isinstance(error, dict) else {"message": error}
        code = given.get("code")
        said = " ".join(str(given.get("message")).split())[:1000]
        number = code if type(code) is int else 0
        return McpRefused.of(f"{self._what} refuses {method}: {said} ({number})", number, given.get("data"))

    def _headers(self, method: str, params: Message) -> dict[str, str]:
        """What a request tells of itself to whom it passes on its way, where it goes by HTTP."""
        if not self.version:
            return {}
        headers = {"MCP-Protocol-Version": self.version}
        if self.is_stateless:
            headers["Mcp-Method"] = method
            if method == "tools/call":
                headers["Mcp-Name"] = params["name"]
        return headers

    def pages(self, method: str, key: str, deadline: float) -> list[Any]:
        """All items of a list that comes in pages."""
        items: list[Any] = []
        params: Message = {}
        for _ in range(MOST_PAGES):
            left(deadline)
            result = self.ask(method, params, deadline)
            if not isinstance(page := result.get(key), list):
                raise ToolError(f"{self._what} answers {method} with {shown(page)} where its {key} should be")
            items += page
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or params == {"cursor": cursor}:
                return items
            params = {"cursor": cursor}
        raise ToolError(f"{self._what} lists its {key} in more than {MOST_PAGES} pages")


# Messages


def messages_in(data: bytes) -> list[Message] | None:
    """The messages that some JSON is, one or several; ``None`` for what is no message."""
    try:
        value = _decoded(data)
    except (ValueError, RecursionError):
        return None
    several = value if isinstance(value, list) else [value]
    return several if several and all(isinstance(each, dict) for each in several) else None


def _decoded(data: bytes) -> Any:
    """Some JSON, also with what is none by the letter and that others write: half characters and NaN."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if not data.lstrip().startswith((b"{", b"[")):
            raise
        return json.loads(data)


def reply_to(question: Message) -> Message:
    """Our answer to what a server asks: a ping is answered, and there is nobody to sample or fill in."""
    answer: Message = {"jsonrpc": "2.0", "id": question["id"]}
    if question["method"] == "ping":
        return {**answer, "result": {}}
    text = f"this client does not offer {shown(question['method'])}"
    return {**answer, "error": {"code": _METHOD_NOT_FOUND, "message": text}}


def cancellation(number: int) -> Message:
    """Tells a server that nobody waits for an answer any more."""
    return _notification("notifications/cancelled", {"requestId": number, "reason": "it took too long"})


def too_large(what: str) -> str:
    """The sentence about a message that has no end."""
    return f"{what} sends a message of more than {LARGEST_MESSAGE >> 20} MB"


def until(seconds: float) -> float:
    """Return the deadline for a timeout in seconds."""
    return time.monotonic() + seconds


def _notification(method: str, params: Message | None = None) -> Message:
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}


def _client() -> Message:
    from envweave_gym import __version__

    return {"name": "envweave-gym", "version": __version__}


def _meta() -> Message:
    return {
        f"{_META}protocolVersion": STATELESS,
        f"{_META}clientInfo": _client(),
        f"{_META}clientCapabilities": {},
    }
