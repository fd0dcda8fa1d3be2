"""Tools of an agent at ``/mcp/SESSION``: act and observe. It can neither reset nor close its environment."""

from __future__ import annotations

import time
from typing import Any

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.protocols import AGENT
from envweave_gym.core.schema_of_space import Schema, schema_of_space
from envweave_gym.wire.messages import Began, Stepped
from envweave_gym.wire.spaces import space_from_data
from envweave_gym_server.core.errors import NoSession
from envweave_gym_server.protocols.json_calls import (
    EpisodeLost,
    action_from_json,
    is_game,
    is_live,
    last_reply,
    question,
    raise_own_fault,
    reply_in,
    step,
    step_dead_agents,
)
from envweave_gym_server.protocols.json_rpc import Json, Tool, ToolFailed
from envweave_gym_server.protocols.mcp.protocol_eras import Toolset
from envweave_gym_server.protocols.mcp.runner_tools import MadeSession, agents_of, made_by_tool
from envweave_gym_server.protocols.prompts import prompt_in
from envweave_gym_server.protocols.rest.json_values import plain
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session import Left, Session, Snapshot

LONGEST_WAIT_S = 60.0
"""Limit of the time for which ``observe`` waits for an agent's turn."""
_CHECK_S = 0.5
"""Time between two checks whether the client that waits is still connected."""
_ABOUT_OBSERVE = (
    "Return what you see now: the observation, whether you must act, and whether the episode is over for you. With "
    "wait it waits until you must act, at most that many seconds."
)
_ABOUT_ACT = (
    "Act once, when observe says that you must; returns what you see then. Send turn back from the observation you act "
    "upon, so that a late action is refused instead of done in a later turn."
)
_TURN: Schema = {"type": "integer", "description": "The turn of the observation that you act upon."}
_WAIT: Schema = {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_S}
_ENDED = "the session of your token has ended; there is nothing more to do in it"


