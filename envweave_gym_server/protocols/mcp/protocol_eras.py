"""Both eras of MCP: versions that begin with ``initialize``, and 2026-07-28, in which each request stands alone."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from envweave_gym.core.faults import EnvweaveError, shown
from envweave_gym.core.version import __version__
from envweave_gym_server.core.errors import status_of
from envweave_gym_server.protocols.json_calls import CallRefused, EpisodeLost
from envweave_gym_server.protocols.json_rpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Json,
    Method,
    RpcError,
    Tool,
    ToolFailed,
    answer,
    arguments_of,
    error_of,
    id_of,
    tool_of,
)

WITH_HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that begin with ``initialize``, the newest last."""
STATELESS = "2026-07-28"
"""Version without a handshake: each request has the client's version, and headers that repeat parts of it."""

_META = "io.modelcontextprotocol/"
_VERSION_HEADER = "MCP-Protocol-Version"
_HEADER_MISMATCH, _UNSUPPORTED_VERSION = -32020, -32022
_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    METHOD_NOT_FOUND: 404,
    _HEADER_MISMATCH: 400,
    _UNSUPPORTED_VERSION: 400,
}
"""HTTP status of errors in version 2026-07-28; those of earlier versions have 200."""
_BASE64_BEGIN, _BASE64_END = "=?base64?", "?="
"""Marks of a header value that is base64 (MCP 2026-07-28)."""
_SERVER = {"name": "envweave-gym", "version": __version__}


@dataclass(frozen=True)
class Toolset:
    """The tools of one URL, and what a client should know about them."""

    instructions: str
    tools: Mapping[str, Tool]


Tools = Callable[[], Toolset]
"""Function that builds the tools for a request; its exceptions become errors of JSON-RPC."""


def is_stateless(message: Any, headers: Mapping[str, str]) -> bool:
    """Return whether a request is one of version 2026-07-28 or later."""
    return (
        _method_name(message) == "server/discover"
        or f"{_META}protocolVersion" in _meta_of(message)
        or "Mcp-Method" in headers
    )


def reply_to(message: Any, headers: Mapping[str, str], tools: Tools) -> tuple[Json | list[Json] | None, int]:
    """Return the reply to a message or a batch, and its HTTP status; no reply to notifications and responses."""
    if isinstance(message, dict) and is_stateless(message, headers):
        return _reply_to_stateless(message, headers, tools)
    try:
        _check_request_with_handshake(message, headers)
    except RpcError as error:
        return error_of(id_of(message), error), 400
    methods = _methods_with_handshake(cache(tools))
    if isinstance(message, list):  # a batch, as versions up to 2025-03-26 have
        replies = [reply for one in message if (reply := answer(one, methods)) is not None]
        return (replies, 200) if replies else (None, 202)
    reply = answer(message, methods)
    return reply, 202 if reply is None else 200


# Versions with a handshake


def _check_request_with_handshake(message: Any, headers: Mapping[str, str]) -> None:
    """Raise ``RpcError`` for an empty batch, and for a header with a version that has no handshake.

    ``initialize`` agrees on a version, whatever the header says; without the header the version is 2025-03-26.
    """
    if message == []:
        raise RpcError(INVALID_REQUEST, "a batch has at least one message, and this one has none")
    version, is_first = headers.get(_VERSION_HEADER), _method_name(message) == "initialize"
    if version is not None and version not in WITH_HANDSHAKE and not is_first:
        known = ", ".join((*WITH_HANDSHAKE, STATELESS))
        raise RpcError(
            INVALID_REQUEST,
            f"Unsupported protocol version: {_VERSION_HEADER} {shown(version)}; there are {known}, "
            f"and a request of {STATELESS} repeats it in params._meta",
        )


def _method_name(message: Any) -> Any:
    return message.get("method") if isinstance(message, dict) else None


