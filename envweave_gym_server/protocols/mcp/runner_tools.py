"""Tools of a runner at ``/mcp``: make, reset, step and close environments."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.protocols import AGENT
from envweave_gym.core.schema_of_space import Schema
from envweave_gym.wire.messages import Began, Stepped
from envweave_gym_server.protocols.json_calls import (
    action_from_json,
    dead_selection,
    description_of,
    is_game,
    last_reply,
    open_session,
    raise_own_fault,
    reset,
    step,
    step_dead_agents,
)
from envweave_gym_server.protocols.json_rpc import Json, Tool, ToolFailed
from envweave_gym_server.protocols.mcp.agent_tokens import AgentTokens, new_nonce
from envweave_gym_server.protocols.mcp.protocol_eras import Toolset
from envweave_gym_server.protocols.rest.json_values import plain
from envweave_gym_server.protocols.rest.replies import played
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session import Left, Session

_NOTE = "mcp"
"""Key in ``Session.notes`` of the :class:`MadeSession`."""
_MOST_IDS_LISTED = 64

_INSTRUCTIONS = (
    "Environments of envweave-gym for a runner: make one, reset it, and give each agent the URL and the token of its "
    "own that make returns; or step it yourself. Sessions that nobody uses end by themselves."
)


@dataclass(frozen=True)
class MadeSession:
    """Facts about a session that the tool ``make`` has created."""

    nonce: str
    """Random number in the tokens of its agents."""
    shows_rewards: bool
    description: Json
    final_rewards: dict[str, Any] = field(default_factory=dict[str, Any])
    """What each agent of a game earned last, once it is out of the episode and the game no longer knows it."""

    def record_final(self, agent: str, last: Stepped) -> None:
        """Store the reward of an agent that leaves the game with its next step."""
        info: Any = last.info
        self.final_rewards[agent] = plain(info["earned"].get(agent, 0.0))


class RunnerTools:
    """The tools ``make``, ``reset``, ``step`` and ``close`` for one request."""

    def __init__(
        self, service: SessionService, tokens: AgentTokens, url_of: Callable[[str], str], left: Left
    ) -> None:
        """``url_of`` returns the URL of a session's agents."""
        self._service, self._tokens, self._url_of, self._left = service, tokens, url_of, left

    def toolset(self) -> Toolset:
        """Return the tools."""
        session: Schema = {"type": "string", "description": "The session that make returned."}
        tools = [
            Tool("make", self._about_make(), self._make_schema(), self._make),
            Tool(
                "reset", "Begin an episode.", _object(_RESET | {"session": session}, ["session"]), self._reset
            ),
            Tool("step", _ABOUT_STEP, _object({"session": session, "action": {}}), self._step),
            Tool("close", "Close a session.", _object({"session": session}), self._close),
        ]
        return Toolset(_INSTRUCTIONS, {tool.name: tool for tool in tools})

    def _about_make(self) -> str:
        ids = list(self._service.offers)[:_MOST_IDS_LISTED]
        return f"Make an environment; returns a session, and a URL and a token for each agent. IDs: {', '.join(ids)}."

    def _make_schema(self) -> Schema:
        ids = list(self._service.offers)
        env_id: Schema = {"type": "string"} if len(ids) > _MOST_IDS_LISTED else {"enum": ids}
        members: dict[str, Schema] = {
            "id": env_id,
            "kwargs": {"type": "object", "description": "Arguments of the environment."},
            "rewards": {
                "type": "boolean",
                "description": "Whether agents see their rewards; true by default.",
            },
        }
        return _object(members, [] if self._default_id() else ["id"])

    def _default_id(self) -> str:
        offers = self._service.offers
        return self._service.settings.default or (next(iter(offers)) if len(offers) == 1 else "")

    def _make(self, arguments: Json) -> Json:
        _check_names(arguments, ("id", "kwargs", "rewards"))
        env_id, rewards = arguments.get("id") or self._default_id(), arguments.get("rewards", True)
        kwargs = arguments.get("kwargs") or {}
        if not isinstance(kwargs, dict) or not isinstance(rewards, bool):
            raise InvalidArgument("make takes kwargs, an object, and rewards, true or false")
        server, left = self._service, self._left
        session = open_session(server, uuid.uuid4().hex, env_id, kwargs, left, turn_based=True)
        try:
            made = MadeSession(new_nonce(), rewards, description_of(session, left))
            session.notes[_NOTE] = made
            agents = {agent: self._access(session, made, agent) for agent in agents_of(made)}
        except BaseException:
            server.sessions.close(session.id)  # nobody knows its id
            raise
        return {"session": session.id, "id": session.env_id, "api": session.api, "agents": agents}

    def _access(self, session: Session, made: MadeSession, agent: str) -> Json:
        return {"url": self._url_of(session.id), "token": self._tokens.issue(session.id, made.nonce, agent)}

    def _reset(self, arguments: Json) -> Json:
        _check_names(arguments, ("session", "seed", "options"))
        session, made = self._session(arguments)
        began = reset(session, arguments.get("seed"), arguments.get("options"), self._left)
        made.final_rewards.clear()
        return result_of(began)

    def _step(self, arguments: Json) -> Json:
        _check_names(arguments, ("session", "action"))
        session, made = self._session(arguments)
        if "action" not in arguments:
            raise InvalidArgument("step takes an action; give it in the form of the action space")
        last = last_reply(session)
        if isinstance(last, Stepped) and (dead := dead_selection(last)) is not None:
            made.record_final(dead, last)
        stepped = step(session, action_from_json(session, arguments["action"], self._left), self._left)
        if not is_game(stepped.info):
            return result_of(stepped)
        after = step_dead_agents(session, self._left, made.record_final)
        return result_of(stepped) if after is None else _with_dead_agents(stepped, after)

    def _close(self, arguments: Json) -> Json:
        _check_names(arguments, ("session",))
        session, _ = self._session(arguments)
        self._service.sessions.close(session.id)
        return {"closed": session.id}

    def _session(self, arguments: Json) -> tuple[Session, MadeSession]:
        given = arguments.get("session")
        if not isinstance(given, str):
            raise InvalidArgument(f"session {shown(given)} is no text; give the session that make returned")
        session = self._service.sessions.get(given)
        made = made_by_tool(session)
        if made is None:
            raise ToolFailed(f"session {given} was not created by make, but by another client")
        return session, made


