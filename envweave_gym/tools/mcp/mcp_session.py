"""A JSON-RPC session with an MCP server over any transport: handshake, requests, and messages.

Protocol versions up to 2025-11-25 begin with the request ``initialize``. A server that refuses it is sent
``server/discover`` of version 2026-07-28, which has no handshake. Each request then contains the client's version
and capabilities.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from envweave_gym.core.faults import ToolError, shown
from envweave_gym.net.deadlines import seconds_left

Message = dict[str, Any]

LATEST = "2025-11-25"
WITH_HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", LATEST)
"""The versions of the protocol that begin with ``initialize``."""
STATELESS = "2026-07-28"
"""The version without a handshake."""
LARGEST_MESSAGE = 64 << 20
"""Limit of a message in bytes."""
MAX_PAGES = 1000
"""Limit of the pages of a list, such as a list of tools."""
_METHOD_NOT_FOUND, _UNSUPPORTED_VERSION = -32601, -32022
_META = "io.modelcontextprotocol/"


class McpClosed(ToolError):
    """Raised if the server has ended or cannot be reached."""

    def __init__(self, text: str, *, unsent: bool = False) -> None:
        """Make the error; ``unsent`` says that the server has certainly not executed the request."""
        super().__init__(text)
        self.unsent = unsent


class McpTimeout(ToolError):
    """Raised if the server has not answered before the deadline."""


class McpRefused(ToolError):
    """Raised if the server has answered with a JSON-RPC error."""

    def __init__(self, text: str, code: int = 0, data: Any = None) -> None:
        super().__init__(text)
        self.code, self.data = code, data


class Transport(Protocol):
    """Carries messages to one server and back; thread-safe.

    A ``deadline`` is a time of ``time.monotonic()``.
    """

    def request(self, message: Message, deadline: float, headers: Mapping[str, str]) -> Message:
        """Send a request and return its response; ``headers`` are sent over HTTP only.

        Raise :class:`McpTimeout` at the deadline, :class:`McpClosed` without a connection.
        """
        ...

    def notify(self, message: Message, deadline: float, headers: Mapping[str, str]) -> None:
        """Send a notification, which has no response."""
        ...

    @property
    def failed(self) -> bool:
        """Whether no further request can succeed."""
        ...

    def close(self) -> None:
        """End the connection, and the server if this process has started it."""
        ...

    def forget(self) -> None:
        """Release the connection without ending it; called in a forked process, as the parent still uses it."""
        ...


class McpSession:
    """A connection to a server after the handshake, which has settled the version of the protocol."""

    def __init__(self, server: str, transport: Transport, deadline: float) -> None:
        """Perform the handshake; ``server`` names the server in errors."""
        self._server, self.transport = server, transport
        self._ids = itertools.count(1)
        self.version = ""
        try:
            self._initialize(deadline)
        except BaseException:
            transport.close()
            raise

    def _initialize(self, deadline: float) -> None:
        params = {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": _client_info()}
        try:
            version = self.ask("initialize", params, deadline).get("protocolVersion")
        except McpRefused as refusal:
            self._discover(refusal, deadline)
            return
        self._require(version in WITH_HANDSHAKE, version)
        self.version = version
        method = "notifications/initialized"
        self.transport.notify({"jsonrpc": "2.0", "method": method}, deadline, self._headers(method, {}))

    def _discover(self, refusal: McpRefused, deadline: float) -> None:
        """Agree on the stateless protocol version by ``server/discover``; if that fails, raise ``refusal``.

        ``refusal`` is the server's error for ``initialize``. Servers use any error code for it, so this attempt
        follows every error.
        """
        self.version = STATELESS
        try:
            versions = self.ask("server/discover", {}, deadline).get("supportedVersions")
        except McpRefused as error:
            if error.code != _UNSUPPORTED_VERSION:
                raise refusal from None
            versions = error.data.get("supported") if isinstance(error.data, dict) else None
        self._require(isinstance(versions, list) and STATELESS in versions, versions)

    def _require(self, is_known: bool, version: Any) -> None:
        if not is_known:
            known = f"{', '.join(WITH_HANDSHAKE)} and {STATELESS}"
            raise ToolError(f"{self._server} speaks MCP of {shown(version)}; known are {known}")

    @property
    def is_stateless(self) -> bool:
        """Whether the version is the stateless one, in which no request depends on an earlier one."""
        return self.version == STATELESS

    def ask(
        self, method: str, params: Message, deadline: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """Send a request and return its result; ``headers`` are sent over HTTP only.

        Raise :class:`McpRefused` if the server answers with an error.
        """
        if self.is_stateless:
            params = {**params, "_meta": {**params.get("_meta", {}), **_request_meta()}}
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        response = self.transport.request(
            request, deadline, {**self._headers(method, params), **(headers or {})}
        )
        if (error := response.get("error")) is not None:
            raise self._refusal(method, error)
        result = response.get("result")
        if not isinstance(result, dict):
            raise ToolError(f"{self._server} answers {method} with {shown(result)}, which is no result")
        return result

    def _refusal(self, method: str, error: Any) -> McpRefused:
        given: Message = error if isinstance(error, dict) else {"message": error}
        code = given["code"] if type(given.get("code")) is int else 0
        text = " ".join(str(given.get("message")).split())[:1000]
        return McpRefused(f"{self._server} refuses {method}: {text} ({code})", code, given.get("data"))

    def _headers(self, method: str, params: Message) -> dict[str, str]:
        """Return the HTTP headers that repeat the method and the name in a request, for proxies on the way."""
        if not self.version:
            return {}
        headers = {"MCP-Protocol-Version": self.version}
        if self.is_stateless:
            headers["Mcp-Method"] = method
            if method == "tools/call":
                headers["Mcp-Name"] = params["name"]
        return headers

    def pages(self, method: str, key: str, deadline: float) -> list[Any]:
        """Request all pages of a list, such as ``tools/list``, and return the items under ``key``."""
        items: list[Any] = []
        params: Message = {}
        for _ in range(MAX_PAGES):
            seconds_left(deadline, self._server)
            result = self.ask(method, params, deadline)
            if not isinstance(page := result.get(key), list):
                raise ToolError(
                    f"{self._server} answers {method} with {shown(page)} where its {key} should be"
                )
            items += page
            cursor = result.get("nextCursor")
            if not isinstance(cursor, str) or params == {"cursor": cursor}:
                return items
            params = {"cursor": cursor}
        raise ToolError(f"{self._server} lists its {key} in more than {MAX_PAGES} pages")


# Messages


class LineBuffer:
    """Buffer that splits received bytes into lines; raises for lines longer than :data:`LARGEST_MESSAGE`."""

    def __init__(self, server: str) -> None:
        self._server, self._rest, self._searched = server, bytearray(), 0

    def lines_with(self, received: bytes) -> Iterator[bytes]:
        """Append received bytes, and yield the lines that are complete now, without line ends."""
        rest = self._rest
        rest += received
        while (end := rest.find(b"\n", self._searched)) >= 0:
            line = bytes(rest[:end]).removesuffix(b"\r")
            del rest[: end + 1]
            self._searched = 0
            yield line
        self._searched = len(rest)  # otherwise a long line would be searched again with each piece
        if len(rest) > LARGEST_MESSAGE:
            raise too_large(self._server)


def messages_in(data: bytes) -> list[Message] | None:
    """Parse JSON that is a message or a list of messages; return None for anything else."""
    try:
        value = _parsed(data)
    except (ValueError, RecursionError):
        return None
    several = value if isinstance(value, list) else [value]
    return several if several and all(isinstance(one, dict) for one in several) else None


def _parsed(data: bytes) -> Any:
    """Parse JSON leniently: lone surrogates and NaN, which some servers send, are accepted."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if not data.lstrip().startswith((b"{", b"[")):
            raise
        return json.loads(data)


def response_to(request: Message) -> Message:
    """Return our response to a request that the server sends: an empty result for a ping, else an error."""
    response: Message = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "ping":
        return {**response, "result": {}}
    text = f"this client does not offer {shown(request['method'])}"
    return {**response, "error": {"code": _METHOD_NOT_FOUND, "message": text}}


def cancellation(request_id: int) -> Message:
    """Return the notification ``notifications/cancelled``: the client no longer waits for the response."""
    params = {"requestId": request_id, "reason": "it took too long"}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


def too_large(server: str) -> ToolError:
    """Return the error for a message that is too long."""
    return ToolError(f"{server} sends a message of more than {LARGEST_MESSAGE >> 20} MB")


def _client_info() -> Message:
    from envweave_gym.core.version import __version__

    return {"name": "envweave-gym", "version": __version__}


def _request_meta() -> Message:
    client = {"clientInfo": _client_info(), "clientCapabilities": {}}
    return {f"{_META}{key}": value for key, value in {"protocolVersion": STATELESS, **client}.items()}
