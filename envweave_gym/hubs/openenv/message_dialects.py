"""Messages of OpenEnv's WebSocket protocol, in the dialects of openenv-core 0.3 and openenv 0.4 to 0.10.

Servers refuse messages with members that they do not know, so requests have exactly those that all releases take.
Replies are read tolerantly: releases before 0.4 leave metadata out, later ones send them twice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from envweave_gym.core.faults import (
    AtCapacity,
    EnvironmentCrashed,
    InvalidAction,
    InvalidArgument,
    SessionLost,
    shown,
)

RESET, STEP, STATE, CLOSE = "reset", "step", "state", "close"
LARGEST_MESSAGE_BYTES = 100 << 20
"""Limit of one message, the same as of OpenEnv's own clients."""

_REPLIES = {RESET: "observation", STEP: "observation", STATE: "state"}
"""The type of the reply to each request."""
_ENDING = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Codes of errors after which a server closes the connection."""
_MAX_MESSAGE_CHARS = 500

SKIPPED = frozenset({"reward", "done", "metadata"})
"""Members of observations that are no parts of the observation space."""
SKIPPED_IN_ACTIONS = frozenset({"metadata"})
"""Members of actions that are no parts of the action space."""


class Observed(NamedTuple):
    """An observation as JSON, with the reward (``None`` if the server gave none), the end and the metadata."""

    observation: dict[str, Any]
    reward: float | None
    done: bool
    metadata: dict[str, Any]


class Reply(msgspec.Struct):
    """A message of a server."""

    type: str
    data: dict[str, Any] = {}


def encode(kind: str, data: Any = None) -> bytes:
    """Return a request as JSON; raise ``TypeError`` or ``ValueError`` for data that JSON cannot express."""
    message = {"type": kind, "data": data} if kind in (RESET, STEP) else {"type": kind}
    encoded = msgspec.json.encode(message)
    encoded.decode()  # lone surrogates
    return encoded


def decode(url: str, message: bytes) -> Reply:
    """Return a server's message; raise ``SessionLost`` if it is none."""
    try:
        return msgspec.json.decode(message, type=Reply)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SessionLost(
            f"{url} sent what is no message of OpenEnv: {shown(message[:60])} ({error})"
        ) from None


def is_harmless_error(reply: Reply) -> bool:
    """Return whether a reply is an error after which the server goes on with the session."""
    return reply.type == "error" and reply.data.get("code") not in _ENDING


def data_of(url: str, kind: str, reply: Reply, sent: Any, known: Collection[str] | None) -> dict[str, Any]:
    """Return the data of the reply to a request, or raise what an error reply means.

    ``sent`` is the request's data; ``known`` are the members of actions, if the server's schema names them all.
    """
    if reply.type == _REPLIES[kind]:
        return reply.data
    if reply.type != "error":
        raise SessionLost(f"{url} answered {kind!r} with a message of type {shown(reply.type)}")
    raise error_of(url, kind, reply.data, sent, known)


def error_of(
    url: str, kind: str, data: Mapping[str, Any], sent: Any = None, known: Collection[str] | None = None
) -> Exception:
    """Return the exception for an error message that answers a request; see :func:`data_of`."""
    code, text = data.get("code"), _text(data)
    match code:
        case "CAPACITY_REACHED":
            return AtCapacity(f"{url}: {text}")
        case "VALIDATION_ERROR" if kind in (RESET, STEP) and _is_refusal(data.get("errors"), sent, known):
            what = "refuses the action" if kind == STEP else "refuses the options of the reset"
            error = InvalidAction if kind == STEP else InvalidArgument
            return error(f"{url} {what} {shown(sent)}: {text}")
        case "VALIDATION_ERROR" | "EXECUTION_ERROR" | "FACTORY_ERROR":
            return EnvironmentCrashed(f"{url}: {text}")
        case _:
            return SessionLost(f"{url}: {text} ({shown(code)})")


def _text(data: Mapping[str, Any]) -> str:
    """Return the text of an error message in one line, with the details of a failed validation."""
    message, errors = data.get("message"), data.get("errors")
    text = message if isinstance(message, str) and message else "an error without a message"
    if isinstance(errors, list) and errors:
        text += f": {'; '.join(map(_detail, errors[:3]))}"
    return " ".join(text.split())[:_MAX_MESSAGE_CHARS]


def _detail(error: Any) -> str:
    if not isinstance(error, dict) or not isinstance(error.get("loc"), list):
        return shown(error)
    return f"{'.'.join(map(str, error['loc']))}: {error.get('msg')}"


def _is_refusal(errors: Any, sent: Any, known: Collection[str] | None) -> bool:
    """Return whether the request failed a validation, so that the environment has done nothing.

    A server sends the same code if its environment builds an invalid object, such as an observation. Then an error is
    about a member that is neither in the request nor one of an action.
    """
    if known is None or not isinstance(errors, list) or not isinstance(sent, dict):
        return True
    names = {"type", "data", *known, *sent}
    locations = [
        error["loc"] for error in errors if isinstance(error, dict) and isinstance(error.get("loc"), list)
    ]
    return all(not location or location[0] in names for location in locations)


def observed(url: str, data: dict[str, Any]) -> Observed:
    """Return what a reply to a reset or step says; raise ``SessionLost`` for values of wrong types."""
    observation, done = data.get("observation"), data.get("done")
    if not isinstance(observation, dict):
        raise SessionLost(f"{url} sent an observation that is no object: {shown(observation)}")
    if not isinstance(done, bool | None):
        raise SessionLost(f"{url} sent done={shown(done)}, which is not true or false")
    metadata = data.get("metadata") or observation.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise SessionLost(f"{url} sent metadata that are no object: {shown(metadata)}")
    rest = {name: value for name, value in observation.items() if name not in SKIPPED}
    return Observed(rest, _reward(url, data.get("reward")), bool(done), metadata)


def _reward(url: str, reward: Any) -> float | None:
    if reward is None:
        return None
    try:
        number = float(reward) if isinstance(reward, bool | int | float) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise SessionLost(f"{url} sent the reward {shown(reward)}, which is no finite number")
    return number
