"""The journal of an episode: its programs and their tool calls, from which the episode can be replayed."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec

from envweave_gym.core.faults import ToolError
from envweave_gym.envs.code.offered_tools import OfferedTools
from envweave_gym.sandbox.execution import MAX_REPLY_BYTES

MAX_CALL_BYTES = 64 << 20
"""Limit of bytes of JSON in the arguments and results of all tool calls of an episode, which stay in memory."""
_OVERHEAD_BYTES = 256
"""Bytes that are counted for each arguments object and each result in addition to its JSON."""
_TOO_MUCH = (
    f"the tool calls of an episode may have {MAX_CALL_BYTES} bytes of arguments and answers together, which "
    "are used up; send and return less in the next episode"
)
CALLED_OTHERWISE = "was called otherwise when this was played first"
"""Text of the error if a replayed program makes a tool call that it did not make the first time."""


class Call(msgspec.Struct, frozen=True):
    """A tool call with its result: ``value``, or ``error`` if it failed."""

    name: str
    arguments: dict[str, Any]
    value: Any = None
    error: str | None = None


class ProgramStep(msgspec.Struct, frozen=True):
    """A program of an episode and its finished tool calls, in the order of their results."""

    code: str
    calls: list[Call] = []


class Journal(msgspec.Struct):
    """The programs that made the present namespace (``steps``), and the program that is running now."""

    steps: list[ProgramStep] = []
    running: ProgramStep | None = None
    bytes_left: int = msgspec.field(default_factory=lambda: MAX_CALL_BYTES)
    """The number of bytes left for further tool calls of this episode."""


class JournaledTools:
    """Calls the tools of an episode and records each call in the journal; in a replay it returns recorded results."""

    def __init__(self, offered: OfferedTools, journal: Journal) -> None:
        self._offered, self._journal = offered, journal
        self._replayed: list[Call] | None = None
        self._lock = threading.Lock()

    def specs(self) -> list[dict[str, Any]]:
        """Return the name, signature and docstring of each tool."""
        return self._offered.registry().specs()

    def replay(self, calls: list[Call] | None) -> None:
        """Start a replay that answers calls from this list, each entry once; ``None`` ends the replay."""
        self._replayed = None if calls is None else list(calls)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool, record the call and return its result; in a replay return the recorded result."""
        if self._replayed is not None:
            return self._call_again(name, arguments)
        running = self._journal.running  # read now: the step may have ended when the result comes
        calls = [] if running is None else running.calls
        self.spend(name, arguments)  # before the call, so that a refused call has no effect
        try:
            value = self._offered.registry().call(name, arguments)
            if (size := _size(value)) > MAX_REPLY_BYTES:  # the sandbox would refuse it, so it is not recorded
                raise ToolError(f"{name} gave {size} bytes; at most {MAX_REPLY_BYTES} are accepted")
            self.spend(name, value)
        except ToolError as error:
            calls.append(Call(name, arguments, error=str(error)))
            raise
        calls.append(Call(name, arguments, value))
        return value

    def spend(self, name: str, value: Any) -> None:
        """Subtract the size of ``value`` from ``bytes_left``, the bytes that the episode's tool calls may still have.

        ``value`` is the arguments or the result of a call of the tool ``name``. Raise ``ToolError`` if there are not
        enough; then all further calls of the episode are refused too.
        """
        size = _OVERHEAD_BYTES + _size(value)
        with self._lock:
            if size <= self._journal.bytes_left:
                self._journal.bytes_left -= size
                return
            self._journal.bytes_left = 0  # so that a replay refuses the same calls
        raise ToolError(f"{name}: {_TOO_MUCH}")

    def _call_again(self, name: str, arguments: dict[str, Any]) -> Any:
        with self._lock:
            found = take_call(self._replayed or [], name, arguments)
        if found is None:
            is_spent = self._journal.bytes_left == 0
            raise ToolError(f"{name}: {_TOO_MUCH}" if is_spent else f"{name} {CALLED_OTHERWISE}")
        if found.error is not None:
            raise ToolError(found.error)
        return found.value


def take_call(calls: list[Call], name: str, arguments: dict[str, Any]) -> Call | None:
    """Remove the first call with this name and these arguments from the list and return it, or ``None``."""
    found = next((one for one in calls if (one.name, one.arguments) == (name, arguments)), None)
    if found is not None:
        calls.remove(found)
    return found


def _size(value: Any) -> int:
    """Return the number of bytes of a value as JSON; 0 if it is not JSON, which is refused elsewhere."""
    try:
        return len(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return 0
