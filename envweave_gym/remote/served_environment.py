"""Client side of one environment, vector or game on a server: description, session and faults."""

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
from envweave_gym.remote import started_servers
from envweave_gym.remote.address import Address
from envweave_gym.remote.descriptions import create_message, describe, remote_name
from envweave_gym.remote.session import RemoteSession
from envweave_gym.wire.foreign_spaces import opaque, rebuilt
from envweave_gym.wire.messages import Step
from envweave_gym.wire.spaces import Path, base_of, space_from_data

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
CALL_DEADLINE = 60.0
"""Default of ``call_deadline``: seconds to wait for a reply."""

LOSSES = (SessionLost, AtCapacity, ConnectionError, TimeoutError)
"""Exceptions of a call that did not reach its environment, or that got no reply."""

FAULTS = (*LOSSES, EnvironmentCrashed)
"""Exceptions that end an episode as a fault: losses, and crashes of the environment."""


class ServedEnvironment:
    """Address, description and session of an environment, vector or game on a server.

    - The first access to :attr:`description` sends the first request; the first call opens a session.
    - ``reset`` and ``step`` return the server's reply, or the :class:`Fault` that ended the episode. With
      ``on_fault="raise"`` they raise the exception instead.
    - A lost session is abandoned, and so is one whose environment has crashed. The next reset opens another
      one, as does a reset after :meth:`close`. A question never does: a new environment could not answer it.
    """

    _session_type = RemoteSession

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
        started_servers.join(self.address.url, self)
        self._described: dict[str, Any] | None = None
        self.current: RemoteSession | None = None
        """The session, or ``None``."""
        self._crashed = self._closed = False
        self.gone = False
        """Whether the last session was lost or closed and no other was opened."""
        self._cut_short = ""
        """Name of the exception that interrupted the last step; empty if none did."""
        self._picture: Any = None
        self.reproducible = False
        """Whether every reset sends a seed, although the environment could continue its random generator."""
        self.is_drawn = False
        """Whether the next reset's seed was drawn by the client, not given by the caller."""
        self.sent_seed: Any = None
        """The seed that was sent with the last reset, or ``None``."""

    @property
    def is_described(self) -> bool:
        """Whether the description is known, so that :attr:`description` sends no request."""
        return self._described is not None

    @property
    def description(self) -> dict[str, Any]:
        """The server's description of the environment."""
        if self._described is None:
            self._described = describe(self.address, self._create, self._call_deadline)
        return self._described

    def reset(self, seed: Any, options: dict[str, Any] | None, *, started: float | None = None) -> Any:
        """Start an episode in the current session or a new one; return the reply or the fault.

        Failed resets are retried until ``reset_deadline`` seconds after ``started``, by default now. A reset
        that is running on a server may take ``call_deadline`` seconds.
        """
        deadline = (time.monotonic() if started is None else started) + self._reset_deadline
        pause_s = _FIRST_PAUSE_S
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            try:
                session = self.fresh_session()
                self.sent_seed = None if session.begun and self.goes_on else seed
                return session.reset(self.sent_seed, options, give_up_s=left_s)
            except FAULTS as error:
                self._abandon(error)
                is_last = (self._crashed and not self.truncates) or self.address.is_stopped()
                if is_last or time.monotonic() + pause_s > deadline:
                    return self._give_up(error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @property
    def goes_on(self) -> bool:
        """Whether the next reset may be sent without a seed, so that the environment continues its random generator.

        It may if the caller gave no seed, ``reproducible`` is off, and the server's environment supports it. The
        first reset of a session always sends a seed, because the generator of a new environment has no state yet.
        """
        return self.is_drawn and not self.reproducible and self.description.get("goes_on", False)

    def _give_up(self, error: Exception) -> Fault:
        fault = self._fault_of(error)
        self._close_session()
        return fault

    def step(self, action: Any) -> Any:
        """Send a step with a packed ``action``; return the reply or the fault."""
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
        """Record that ``error`` interrupted a step, so it is unknown whether the server executed the step."""
        self._cut_short = type(error).__name__

    def check_whole(self) -> None:
        """Raise ``ResetNeeded`` if the last step was interrupted."""
        if self._cut_short:
            raise ResetNeeded(f"{self.name}: {self._cut_short} stopped the last call halfway; call reset()")

    def ask(self, question: str, argument: Any = None) -> Any:
        """Send a question about the environment, and return the answer.

        A question changes no state, such as ``"render"``. Raise ``ResetNeeded`` or ``SessionLost`` if there is
        no session.
        """
        if self._closed:
            raise ResetNeeded(f"{self.name}: {question} was asked for after close(); call reset()")
        if self.gone:
            raise SessionLost(f"{self.name}: the session of this episode is gone; call reset()")
        return self.session().ask(question, argument)

    def recall(self, question: str, known: Any) -> Any:
        """Send a question about the episode; if the episode is lost, return ``known`` instead.

        The question may be the first call that notices the loss; the next step reports it.
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

        For a lost episode it never raises, because wrappers render within the step that reports the loss.
        """
        if not (lost or self._crashed):
            self._picture = self.recall("render", self._picture)
        return self._picture

    def lost(self, error: Exception) -> Fault:
        """Abandon the session that ``error`` ended, and return the fault; with ``on_fault="raise"`` raise ``error``."""
        self._abandon(error)
        return self._fault_of(error)

    def _abandon(self, error: Exception) -> None:
        """Give up the session that ``error`` ended, unless only its environment crashed.

        The session of a crashed environment still answers questions, such as ``render``, until the next reset.
        """
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
        """Close the session; a private server ends with its last user."""
        self._close_session()
        self._closed = True
        started_servers.leave(self.address.url, self)

    def _close_session(self) -> None:
        """Close the session and forget the last failure."""
        # first of all: a session whose close is interrupted is not played any more
        current, self.current = self.current, None
        self._crashed, self.gone, self._cut_short = False, True, ""
        if current is not None:
            current.close()

    def fresh_session(self) -> RemoteSession:
        """Return the session for a reset: a new one if the environment crashed or a step was interrupted."""
        if self._crashed or self._cut_short:
            self._close_session()
        return self.session()

    def session(self) -> RemoteSession:
        """Return the current session, or a new one; the server learns of it with its first call."""
        if self.current is None:
            started_servers.join(self.address.url, self)
            self.current = self._session_type(self.address, self._create, self._call_deadline)
            self._closed = self.gone = False
        return self.current


class Spaces:
    """The spaces in a description, each built on first access and cached."""

    def __init__(self, served: ServedEnvironment) -> None:
        self._served = served
        self._built: dict[tuple[str | None, str], Any] = {}

    def of(self, described: dict[str, Any], which: str, agent: str | None = None) -> Any:
        """Return the space ``which``; ``described`` is the server's description of the environment or of ``agent``."""
        known = self._built.get((agent, which))
        if known is None:
            known = self._built[agent, which] = space_of(self._served, described, which, agent)
        return known


def space_of(
    served: ServedEnvironment, described: dict[str, Any], which: str, agent: str | None = None
) -> Space[Any]:
    """Build the space ``which`` (such as ``"action_space"``) from the server's description of an environment or agent.

    A space of a class unknown to Gymnasium is rebuilt only if this process has started the server, and so trusts it to
    choose imports. Otherwise, or if the class is not installed here, the space asks the server.
    """

    def unknown(data: dict[str, Any], path: Path) -> Space[Any]:
        def ask(question: str, argument: Any) -> Any:
            return served.ask("space", [which, agent, list(path), question, argument])

        def from_data(part: dict[str, Any]) -> Space[Any]:
            return space_from_data(part, unknown, path)

        made = rebuilt(data, from_data) if started_servers.is_trusted(served.address.url) else None
        return opaque(data, base_of(data, unknown, path), ask) if made is None else made

    return space_from_data(described[which], unknown)
