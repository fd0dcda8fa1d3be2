"""The client's side of an environment on a server: its description, its session, and faults."""

from __future__ import annotations

import time
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.arguments import check_deadline, check_faults
from envweave_gym.core.faults import (
    HARMLESS,
    AtCapacity,
    EnvironmentCrashed,
    Fault,
    FaultKind,
    ResetNeeded,
    SessionLost,
    fault_of,
)
from envweave_gym.remote import upkeep
from envweave_gym.remote.address import Address
from envweave_gym.remote.descriptions import create_message, describe, remote_name
from envweave_gym.remote.session import RemoteSession
from envweave_gym.wire.foreign_spaces import opaque, rebuilt
from envweave_gym.wire.messages import Step
from envweave_gym.wire.spaces import Path, base_of, space_from_data

CALL_DEADLINE = 60.0
"""Default of ``call_deadline``: seconds to wait for a reply."""

LOSSES = (SessionLost, AtCapacity, ConnectionError, TimeoutError)
"""Exceptions of a call that did not reach its environment, or got no reply."""

FAULTS = (*LOSSES, EnvironmentCrashed)
"""Exceptions that end an episode as a fault."""


class ServedEnvironment:
    """Holds the address, the description and the session of a remote environment, vector or game.

    - The first access to :attr:`description` sends the first request; the first call opens a session.
    - ``reset`` and ``step`` return the server's reply, or the :class:`Fault` that ended the episode. With
      ``on_fault="raise"`` they raise the exception instead.
    - A session that is lost, or whose environment has crashed, is left. The next reset opens another session,
      as does a reset after :meth:`close`. A question opens none: another environment would answer it.
    """

    def __init__(
        self,
        env_id: str,
        url: str,
        *,
        api: str,
        token: str | None,
        on_fault: str,
        reset_deadline: float,
        call_deadline: float,
        kwargs: dict[str, Any],
    ) -> None:
        self.name = remote_name(env_id, url)
        check_faults(self.name, on_fault, reset_deadline)
        check_deadline(self.name, "call_deadline", call_deadline)
        self.address = Address.of(self.name, url, token)
        self.truncates = on_fault == "truncate"
        self._reset_deadline, self._call_deadline = reset_deadline, call_deadline
        self._create = create_message(self.name, env_id, api, kwargs)
        upkeep.join(self.address.url, self)
        self._described: dict[str, Any] | None = None
        self.current: RemoteSession | None = None
        """The session, if there is one."""
        self._crashed = self._closed = False
        self.gone = False
        """Whether the last session is lost or closed, and no new one was begun."""
        self._cut_short = ""
        """The name of the exception that stopped the last step halfway; empty if none did."""
        self._picture: Any = None
        self.reproducible = False
        """Whether every reset carries a seed, though the environment could go on without one."""
        self.is_drawn = False
        """Whether the seed of the next reset was drawn here, not given by the caller."""
        self.sent_seed: Any = None
        """The seed that the last reset carried."""

    @property
    def is_described(self) -> bool:
        """Whether the description was fetched, so that :attr:`description` sends no request."""
        return self._described is not None

    @property
    def description(self) -> dict[str, Any]:
        """The server's description of the environment."""
        if self._described is None:
            self._described = describe(self.address, self._create, self._call_deadline)
        return self._described

    def reset(self, seed: Any, options: dict[str, Any] | None, *, started: float | None = None) -> Any:
        """Start an episode, in the current session or a new one.

        Failed resets are repeated until ``reset_deadline``, counted from ``started``. A reset that is under way
        on a server may take as long as ``call_deadline``.
        """
        deadline = (time.monotonic() if started is None else started) + self._reset_deadline
        pause = 0.02
        while True:
            hope = max(deadline - time.monotonic(), 0.0)
            try:
                session = self.fresh_session()
                self.sent_seed = None if session.begun and self.goes_on else seed
                return session.reset(self.sent_seed, options, give_up_s=hope)
            except FAULTS as error:
                self._part(error)
                hopeless = self._crashed and not self.truncates
                if hopeless or time.monotonic() + pause > deadline:
                    return self._give_up(error)
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    @property
    def goes_on(self) -> bool:
        """Whether resets carry no seed now, so that the environment's random generator continues.

        The first reset of a new session carries the seed drawn here all the same, as its generator has no state.
        """
        return self.is_drawn and not self.reproducible and self.description.get("goes_on", False)

    def _give_up(self, error: Exception) -> Fault:
        fault = self._fault_of(error)
        self._leave()
        return fault

    def step(self, action: Any) -> Any:
        """Send a step with an ``action`` that is packed already."""
        try:
            return self.session().call(Step(0, action))
        except FAULTS as error:
            return self.lost(error)
        except HARMLESS:
            raise
        except BaseException as error:
            self.stop(error)
            raise

    def stop(self, error: BaseException) -> None:
        """Record that ``error`` stopped a step halfway, because it is unknown whether the server did the step."""
        self._cut_short = type(error).__name__

    def check_whole(self) -> None:
        """Raise ``ResetNeeded`` if the last step was stopped halfway."""
        if self._cut_short:
            raise ResetNeeded(f"{self.name}: {self._cut_short} stopped the last call halfway; call reset()")

    def ask(self, question: str, argument: Any = None) -> Any:
        """Ask the server a question about the environment, and return the answer or raise any failure."""
        if self._closed:
            raise ResetNeeded(f"{self.name}: {question} was asked for after close(); call reset()")
        if self.gone:
            raise SessionLost(f"{self.name}: the session of this episode is gone; call reset()")
        return self.session().ask(question, argument)

    def recall(self, question: str, known: Any) -> Any:
        """Ask the server a question about the episode. If the episode is lost, return ``known`` instead.

        The question may be the first call to notice the loss; the next step reports it.
        """
        if self.gone and not self._closed:
            return known
        try:
            return self.ask(question)
        except FAULTS:
            if self.current is None or not self.current.begun:
                raise
            return known

    def picture(self, *, lost: bool = False) -> Any:
        """Return the rendering; for a ``lost`` episode the last one that was fetched, or ``None``.

        It does not raise then, because wrappers render within the step that reports the loss.
        """
        if not (lost or self._crashed):
            self._picture = self.recall("render", self._picture)
        return self._picture

    def lost(self, error: Exception) -> Fault:
        """Leave the session that ``error`` ended, and return the fault; ``on_fault="raise"`` raises ``error``."""
        self._part(error)
        return self._fault_of(error)

    def _part(self, error: Exception) -> None:
        """Leave the session, unless its environment crashed: a crashed one answers questions until the next reset."""
        self._crashed = isinstance(error, EnvironmentCrashed)
        if self.current is not None and not self._crashed:
            # A session that the server does not know needs no DELETE; any other would hold its slot for a lease.
            if isinstance(error, SessionLost):
                self.current.abandon()
            else:
                self.current.discard()
            self.current, self.gone = None, True

    def _fault_of(self, error: Exception) -> Fault:
        if not self.truncates:
            raise error
        crash = Fault(FaultKind.CRASH, str(error), retryable=True)
        return crash if self._crashed else fault_of(error)

    def close(self) -> None:
        """Close the session."""
        self._leave()
        self._closed = True
        upkeep.leave(self.address.url, self)

    def _leave(self) -> None:
        """Close the session and forget the last failure."""
        # first of all: a session whose close is interrupted is not played any more
        current, self.current = self.current, None
        self._crashed, self.gone, self._cut_short = False, True, ""
        if current is not None:
            current.close()

    def fresh_session(self) -> RemoteSession:
        """Return the session for a reset: a new session after a crash or after a step that was stopped halfway."""
        if self._crashed or self._cut_short:
            self._leave()
        return self.session()

    def session(self) -> RemoteSession:
        """Return the current session, or a new session, which its first call opens on the server."""
        if self.current is None:
            upkeep.join(self.address.url, self)
            self.current = RemoteSession(self.address, self._create, self._call_deadline)
            self._closed = self.gone = False
        return self.current