_ABOUT_STEP = "Step with the action of the only agent, or of the agent whose turn it is."
_RESET: dict[str, Schema] = {
    "seed": {"type": ["integer", "null"], "minimum": 0},
    "options": {"type": ["object", "null"], "description": "Reset options of the environment."},
}


def _object(members: dict[str, Schema], required: list[str] | None = None) -> Schema:
    needed = list(members) if required is None else required
    return {"type": "object", "properties": members, "required": needed, "additionalProperties": False}


def _check_names(arguments: Json, known: tuple[str, ...]) -> None:
    if unknown := sorted(arguments.keys() - set(known)):
        raise InvalidArgument(f"there is no argument {shown(unknown[0])}; there are {', '.join(known)}")


def made_by_tool(session: Session) -> MadeSession | None:
    """Return the facts about a session that ``make`` has created; ``None`` for any other session."""
    return session.notes.get(_NOTE)


def agents_of(made: MadeSession) -> list[str]:
    """Return the names of the agents: all that a game may have, or the only one of a Gymnasium environment."""
    agents: dict[str, Any] | None = made.description.get("agents")
    return [AGENT] if agents is None else list(agents)


def result_of(reply: Began | Stepped) -> Json:
    """Return a reply as JSON, in the fields of the JSON API; raise ``EpisodeLost`` if it has a fault."""
    raise_own_fault(reply)
    return msgspec.to_builtins(played(reply, "lists"))


def _with_dead_agents(stepped: Stepped, after: Stepped) -> Json:
    """Return the JSON of ``after``, which the dead agents have left, with what ``stepped`` says of them."""
    before, result = result_of(stepped), result_of(after)
    about_dead = {name: {**before[name], **result[name]} for name in ("info", "earned")}
    return {**result, **about_dead, **{name: before[name] for name in ("reward", "terminated", "truncated")}}