class AgentTools:
    """The tools ``act`` and ``observe`` of one agent, for one request."""

    def __init__(
        self, service: SessionService, session_id: str, agent: str, nonce: str | None, left: Left
    ) -> None:
        """``nonce`` is that of the agent's token; ``None`` if the client is the operator."""
        self._service, self._id, self._agent, self._nonce, self._left = (
            service,
            session_id,
            agent,
            nonce,
            left,
        )

    def toolset(self) -> Toolset:
        """Return the tools; for a session that has ended their calls report that."""
        try:
            _, made = self._made()
            schema = self._action_schema(made)
        except (NoSession, ToolFailed):
            schema = {"type": "object"}
        observe = {"type": "object", "properties": {"wait": _WAIT}, "additionalProperties": False}
        tools = [
            Tool("act", _ABOUT_ACT, schema, self._act),
            Tool("observe", _ABOUT_OBSERVE, observe, self._observe),
        ]
        about = f"You are {self._agent!r} in an environment: observe, then act, until the episode is over."
        return Toolset(about, {tool.name: tool for tool in tools})

    def _made(self) -> tuple[Session, MadeSession]:
        """Return the session; raise ``ToolFailed`` if it has ended, also if a later one has its id."""
        try:
            session = self._service.sessions.get(self._id)
        except NoSession:
            raise ToolFailed(_ENDED) from None
        made = made_by_tool(session)
        if made is None or (self._nonce is not None and made.nonce != self._nonce):
            raise ToolFailed(_ENDED)
        if self._agent not in (known := agents_of(made)):
            raise ToolFailed(f"this game has the agents {', '.join(known)}; use the token of one of them")
        return session, made

    # Acting

    def _action_schema(self, made: MadeSession) -> Schema:
        """Return the schema of ``act``: the fields of a ``Dict`` are its arguments, another action is ``action``."""
        schema = schema_of_space(space_from_data(self._action_space(made)))
        if _fields_are_arguments(schema):
            return {**schema, "properties": {**schema["properties"], "turn": _TURN}}
        properties = {"action": schema, "turn": _TURN}
        return {
            "type": "object",
            "properties": properties,
            "required": ["action"],
            "additionalProperties": False,
        }

    def _action_space(self, made: MadeSession) -> Json:
        agents = made.description.get("agents")
        return made.description["action_space"] if agents is None else agents[self._agent]["action_space"]

    def _act(self, arguments: Json) -> Json:
        session, made = self._made()
        given = dict(arguments)
        turn = given.pop("turn", None)
        if turn is not None and type(turn) is not int:
            raise InvalidArgument(f"turn {shown(turn)} is no integer; give that of the observation")
        read = action_from_json(session, self._action_in(made, given), self._left)

        def read_in_turn() -> Any:
            self._check_turn(session, turn)
            return read()

        stepped = step(session, read_in_turn, self._left)
        if is_game(stepped.info):
            step_dead_agents(session, self._left, made.record_final)
        return self._view(session, made)

    def _action_in(self, made: MadeSession, given: Json) -> Any:
        if _fields_are_arguments(schema_of_space(space_from_data(self._action_space(made)))):
            return given
        if given.keys() != {"action"}:
            raise InvalidArgument(f"act takes action and turn, not {', '.join(sorted(given)) or 'nothing'}")
        return given["action"]

    def _check_turn(self, session: Session, turn: int | None) -> None:
        """Raise ``ToolFailed`` unless the agent must act, in this turn; called while the session is locked."""
        if turn is not None and turn != session.core.committed:
            raise ToolFailed(f"turn {turn} is over; observe, and act upon what you see then")
        last = last_reply(session)
        if last is None or not is_live(last):
            raise ToolFailed("no episode is running; wait until the runner resets the environment")
        if not _must_act(last, self._agent):
            raise ToolFailed("it is another agent's turn; observe with wait until it is yours")

    # Observing

    def _observe(self, arguments: Json) -> Json:
        unknown, wait = arguments.keys() - {"wait"}, arguments.get("wait", 0)
        if (
            unknown
            or isinstance(wait, bool)
            or not isinstance(wait, int | float)
            or not 0 <= wait <= LONGEST_WAIT_S
        ):
            raise InvalidArgument(f"observe takes wait, a number of seconds from 0 to {LONGEST_WAIT_S:g}")
        session, made = self._made()
        session.attach(self._left)  # its lease does not run meanwhile
        try:
            if not wait:
                return self._view(session, made)
            with self._service.listeners.one():
                return self._view_in_time(session, made, time.monotonic() + wait)
        finally:
            session.detach(self._left)

    def _view_in_time(self, session: Session, made: MadeSession, until: float) -> Json:
        """Return the view in which the agent must act, or the last one before a time of ``time.monotonic()``."""
        with session.replies.listener() as more:
            while True:
                more.clear()
                view = self._view(session, made)
                seconds = until - time.monotonic()
                if view["must_act"] or seconds <= 0 or self._left() or session.core.closed:
                    return view
                more.wait(min(seconds, _CHECK_S))

    def _view(self, session: Session, made: MadeSession) -> Json:
        """Return what the agent sees; all of it belongs to the same turn."""
        while True:
            snapshot = session.snapshot
            view = {"turn": snapshot.call, "agent": self._agent, **self._seen(session, made, snapshot)}
            if session.snapshot is snapshot:  # else an observation that was asked for may be a later one
                return view

    def _seen(self, session: Session, made: MadeSession, snapshot: Snapshot) -> Json:
        last = reply_in(snapshot)
        if last is None:
            return {"observation": None, "must_act": False, "done": snapshot.call > 0}
        try:
            raise_own_fault(last)
        except EpisodeLost as error:
            return {"observation": None, "must_act": False, "done": True, "fault": str(error)}
        info: Any = last.info
        view: Json = {
            "observation": self._observation(session, last),
            "prompt": prompt_in(self._own_info(info).get("stream")),
            "must_act": _must_act(last, self._agent),
            "done": _is_dead_or_removed(last, self._agent) if is_game(info) else not is_live(last),
        }
        if made.shows_rewards and isinstance(last, Stepped):
            view["reward"] = self._reward(made, last)
        return view

    def _own_info(self, info: Json) -> Json:
        """Return the info of the agent, which is empty once it is out of its game."""
        return info["infos"].get(self._agent) or {} if is_game(info) else info

    def _reward(self, made: MadeSession, last: Stepped) -> Any:
        """Return what the agent has earned since it acted last."""
        info: Any = last.info
        if not is_game(info):
            return plain(last.reward)
        final = made.final_rewards.get(self._agent, 0.0)
        return plain(info["earned"].get(self._agent, final))

    def _observation(self, session: Session, last: Began | Stepped) -> Any:
        info: Any = last.info
        if not is_game(info):
            return plain(last.observation)
        if self._agent not in info["agents"]:
            return None
        if info.get("selection") == self._agent:
            return plain(last.observation)
        return plain(question(session, self._left, "observe", self._agent))


def _fields_are_arguments(schema: Schema) -> bool:
    return schema.get("type") == "object" and "turn" not in schema.get("properties", {"turn": {}})


def _must_act(last: Began | Stepped, agent: str) -> bool:
    info: Any = last.info
    if is_game(info):
        return info.get("selection") == agent and not _is_dead_or_removed(last, agent)
    return agent == AGENT and is_live(last)


def _is_dead_or_removed(last: Began | Stepped, agent: str) -> bool:
    """Return whether a game is over for an agent: it is dead, or was removed by its last step."""
    info: Any = last.info
    if agent not in info["agents"]:
        return True
    return isinstance(last, Stepped) and bool(last.terminated[agent] or last.truncated[agent])