class Spaces:
    """The spaces in a description, each built on first access and cached."""

    def __init__(self, served: ServedEnvironment) -> None:
        self._served = served
        self._built: dict[tuple[str | None, str], Any] = {}

    def of(self, described: dict[str, Any], which: str, agent: str | None = None) -> Any:
        """Return a space; ``described`` is the server's description of the environment or of ``agent``."""
        known = self._built.get((agent, which))
        if known is None:
            known = self._built[agent, which] = space_of(self._served, described, which, agent)
        return known


def space_of(
    served: ServedEnvironment, described: dict[str, Any], which: str, agent: str | None = None
) -> Space[Any]:
    """Build a space of an environment from its server's description.

    A space of a foreign class is rebuilt only if this process has started the server itself, and so trusts it
    to choose what is imported. Otherwise, or if the class is not installed here, the server answers for it.
    """

    def unknown(data: dict[str, Any], path: Path) -> Space[Any]:
        def ask(question: str, argument: Any) -> Any:
            return served.ask("space", [which, agent, list(path), question, argument])

        def from_data(part: dict[str, Any]) -> Space[Any]:
            return space_from_data(part, unknown, path)

        made = rebuilt(data, from_data) if upkeep.is_trusted(served.address.url) else None
        return opaque(data, base_of(data, unknown, path), ask) if made is None else made

    return space_from_data(described[which], unknown)
