"""Messages of OpenEnv's WebSocket: ``{"type": …, "data": …}`` in both directions, and its error codes."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from envweave_gym.core.faults import AtCapacity, InvalidAction, InvalidArgument, shown
from envweave_gym_server.core.errors import BadRequest, NoSession, refusal_of, status_of
from envweave_gym_server.core.logs import trace_of
from envweave_gym_server.protocols.json_calls import CallRefused, EpisodeLost
from envweave_gym_server.protocols.json_rpc import Json
from envweave_gym_server.protocols.rest.schemas import read_json

RESET, STEP, STATE, CLOSE, MCP = "reset", "step", "state", "close", "mcp"
_TYPES = (RESET, STEP, STATE, CLOSE, MCP)
_WITH_DATA = (RESET, STEP, MCP)

INVALID_JSON, UNKNOWN_TYPE, VALIDATION_ERROR = "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"
EXECUTION_ERROR, CAPACITY_REACHED, FACTORY_ERROR = "EXECUTION_ERROR", "CAPACITY_REACHED", "FACTORY_ERROR"
SESSION_ERROR = "SESSION_ERROR"
_ENDING = (CAPACITY_REACHED, FACTORY_ERROR, SESSION_ERROR)
_log = logging.getLogger(__name__)


class OpenEnvError(Exception):
    """Error that a client gets as a message of type ``error``, with one of OpenEnv's codes."""

    def __init__(self, code: str, text: str, **more: Any) -> None:
        super().__init__(text)
        self.code, self.more = code, more

    @property
    def ends_session(self) -> bool:
        """Whether the connection is closed after this error."""
        return self.code in _ENDING

    def message(self) -> Json:
        """Return the message."""
        return {"type": "error", "data": {"message": str(self), "code": self.code, **self.more}}


def read_message(frame: bytes) -> tuple[str, Json]:
    """Return the type and the data of a client's message; raise :class:`OpenEnvError` if it is malformed."""
    try:
        message = read_json(frame)
    except BadRequest as error:
        raise OpenEnvError(INVALID_JSON, str(error)) from None
    except InvalidArgument as error:
        raise OpenEnvError(VALIDATION_ERROR, str(error)) from None
    if not isinstance(message, dict):
        raise OpenEnvError(SESSION_ERROR, f"a message is a JSON object with a type, not {shown(message)}")
    kind = message.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        known = ", ".join(_TYPES)
        raise OpenEnvError(UNKNOWN_TYPE, f"Unknown message type: {shown(kind)}; there are {known}")
    allowed = {"type", "data"} if kind in _WITH_DATA else {"type"}
    if unknown := sorted(message.keys() - allowed):
        text = f"a message of type {kind} has no {shown(unknown[0])}; it has {', '.join(sorted(allowed))}"
        raise OpenEnvError(VALIDATION_ERROR, text)
    data = message.get("data", {} if kind == RESET else None)
    if kind in _WITH_DATA and not isinstance(data, dict):
        raise OpenEnvError(
            VALIDATION_ERROR, f"data of a message of type {kind} are an object, not {shown(data)}"
        )
    return kind, data or {}


def packed(kind: str, data: Any) -> bytes:
    """Return a message as the payload of a frame."""
    return msgspec.json.encode({"type": kind, "data": data})


def error_of(error: Exception) -> OpenEnvError:
    """Convert an exception of a call to the error that the client gets; bugs of the server are logged."""
    if isinstance(error, OpenEnvError):
        return error
    if isinstance(error, CallRefused):
        is_refusal = error.refused.kind in ("InvalidAction", "InvalidArgument", "ValueError")
        return OpenEnvError(VALIDATION_ERROR if is_refusal else EXECUTION_ERROR, str(error))
    if isinstance(error, EpisodeLost):
        return OpenEnvError(EXECUTION_ERROR, str(error))
    if status_of(error) == 500:
        _log.error("call failed", extra=trace_of(error))
    text = refusal_of(error).message
    if isinstance(error, InvalidAction | InvalidArgument | BadRequest):
        return OpenEnvError(VALIDATION_ERROR, text)
    if isinstance(error, NoSession):
        return OpenEnvError(SESSION_ERROR, text)
    return OpenEnvError(CAPACITY_REACHED if status_of(error) == 503 else EXECUTION_ERROR, text)


def error_of_creation(error: Exception, name: str, sessions: int, most: int) -> OpenEnvError:
    """Convert an exception of the creation of a session; ``sessions`` of ``most`` are open."""
    if status_of(error) == 503:
        text = refusal_of(error).message
        if isinstance(error, AtCapacity):
            text = f"Server at capacity: {text}"
        return OpenEnvError(CAPACITY_REACHED, text, active_sessions=sessions, max_sessions=most)
    if isinstance(error, NoSession | OpenEnvError):
        return error_of(error)
    return OpenEnvError(FACTORY_ERROR, str(error_of(error)), factory_name=name)
