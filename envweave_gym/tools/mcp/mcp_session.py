"""A JSON-RPC session with an MCP server over any transport: handshake, requests, and messages.

Servers of the protocol up to 2025-11-25 begin with ``initialize``. One that refuses it is sent
``server/discover``, as of 2026-07-28; each request then repeats what ``initialize`` would have said.
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
"""Bytes of a message."""
MAX_PAGES = 1000
"""Pages of a list."""
_METHOD_NOT_FOUND, _UNSUPPORTED_VERSION = -32601, -32022
_META = "io.modelcontextprotocol/"


class McpClosed(ToolError):
    """The server has ended, or cannot be reached."""

    def __init__(self, text: str, *, unsent: bool = False) -> None:
        """``unsent`` says that the server has certainly not executed the request."""
        super().__init__(text)
        self.unsent = unsent


class McpTimeout(ToolError):
    """The server has not answered before the deadline."""


class McpRefused(ToolError):
    """The server has answered with a JSON-RPC error."""

    def __init__(self, text: str, code: int = 0, data: Any = None) -> None:
        super().__init__(text)
        self.code, self.data = code, data


class Transport(Protocol):
    """Carries messages to one server, for any number of threads."""

    def request(self, message: Message, deadline: float, headers: Mapping[str, str]) -> Message:
        """Send a request and return its response; ``headers`` are for HTTP."""
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
        """In a forked process: release the parent's connection without ending it."""
        ...


class McpSession:
    """A server with which a version of the protocol is agreed."""

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
        """Agree on the stateless version; otherwise raise the refusal of ``initialize``.

        Servers refuse ``initialize`` with any error code, so each is followed by this attempt.
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
        """Whether the server retains nothing from one request to the next."""
        return self.version == STATELESS

    def ask(
        self, method: str, params: Message, deadline: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """Send a request and return its result; ``headers`` are added over HTTP."""
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
        """Return the headers that repeat the content of a request, for proxies on its way."""
        if not self.version:
            return {}
        headers = {"MCP-Protocol-Version": self.version}
        if self.is_stateless:
            headers["Mcp-Method"] = method
            if method == "tools/call":
                headers["Mcp-Name"] = params["name"]
        return headers

    def pages(self, method: str, key: str, deadline: float) -> list[Any]:
        """Return all items of a list that comes in pages."""
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
    """Splits received bytes into lines, of which none may be longer than a message."""

    def __init__(self, server: str) -> None:
        self._server, self._rest, self._searched = server, bytearray(), 0

    def lines_with(self, received: bytes) -> Iterator[bytes]:
        """Yield the lines that these bytes complete, without their ends."""
        rest = self._rest
        rest += received
        while (end := rest.find(b"\n", self._searched)) >= 0:
            line = bytes(rest[:end]).removesuffix(b"\r")
            del rest[: end + 1]
            self._searched = 0
            yield line
        self._searched = len(rest)  # a long line is not searched again with each piece
        if len(rest) > LARGEST_MESSAGE:
            raise too_large(self._server)


def messages_in(data: bytes) -> list[Message] | None:
    """Parse JSON with a message, or with a list of messages; return None for anything else."""
    try:
        value = _parsed(data)
    except (ValueError, RecursionError):
        return None
    several = value if isinstance(value, list) else [value]
    return several if several and all(isinstance(one, dict) for one in several) else None


def _parsed(data: bytes) -> Any:
    """Parse JSON, and also lone surrogates and NaN, which some servers send."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if not data.lstrip().startswith((b"{", b"[")):
            raise
        return json.loads(data)


def response_to(request: Message) -> Message:
    """Return the response to a request of the server: a ping is answered, everything else refused."""
    response: Message = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "ping":
        return {**response, "result": {}}
    text = f"this client does not offer {shown(request['method'])}"
    return {**response, "error": {"code": _METHOD_NOT_FOUND, "message": text}}


def cancellation(request_id: int) -> Message:
    """Return the notification that nobody waits for a response any more."""
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
