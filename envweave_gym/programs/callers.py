"""Tells the agents of a program apart by their requests: headers, model, and which conversation a request goes on with.

No I/O and no state but the last request of each caller, so recorded traffic can be sorted as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from envweave_gym.episode.message import Message
from envweave_gym.programs.model_request import ModelRequest

SESSION_HEADERS = (
    "thread-id",
    "x-session-id",
    "x-claude-code-session-id",
    "x-litellm-session-id",
    "session_id",
)
"""Headers that name one of a program's agents; the first of them that is there counts."""
PARENT_HEADERS = ("x-codex-parent-thread-id", "x-parent-session-id")
NameOf = Callable[[ModelRequest], str | None]
"""A user's function that names the caller of a request, or returns ``None`` to let the rules find it."""


class Caller(msgspec.Struct, frozen=True):
    """One agent of a program."""

    index: int
    """Its place in the order of first requests; the IDs that programs send are random."""
    last: ModelRequest
    """Its last request."""
    is_waiting: bool = True
    """Whether that has no answer yet."""
    name: str | None = None
    """The name that the user's function gave."""
    parent: int | None = None
    """The index of the agent that has started it, where headers say so."""


def session_of(request: ModelRequest) -> str:
    """Return the name that the program's headers give to the agent that asks; empty if they name none."""
    return _first(request.headers, SESSION_HEADERS)


def find_caller(request: ModelRequest, known: Sequence[Caller], *, by_system: bool = True) -> Caller | None:
    """Return the caller of a request among those that are ``known``; ``None`` for a new one.

    Candidates are idle callers of the session that the headers name, or where they name none, of the same model and
    prefix. The rules, in this order: the candidate whose last chat the request's chat begins with, the longest first;
    with ``by_system`` one with the same system message and tools, as some programs rewrite their history; of a session
    any. Another call at the same time, such as one for a title, is a caller of its own.
    """
    session = session_of(request)
    rivals = [one for one in known if not one.is_waiting and session_of(one.last) == session]
    if not session:
        rivals = [one for one in rivals if _address(one.last) == _address(request)]
    longer = [one for one in rivals if _goes_on(request.messages, one.last.messages)]
    if longer:
        return max(longer, key=lambda one: (len(one.last.messages), -one.index))
    if not by_system:
        return None
    alike = [one for one in rivals if _setting(one.last) == _setting(request)]
    return next(iter(alike or (rivals if session else [])), None)


def by_model(request: ModelRequest) -> str:
    """Name callers by their models: for programs whose agents have one each."""
    return request.model


def by_prefix(request: ModelRequest) -> str:
    """Name callers by the first part of the path: for programs that are given a base URL for each agent."""
    return request.prefix


class Callers:
    """The callers of one episode."""

    def __init__(self, name_of: NameOf | None = None, *, by_system: bool = True) -> None:
        """``by_system=False`` takes a rewritten history for a new caller."""
        self._name_of, self._by_system = name_of, by_system
        self.known: list[Caller] = []

    def assign(self, requests: Iterable[ModelRequest]) -> list[tuple[Caller, ModelRequest]]:
        """Return the callers of requests that wait at the same time, in an order that arrival does not change."""
        rest = sorted(requests, key=lambda one: (*_address(one), one.digest))
        assigned = list[tuple[Caller, ModelRequest]]()
        # Conversations that go on come first, or one that was rewritten could take the caller of another.
        for by_system in (False, True):
            left = list[ModelRequest]()
            for request in rest:
                caller = self._find(request, by_system)
                if caller is None:
                    left.append(request)
                else:
                    assigned.append((self._waits(caller, request), request))
            rest = left
        for request in rest:  # two calls of one named caller are one caller's
            caller = self._find(request, by_system=False) if self._name_of is not None else None
            caller = self._new(request) if caller is None else self._waits(caller, request)
            assigned.append((caller, request))
        return in_order(assigned)

    def answered(self, caller: Caller) -> None:
        """Note that the caller's request has its answer."""
        self._set(caller.index, is_waiting=False)

    def _find(self, request: ModelRequest, by_system: bool) -> Caller | None:
        name = None if self._name_of is None else self._name_of(request)
        if name is not None:
            return next((one for one in self.known if one.name == name), None)
        unnamed = [one for one in self.known if one.name is None]
        # The headers' word counts in any case.
        by_system = by_system and (self._by_system or bool(session_of(request)))
        return find_caller(request, unnamed, by_system=by_system)

    def _waits(self, caller: Caller, request: ModelRequest) -> Caller:
        return self._set(caller.index, last=request, is_waiting=True)

    def _set(self, index: int, **changes: Any) -> Caller:
        self.known[index] = msgspec.structs.replace(self.known[index], **changes)
        return self.known[index]

    def _new(self, request: ModelRequest) -> Caller:
        name = None if self._name_of is None else self._name_of(request)
        parent = _first(request.headers, PARENT_HEADERS)
        parents = [one.index for one in self.known if parent and session_of(one.last) == parent]
        caller = Caller(len(self.known), request, True, name, parents[0] if parents else None)
        self.known.append(caller)
        return caller


def in_order(calls: Iterable[tuple[Caller, ModelRequest]]) -> list[tuple[Caller, ModelRequest]]:
    """Return simultaneous requests by caller and digest: threads call in another order each time."""
    return sorted(calls, key=lambda pair: (pair[0].index, pair[1].digest))


def _first(headers: dict[str, str], names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if name in headers), "")


def _address(request: ModelRequest) -> tuple[str, str]:
    return request.model, request.prefix


def _goes_on(messages: tuple[Message, ...], before: tuple[Message, ...]) -> bool:
    return len(messages) > len(before) > 0 and messages[: len(before)] == before


def _setting(request: ModelRequest) -> tuple[Any, Any]:
    system = [one.content for one in request.messages[:1] if one.role in ("system", "developer")]
    return system, request.tools
