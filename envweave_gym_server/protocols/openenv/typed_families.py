"""The forms of OpenEnv's own environments: echo, coding and the REPL, whose typed clients allow no other members."""

from __future__ import annotations

from typing import Any

from envweave_gym.core.schema_of_space import Schema, object_schema
from envweave_gym.wire.messages import Stepped
from envweave_gym_server.protocols.json_calls import ActionReader, action_from_json
from envweave_gym_server.protocols.json_rpc import Json
from envweave_gym_server.protocols.openenv.families import (
    ANY_OBJECT,
    Family,
    Played,
    only_members,
    text_member,
    text_option,
)
from envweave_gym_server.protocols.rest.json_values import plain
from envweave_gym_server.sessions.session import Left, Session

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NAMES: Schema = {"type": "array", "items": _TEXT}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


class EchoFamily(Family):
    """``{"message": …}`` gives ``{"echoed_message": …, "message_length": …}``; there is no step limit."""

    kwargs = {"max_steps": -1}
    reset_reward = 0.0

    def action_schema(self) -> Schema:
        """Return the schema of ``EchoAction``."""
        return object_schema({"message": _TEXT, "metadata": ANY_OBJECT}, ["message"])

    def observation_schema(self) -> Schema:
        """Return the schema of ``EchoObservation``."""
        return object_schema({"echoed_message": _TEXT, "message_length": _COUNT, "metadata": ANY_OBJECT})

    def action(self, session: Session, data: Json, left: Left) -> ActionReader:
        """Return the message."""
        only_members(data, ("message",))
        return action_from_json(session, text_member(data, "message"), left)

    def observation(self, played: Played) -> Json:
        """Return the echoed message; the first one, which says that the environment is ready, has length 0."""
        said = plain(played.reply.observation)
        return {
            "echoed_message": said,
            "message_length": len(said) if isinstance(played.reply, Stepped) else 0,
        }

    def metadata(self, played: Played) -> Json:
        """Return the message and the number of the step."""
        if not isinstance(played.reply, Stepped):
            return {}
        return {"original_message": plain(played.reply.observation), "step": played.count}


class CodingFamily(Family):
    """``{"code": …}`` gives ``{"stdout", "stderr", "exit_code"}``; there is no step limit."""

    kwargs = {"max_steps": -1}

    _NAMES_IN_METADATA = ("last_code", "safety_violation", "reward_parts")

    def action_schema(self) -> Schema:
        """Return the schema of ``CodeAction``."""
        return object_schema({"code": _TEXT, "metadata": ANY_OBJECT}, ["code"])

    def observation_schema(self) -> Schema:
        """Return the schema of ``CodeObservation``."""
        code = {"type": "integer"}
        return object_schema({"stdout": _TEXT, "stderr": _TEXT, "exit_code": code, "metadata": ANY_OBJECT})

    def action(self, session: Session, data: Json, left: Left) -> ActionReader:
        """Return the program."""
        only_members(data, ("code",))
        return action_from_json(session, text_member(data, "code"), left)

    def observation(self, played: Played) -> Json:
        """Return the output and the exit code of the program."""
        return plain(played.reply.observation)

    def metadata(self, played: Played) -> Json:
        """Return the program and the violations of safety rules in it."""
        info: Any = played.reply.info
        return {name: plain(info[name]) for name in self._NAMES_IN_METADATA if name in info}


class ReplFamily(Family):
    """``{"code", "is_final", "final_answer"}`` gives a program's result with the state of the episode.

    Models that were trained on OpenEnv's REPL print ``FINAL(…)``, so a printed answer ends an episode here.
    """

    kwargs = {"compat": "stdout"}

    def action_schema(self) -> Schema:
        """Return the schema of ``REPLAction``."""
        members = {"code": _TEXT, "is_final": {"type": "boolean"}, "final_answer": _or_null(_TEXT)}
        return object_schema({**members, "metadata": ANY_OBJECT}, [])

    def observation_schema(self) -> Schema:
        """Return the schema of ``REPLObservation``."""
        result = {
            "stdout": _TEXT,
            "stderr": _TEXT,
            "locals_snapshot": {"type": "object", "additionalProperties": _TEXT},
            "execution_time": {"type": "number", "minimum": 0},
            "success": {"type": "boolean"},
            "exception": _or_null(_TEXT),
        }
        members = {
            "result": object_schema(result),
            "context_preview": _or_null(_TEXT),
            "context_length": _COUNT,
            "available_variables": _NAMES,
            "iteration": _COUNT,
            "max_iterations": _COUNT,
        }
        return object_schema({**members, "metadata": ANY_OBJECT})

    def secrets(self, options: Json) -> Json:
        """Remove the token for Hugging Face's inference from the options and return it."""
        token = text_option(options, "hf_token")
        return {"hf_token": token} if token else {}

    def action(self, session: Session, data: Json, left: Left) -> ActionReader:
        """Return the program, or one that gives the final answer."""
        only_members(data, ("code", "is_final", "final_answer"))
        if data.get("is_final") is not True:
            return action_from_json(session, text_member(data, "code", ""), left)
        answer = "" if data.get("final_answer") is None else text_member(data, "final_answer")
        return action_from_json(session, f"FINAL({answer!r})", left)

    def observation(self, played: Played) -> Json:
        """Return the result of the program and the state of the episode."""
        seen: Json = plain(played.reply.observation)
        result = {
            "stdout": seen["stdout"],
            "stderr": seen["stderr"],
            "locals_snapshot": seen["locals_snapshot"],
            "execution_time": _seconds(played),
            "success": bool(seen["success"]),
            "exception": seen["exception"] or None,
        }
        counts = {name: seen[name][0] for name in ("context_length", "iteration", "max_iterations")}
        names = {name: seen[name] for name in ("context_preview", "available_variables")}
        return {"result": result, **names, **counts}

    def metadata(self, played: Played) -> Json:
        """Return the task, the final answer once there is one, and the time that the program took."""
        info: Any = played.reply.info
        return {
            "task_prompt": played.options.get("task_prompt", ""),
            "final_answer": info.get("final_answer"),
            "execution_time": _seconds(played),
        }

    def state(self, state: Json, played: Played | None) -> Json:
        """Return the state of an episode, with the context that was given to it."""
        given = None if played is None else played.options.get("context")
        return {**state, "context": given if isinstance(given, str) else None}


def _seconds(played: Played) -> float:
    return played.seconds if isinstance(played.reply, Stepped) else 0.0


FAMILIES: dict[str, type[Family]] = {
    "envweave/Echo-v0": EchoFamily,
    "envweave/Coding-v0": CodingFamily,
    "envweave/REPL-v0": ReplFamily,
}
"""The family of each ID that has a form of OpenEnv's own; all others are played as :class:`Family` says."""


def family_of(target: str) -> type[Family]:
    """Return the family of an environment by the target of its offer."""
    return FAMILIES.get(target, Family)
