"""Forms of actions and observations in OpenEnv's messages; each family of environments has one.

Echo, coding and the REPL have the forms of OpenEnv's own environments (:mod:`typed_families`), so that their typed
clients work. All other IDs take ``{"action": …}`` in the form of their action space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.schema_of_space import Schema, object_schema, schema_of_space
from envweave_gym.wire.messages import Began, Stepped
from envweave_gym.wire.spaces import space_from_data
from envweave_gym_server.protocols.json_calls import ActionReader, action_from_json, action_from_text, is_game
from envweave_gym_server.protocols.json_rpc import Json
from envweave_gym_server.protocols.prompts import prompt_in
from envweave_gym_server.protocols.rest.json_values import plain
from envweave_gym_server.sessions.session import Left, Session

ANY_OBJECT: Schema = {"type": "object"}
_OURS = frozenset({"stream", "seq", "fault"})
"""Entries of an info that metadata leave out: numbers and events of our own protocol."""


class Played(msgspec.Struct, frozen=True):
    """One reset or step of an episode, as a family converts it."""

    reply: Began | Stepped
    count: int
    """Number of steps of the episode so far."""
    seconds: float
    """Duration of the call."""
    options: Json
    """Reset options of the episode."""
    rewards: Json | None = None
    """Rewards of a game's agents in this step."""


class Family:
    """Form of the IDs that have none of their own: the action under ``action``, the observation under ``observation``.

    A language model's reply may be sent as ``message`` instead, which AgileRL's trainer does; it becomes an action as
    :func:`envweave_gym.parse_action` makes it. ``prompt`` of an observation is the text that a model reads.
    """

    kwargs: Json = {}
    """Arguments with which environments of the family are made."""
    reset_reward: float | None = None

    def __init__(self, description: Mapping[str, Any]) -> None:
        """``description`` is that of the environment: API, spaces, metadata."""
        self._description = description
        metadata: dict[str, Any] = description.get("metadata") or {}
        self._options: tuple[str, ...] = tuple(metadata.get("reset_options") or ())

    # Schemas

    def action_schema(self) -> Schema:
        """Return the JSON schema of actions."""
        members = {
            "action": self._space("action_space"),
            "message": {"type": "string"},
            "metadata": ANY_OBJECT,
        }
        either = {"anyOf": [{"required": ["action"]}, {"required": ["message"]}]}
        return object_schema(members, []) | either

    def observation_schema(self) -> Schema:
        """Return the JSON schema of observations."""
        members: dict[str, Schema] = {
            "observation": self._space("observation_space"),
            "prompt": {"type": ["string", "null"]},
            "truncated": {"type": "boolean"},
            "metadata": ANY_OBJECT,
        }
        if "agents" not in self._description:
            return object_schema(members)
        names = {"type": "array", "items": {"type": "string"}}
        game = {"agent": {"type": ["string", "null"]}, "agents": names, "rewards": ANY_OBJECT}
        return object_schema({**members, **game})

    def state_schema(self) -> Schema:
        """Return the JSON schema of states, which may have further members."""
        members = {
            "episode_id": {"type": ["string", "null"]},
            "step_count": {"type": "integer", "minimum": 0},
        }
        return {"type": "object", "properties": members, "required": list(members)}

    def _space(self, which: str) -> Schema:
        """Return the schema of a space; in a game any value, as each agent has a space of its own."""
        data = self._description.get(which)
        return {} if data is None else schema_of_space(space_from_data(data))

    # Requests

    def options(self, data: Json) -> Json:
        """Return the reset options in the data of a reset; the environment refuses those that it does not take.

        AgileRL's trainer sends the number of a task as ``row_index``, and whether it evaluates.
        """
        options = {name: value for name, value in data.items() if value is not None}
        if "row_index" in options and "index" in self._options:
            options["index"] = options.pop("row_index")
        if options.get("evaluation") is False:
            del options["evaluation"]
        return options

    def secrets(self, options: Json) -> Json:
        """Remove the secrets from reset options and return them; they are sent apart, as options are recorded."""
        return {}

    def action(self, session: Session, data: Json, left: Left) -> ActionReader:
        """Return the action in the data of a step; raise ``InvalidAction`` if they have another form."""
        given = data.keys() - {"metadata"}
        if given == {"action"}:
            return action_from_json(session, data["action"], left)
        if given == {"message"} and isinstance(data["message"], str):
            return action_from_text(session, data["message"], left)
        raise InvalidAction(
            f"{session.env_id}: {shown(data)} is no action; give {{'action': …}}, or the reply of a language model "
            "as {'message': '…'}"
        )

    # Replies

    def observation(self, played: Played) -> Json:
        """Return the observation, without metadata."""
        reply = played.reply
        seen: Json = {"observation": plain(reply.observation), "prompt": None, "truncated": False}
        if is_game(reply.info):
            seen |= self._game_members(played)
        else:
            seen["prompt"] = prompt_in(reply.info.get("stream"))
            seen["truncated"] = isinstance(reply, Stepped) and bool(reply.truncated)
        return seen

    def _game_members(self, played: Played) -> Json:
        info: Any = played.reply.info
        rewards = {} if played.rewards is None else plain(played.rewards)
        return {"agent": info.get("selection"), "agents": list(info["agents"]), "rewards": rewards}

    def metadata(self, played: Played) -> Json:
        """Return the metadata of an observation: the info without our own stream."""
        info: Any = played.reply.info
        if is_game(info):
            infos = {agent: _without_ours(own) for agent, own in info["infos"].items()}
            return {"infos": infos} if any(infos.values()) else {}
        return _without_ours(info)

    def state(self, state: Json, played: Played | None) -> Json:
        """Return the state of an episode; ``state`` is that of the environment, ``played`` its last call."""
        if isinstance(state.get("tasks"), int):
            state["dataset_size"] = state["tasks"]  # the name that AgileRL's trainer reads
        return state


def _without_ours(info: Mapping[str, Any]) -> Json:
    return {str(jsonable(key)): plain(value) for key, value in info.items() if key not in _OURS}


def text_member(data: Json, name: str, default: str | None = None) -> str:
    """Return a text in the data of an action; raise ``InvalidAction`` if it is missing or no text."""
    value = data.get(name, default)
    if not isinstance(value, str):
        raise InvalidAction(f"{name} {shown(value)} is no text; give {{{name!r}: '…'}}")
    return value


def only_members(data: Json, names: tuple[str, ...]) -> None:
    """Raise ``InvalidAction`` if an action has other members than these and ``metadata``."""
    unknown = data.keys() - {*names, "metadata"}
    if unknown:
        raise InvalidAction(f"there is no {shown(min(unknown))} in an action; there are {', '.join(names)}")


def text_option(options: Json, name: str) -> str | None:
    """Remove a text from reset options and return it; raise ``InvalidArgument`` if it is no text."""
    value = options.pop(name, None)
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{name} {shown(type(value).__name__)} is no text; give one, or leave it out")
    return value
