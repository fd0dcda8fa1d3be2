"""Sessions as OpenEnv's clients play them: resets, steps and states with JSON in and out."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.wire.messages import Began, Stepped
from envweave_gym_server.core.errors import ClientLeft, NoSession
from envweave_gym_server.protocols.json_calls import (
    ActionReader,
    begin,
    description_of,
    is_game,
    is_live,
    open_session,
    question,
    raise_own_fault,
    reset,
    step,
    step_dead_agents,
)
from envweave_gym_server.protocols.json_rpc import Json
from envweave_gym_server.protocols.openenv.families import Family, Played, text_option
from envweave_gym_server.protocols.openenv.typed_families import family_of
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session import CLIENT_CHECK_S, Left, Session

_NOTE = "openenv"
"""Key in ``Session.notes`` of the :class:`PlayedSession` that plays it."""
_CREATOR = "openenv_first"
"""Key in ``Session.notes`` of an object that marks the call which created the session, and closes it if it fails."""
_PREFIX = "openenv."
"""Prefix of the ids of these sessions in the table of sessions, so that no other protocol's session is played here."""


class PlayedSession:
    """Adapter of a :class:`Session` to OpenEnv: reset, step and state with JSON in and out."""

    def __init__(self, session: Session, family: Family) -> None:
        self.session, self.family = session, family
        self.attachment = threading.Lock()
        """Lock of the one WebSocket that may play the session."""
        self._repeating = threading.Lock()
        self._request: tuple[str, Json, Json] | None = None
        """The ``request_id``, the data and the result of the last step that had an id."""
        self._episode_id: str | None = None
        self._options: Json = {}
        self._last: Played | None = None

    def reset(self, data: Json, left: Left) -> Json:
        """Begin an episode; ``data`` have ``seed``, ``episode_id`` and the reset options."""
        given = dict(data)
        episode_id, seed = text_option(given, "episode_id"), _seed(given.pop("seed", None))
        options = self.family.options(given)
        secrets = self.family.secrets(options)
        started = time.monotonic()
        began = reset(self.session, seed, options or None, left)
        return self._begun(began, episode_id, options, secrets, time.monotonic() - started, left)

    def begin(self, left: Left) -> None:
        """Begin the first episode of a session that was never reset; later episodes need a reset."""
        if self.session.core.committed:
            return
        started = time.monotonic()
        began = begin(self.session, left)
        if began is not None:
            self._begun(began, None, {}, {}, time.monotonic() - started, left)

    def _begun(
        self, began: Began, episode_id: str | None, options: Json, secrets: Json, seconds: float, left: Left
    ) -> Json:
        if secrets:
            question(self.session, left, "entrust", secrets)
        self._episode_id, self._options = episode_id or uuid.uuid4().hex, options
        self._request = None  # its id may be that of a step of this episode
        return self._result(began, 0, seconds, None)

    def step(self, data: Json, left: Left) -> Json:
        """Take one step with the action in ``data``."""
        return self.step_with(self.family.action(self.session, data, left), left)

    def step_once(self, request_id: str, data: Json, take: Callable[[], Json], left: Left) -> Json:
        """Take a step with the action in ``data`` unless the last one had this id; then return its result again."""
        while not self._repeating.acquire(timeout=CLIENT_CHECK_S):
            if left():
                raise ClientLeft(f"the client that waited for session {self.session.id} has left")
        try:
            if self._request is None or self._request[0] != request_id:
                self._request = request_id, data, take()
            elif self._request[1] != data:
                raise InvalidArgument(
                    f"request_id {shown(request_id)} was that of another action; choose a new one for each step"
                )
            return self._request[2]
        finally:
            self._repeating.release()

    def step_with(self, action: ActionReader, left: Left) -> Json:
        """Take one step with an action; in a turn-based game also those of dead agents after it.

        A session that was never reset begins its first episode, as clients of OpenEnv expect that leave the reset out.
        """
        self.begin(left)
        started = time.monotonic()
        stepped = step(self.session, action, left)
        rewards = stepped.reward if isinstance(stepped.reward, dict) else None
        after = step_dead_agents(self.session, left) if is_game(stepped.info) else None
        count = 1 if self._last is None else self._last.count + 1
        return self._result(after or stepped, count, time.monotonic() - started, rewards)

    def _result(self, reply: Began | Stepped, count: int, seconds: float, rewards: Json | None) -> Json:
        raise_own_fault(reply)
        self._last = played = Played(reply, count, seconds, self._options, rewards)
        metadata = self.family.metadata(played)
        done = not is_live(reply)
        if isinstance(reply, Stepped) and done and not is_game(reply.info):
            metadata |= {"terminated": bool(reply.terminated), "truncated": bool(reply.truncated)}
        observation = {**self.family.observation(played), "metadata": metadata}
        return {"observation": observation, "reward": self._reward(reply), "done": done, "metadata": metadata}

    def _reward(self, reply: Began | Stepped) -> float | None:
        """Return the reward; ``None`` in games, where each agent has its own."""
        if isinstance(reply, Began):
            return self.family.reset_reward
        return None if is_game(reply.info) else float(reply.reward)

    def state(self, left: Left) -> Json:
        """Return the state of the episode."""
        known: Any = question(self.session, left, "state")
        state = {key: value for key, value in known.items() if key != "episode"}
        # AgileRL's trainer lists tools if a state has none, and then sends calls of tools instead of text.
        return {"episode_id": self._episode_id, "tools": [], **self.family.state(state, self._last)}


def open_played(service: SessionService, name: str, session_id: str | None, left: Left) -> PlayedSession:
    """Create a session of an ID; ``session_id`` is the client's name for it, by default a random one."""
    offer = service.offers.find(name)
    kind = family_of(offer.target)
    chosen = _PREFIX + (session_id or uuid.uuid4().hex)
    session = open_session(service, chosen, offer.name, kind.kwargs, left)
    mine = object()
    is_first = session.notes.setdefault(_CREATOR, mine) is mine  # others may ask for the same session at once
    try:
        if _NOTE not in session.notes:
            session.notes.setdefault(_NOTE, PlayedSession(session, kind(description_of(session, left))))
    except BaseException:
        if is_first and _NOTE not in session.notes:
            close_played(service, session)
        raise
    played: PlayedSession = session.notes[_NOTE]
    return played


def find_played(service: SessionService, name: str, session_id: str) -> PlayedSession:
    """Return the session with the client's name for it; raise ``NoSession`` if this ID has none."""
    session = service.sessions.get(_PREFIX + session_id)
    played = session.notes.get(_NOTE)
    if played is None or session.env_id != service.offers.find(name).name:
        raise NoSession(f"Unknown session_id: {shown(session_id)}")
    return played


def name_of(played: PlayedSession) -> str:
    """Return the client's name for a session."""
    return played.session.id.removeprefix(_PREFIX)


def close_played(service: SessionService, session: Session) -> None:
    """Close a session; nothing happens if it was closed already, or its server stops."""
    try:
        service.sessions.close(session.id)
    except Exception:  # noqa: BLE001 - another thread was faster, or closes all of them
        return


def _seed(value: Any) -> int | None:
    if value is None or (type(value) is int and value >= 0):
        return value
    raise InvalidArgument(f"seed={shown(value)} is no seed; give an integer from 0 on, or none")
