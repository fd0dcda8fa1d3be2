"""The loop that answers an owner's calls: numbered requests, one reply each, until the connection closes."""

from __future__ import annotations

import os
import traceback
from typing import Any, Callable

from . import codec
from .find_environment import UnknownId, Wanted, WrongApi, find_and_make
from .framing import Channel
from .hosted import hosted

_MAX_REASON_CHARS, _MAX_TRACEBACK_CHARS = 2000, 8000
_REFUSALS = {
    "gymnasium.error.InvalidAction": "InvalidAction",
    "gym.error.InvalidAction": "InvalidAction",
    "gymnasium.error.ResetNeeded": "ResetNeeded",
    "gym.error.ResetNeeded": "ResetNeeded",
}
"""Exceptions of environments that have a name of their own here; all others are crashes."""


class Calls:
    """The environments of this process by their handles, and the calls that reach them."""

    def __init__(self) -> None:
        self._environments: dict[int, Any] = {}

    def answer(self, frame: bytes) -> bytes:
        """Do what a request says, and return the reply: number, kind, and result or reason."""
        number, handle, method, arguments = codec.decode(frame)
        try:
            if method == "step":
                return codec.encode([number, "", self._environments[handle].step(arguments)])
            return codec.encode([number, "", self._other(handle, method, arguments)])
        except BaseException as error:  # noqa: BLE001 - the owner decides what becomes of it
            return codec.encode([number, *_reported(error, method)])

    def _other(self, handle: int, method: str, arguments: list[Any]) -> Any:
        if method == "make":
            return self._make(handle, *arguments)
        if method == "close":
            environment = self._environments.pop(handle, None)
            return None if environment is None else environment.close()
        call: Callable[..., Any] = getattr(self._environments[handle], method)
        return call(*arguments)

    def _make(self, handle: int, wanted: list[Any], limit: Any) -> Any:
        made = hosted(find_and_make(Wanted(*wanted)), limit)
        try:
            described = made.describe()
        except BaseException:
            made.close()
            raise
        self._environments[handle] = made
        return described


def _reported(error: BaseException, method: str) -> list[Any]:
    """Return kind, reason, type name and traceback of an exception."""
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    kind = next((_REFUSALS[one] for one in kinds if one in _REFUSALS), "crash")
    if method == "make":
        kind = _kind_of_make(error)
    if method == "attribute" and isinstance(error, (AttributeError, codec.NotEncodable)):
        kind = "NoAttribute"
    try:
        reason = str(error)
    except Exception:  # noqa: BLE001 - a foreign exception may not even have a text
        reason = ""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    texts = (reason[:_MAX_REASON_CHARS], type(error).__name__, trace[-_MAX_TRACEBACK_CHARS:])
    return [kind, *(text.encode(errors="backslashreplace").decode() for text in texts)]


def _kind_of_make(error: BaseException) -> str:
    if isinstance(error, UnknownId):
        return "UnknownEnvironment"
    if isinstance(error, (TypeError, ValueError, WrongApi)):
        return "InvalidArgument"
    return "ImportFailed" if isinstance(error, ImportError) else "crash"


def serve(channel: Channel) -> None:
    """Answer calls until the owner closes the connection."""
    calls = Calls()
    channel.send(codec.encode([0, "", os.getpid()]))
    while True:
        try:
            frame = channel.receive()
        except (EOFError, ConnectionError):
            return
        channel.send(calls.answer(frame))
