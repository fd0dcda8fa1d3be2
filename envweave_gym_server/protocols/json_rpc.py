"""JSON-RPC 2.0 for protocols with tools: messages, errors, and the tools themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envweave_gym.core.faults import EnvweaveError, InvalidAction, InvalidArgument, nearest, shown
from envweave_gym_server.core.errors import refusal_of, status_of
from envweave_gym_server.core.logs import trace_of

Json = dict[str, Any]

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
_log = logging.getLogger(__name__)


class RpcError(Exception):
    """Error reply to a request: a code of JSON-RPC, one sentence, and optional data."""

    def __init__(self, code: int, text: str, data: Any = None) -> None:
        super().__init__(text)
        self.code, self.data = code, data


class ToolFailed(EnvweaveError):
    """Error of a tool's call that the caller reads as the result of the call, not as an error of the protocol."""


@dataclass(frozen=True)
class Tool:
    """Function that a client may call by name, with its arguments as JSON."""

    name: str
    description: str
    input_schema: Json
    """JSON schema of the arguments, an object."""
    call: Callable[[Json], Any]
    """Function from the arguments to a result, which is JSON; raise :class:`ToolFailed` for an error."""

    def listed(self, schema_key: str = "inputSchema") -> Json:
        """Return the entry of the tool in a list of tools."""
        return {"name": self.name, "description": self.description, schema_key: self.input_schema}


Method = Callable[[Json], Json]
"""Function from the params of a request to its result."""


def result_of(request_id: Any, result: Any) -> Json:
    """Return the reply to a request that succeeded."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def error_of(request_id: Any, error: RpcError) -> Json:
    """Return the reply to a request that failed."""
    about: Json = {"code": error.code, "message": str(error)}
    if error.data is not None:
        about["data"] = error.data
    return {"jsonrpc": "2.0", "id": request_id, "error": about}


def is_response(message: Any) -> bool:
    """Return whether a message is the reply to a request of ours, to which nobody replies."""
    return (
        isinstance(message, dict) and "method" not in message and ("result" in message or "error" in message)
    )


def id_of(message: Any) -> Any:
    """Return the id of a request; ``None`` if it has none, or none that JSON-RPC allows."""
    given = message.get("id") if isinstance(message, dict) else None
    return given if type(given) in (str, int, float) else None


def answer(message: Any, methods: Mapping[str, Method]) -> Json | None:
    """Return the reply to one message; ``None`` to a notification or a response.

    No exception leaves this function: those of ours become errors of JSON-RPC, others an internal error that is logged.
    """
    if is_response(message):
        return None
    request_id = id_of(message)
    is_notification = isinstance(message, dict) and "method" in message and "id" not in message
    try:
        reply = result_of(request_id, _method(message, methods)(_params(message)))
    except RpcError as error:
        reply = error_of(request_id, error)
    except Exception as error:  # noqa: BLE001 - each request gets its reply
        reply = error_of(request_id, rpc_error_of(error))
    return None if is_notification else reply


def rpc_error_of(error: Exception) -> RpcError:
    """Convert an exception to an error reply; bugs of the server are logged, and reported without details."""
    if status_of(error) == 500:
        _log.error("request failed", extra=trace_of(error))
    refused = refusal_of(error)
    code = INVALID_PARAMS if isinstance(error, InvalidAction | InvalidArgument) else INTERNAL_ERROR
    return RpcError(code, refused.message, {"kind": refused.kind})


def _method(message: Any, methods: Mapping[str, Method]) -> Method:
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, "a request is a JSON object with jsonrpc '2.0', a method and an id")
    name = message.get("method")
    if not isinstance(name, str):
        raise RpcError(INVALID_REQUEST, f"method {shown(name)} is no text; give the name of a method")
    found = methods.get(name)
    if found is None:
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {shown(name)}; there are {', '.join(methods)}")
    if "id" in message and id_of(message) is None:
        raise RpcError(INVALID_REQUEST, f"id {shown(message['id'])} is neither a text nor a number")
    return found


def _params(message: Json) -> Json:
    params = message.get("params")
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, f"params {shown(params)} are no object; give the arguments by name")
    return params


def tool_of(tools: Mapping[str, Tool], name: Any) -> Tool:
    """Return the tool with this name; raise ``RpcError`` if there is none."""
    if isinstance(name, str) and name in tools:
        return tools[name]
    hint = nearest(name, tools) if isinstance(name, str) else ""
    raise RpcError(INVALID_PARAMS, f"there is no tool {shown(name)}{hint}; there are {', '.join(tools)}")


def arguments_of(params: Json) -> Json:
    """Return the arguments in the params of ``tools/call``; raise ``RpcError`` if they are no object."""
    given = params.get("arguments")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RpcError(INVALID_PARAMS, f"arguments {shown(given)} are no object; give them by name")
    return given