def _methods_with_handshake(tools: Tools) -> dict[str, Method]:
    def initialize(params: Json) -> Json:
        wanted = params.get("protocolVersion")
        version = wanted if wanted in WITH_HANDSHAKE else WITH_HANDSHAKE[-1]
        return {"protocolVersion": version, **_about(tools()), "serverInfo": _SERVER}

    return {
        "initialize": initialize,
        "ping": lambda _: {},
        "tools/list": lambda _: _listed(tools()),
        "tools/call": lambda params: _called(tools(), params),
    }


def _about(tools: Toolset) -> Json:
    return {"capabilities": {"tools": {}}, "instructions": tools.instructions}


def _listed(tools: Toolset) -> Json:
    return {"tools": [tool.listed() for tool in tools.tools.values()]}


def _called(tools: Toolset, params: Json) -> Json:
    """Call a tool; errors of ours become its result, as an agent can act upon them."""
    tool, arguments = tool_of(tools.tools, params.get("name")), arguments_of(params)
    try:
        value = tool.call(arguments)
    except (CallRefused, EpisodeLost, ToolFailed) as error:
        return {"content": [_text(str(error))], "isError": True}
    except EnvweaveError as error:
        if status_of(error) == 500:
            raise
        return {"content": [_text(" ".join(str(error).split()))], "isError": True}
    text = msgspec.json.encode(value).decode()
    return {"content": [_text(text)], "structuredContent": value, "isError": False}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


# Version 2026-07-28


def _reply_to_stateless(message: Json, headers: Mapping[str, str], tools: Tools) -> tuple[Json | None, int]:
    try:
        _check_stateless_request(message, headers)
    except RpcError as error:
        return error_of(id_of(message), error), _STATUS[error.code]
    reply = answer(message, _stateless_methods(tools))
    if reply is None:
        return None, 202
    return reply, _STATUS.get(reply["error"]["code"], 200) if "error" in reply else 200


def _stateless_methods(tools: Tools) -> dict[str, Method]:
    def complete(result: Json, *, is_cacheable: bool = False) -> Json:
        caching = {"ttlMs": 0, "cacheScope": "private"} if is_cacheable else {}
        return {"resultType": "complete", **result, **caching, "_meta": {f"{_META}serverInfo": _SERVER}}

    def discover(_: Json) -> Json:
        return complete({"supportedVersions": [STATELESS], **_about(tools())}, is_cacheable=True)

    return {
        "server/discover": discover,
        "tools/list": lambda _: complete(_listed(tools()), is_cacheable=True),
        "tools/call": lambda params: complete(_called(tools(), params)),
    }


def _meta_of(message: Any) -> Json:
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}


def _check_stateless_request(message: Json, headers: Mapping[str, str]) -> None:
    """Raise ``RpcError`` if a request lacks its version, has another one, or contradicts its own headers."""
    version = _meta_of(message).get(f"{_META}protocolVersion")
    if not isinstance(version, str):
        raise RpcError(INVALID_PARAMS, f"params._meta lacks {_META}protocolVersion, a text")
    params = message.get("params") or {}
    expected = {_VERSION_HEADER: version, "Mcp-Method": message.get("method")}
    if message.get("method") == "tools/call":
        expected["Mcp-Name"] = params.get("name")
    for name, value in expected.items():
        if _decoded(headers.get(name)) != value:
            raise RpcError(
                _HEADER_MISMATCH, f"the header {name} does not repeat {shown(value)} of the request"
            )
    if version != STATELESS:
        about = {"supported": [STATELESS], "requested": version}
        raise RpcError(_UNSUPPORTED_VERSION, "Unsupported protocol version", about)


def _decoded(value: str | None) -> str | None:
    """Return a header value, decoded if it is marked as base64; ``None`` if that is malformed."""
    if value is None or not (value.startswith(_BASE64_BEGIN) and value.endswith(_BASE64_END)):
        return value
    try:
        data = base64.b64decode(value[len(_BASE64_BEGIN) : -len(_BASE64_END)], validate=True)
        return data.decode()
    except (binascii.Error, ValueError):
        return None
