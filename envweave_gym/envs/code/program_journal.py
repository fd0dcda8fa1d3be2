"""The journal of an episode of programs: code and tool calls, from which the episode can be replayed."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec

from envweave_gym.core.faults import ToolError
from envweave_gym.envs.code.offered_tools import OfferedTools
from envweave_gym.sandbox.execution import MAX_REPLY_BYTES

MAX_CALL_BYTES = 64 << 20
"""Bytes of JSON in all tool calls of an episode, arguments and results, which journal and stream hold."""
_OVERHEAD_BYTES = 256
"""Bytes that arguments and results count in addition."""
_TOO_MUCH = (
    f"the tool calls of an episode may have {MAX_CALL_BYTES} bytes of arguments and answers together, which "
    "are used up; send and return less in the next episode"
)
CALLED_OTHERWISE = "was called otherwise when this was played first"
"""The error of a call that a replayed program makes and did not make before."""


class Call(msgspec.Struct, frozen=True):
    """A tool call and its result."""

    name: str
    arguments: dict[str, Any]
    value: Any = None
    error: str | None = None


class ProgramStep(msgspec.Struct, frozen=True):
    """A program and the tool calls that it has made so far."""

    code: str
    calls: list[Call] = []


class Journal(msgspec.Struct):
    """The programs that have run since the namespace was empty, and the one that is running."""

    steps: list[ProgramStep] = []
    running: ProgramStep | None = None
    bytes_left: int = msgspec.field(default_factory=lambda: MAX_CALL_BYTES)
    """Bytes that tool calls of this episode may still have."""


class JournaledTools:
    """The tools of an episode: their calls are written to the journal, and answered from it in a replay."""

    def __init__(self, offered: OfferedTools, journal: Journal) -> None:
        self._offered, self._journal = offered, journal
        self._replayed: list[Call] | None = None
        self._lock = threading.Lock()

    def specs(self) -> list[dict[str, Any]]:
        """Return name, signature and docstring of each tool."""
        return self._offered.registry().specs()

    def replay(self, calls: list[Call] | None) -> None:
        """Answer from these calls from now on, each once; ``None`` ends the replay."""
        self._replayed = None if calls is None else list(calls)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool and write it down; in a replay return what the same call returned before."""
        if self._replayed is not None:
            return self._call_again(name, arguments)
        running = self._journal.running  # the step of this call, though the result may come after its end
        calls = [] if running is None else running.calls
        self.spend(name, arguments)  # before the call, which otherwise might have an effect and no answer
        try:
            value = self._offered.registry().call(name, arguments)
            if (size := _size(value)) > MAX_REPLY_BYTES:  # the program would not get it: it is not recorded
                raise ToolError(f"{name} gave {size} bytes; at most {MAX_REPLY_BYTES} are accepted")
            self.spend(name, value)
        except ToolError as error:
            calls.append(Call(name, arguments, error=str(error)))
            raise
        calls.append(Call(name, arguments, value))
        return value

    def spend(self, name: str, value: Any) -> None:
        """Subtract the bytes of arguments or a result; raise ``ToolError`` if too few are left."""
        size = _OVERHEAD_BYTES + _size(value)
        with self._lock:
            if size <= self._journal.bytes_left:
                self._journal.bytes_left -= size
                return
            self._journal.bytes_left = 0  # a replayed program is refused the same calls
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
    """Remove and return the first call with this name and these arguments."""
    found = next((one for one in calls if (one.name, one.arguments) == (name, arguments)), None)
    if found is not None:
        calls.remove(found)
    return found


def _size(value: Any) -> int:
    """Return the bytes of a value as JSON; 0 if it is none, and so will be refused."""
    try:
        return len(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return 0
