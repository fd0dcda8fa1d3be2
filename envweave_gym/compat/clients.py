"""Typed clients: play an environment through ``reset``, ``step`` and ``state`` with typed values.

The environment runs on a server, or in this process if no server is given. The server is one of this package or one of
OpenEnv, which the clients notice. They use :func:`envweave_gym.make` rather than HTTP requests of their own. So each
call to a server of this package is carried out exactly once even if the connection breaks, a lost session of OpenEnv
never silently becomes another, and containers are started and removed like those of ``make``.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import gymnasium as gym
import msgspec
from gymnasium.spaces import Box, Dict, Discrete, Space, Text

from envweave_gym.core.faults import InvalidAction, InvalidArgument, NotAvailable, ToolError, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import name_of, state_of
from envweave_gym.core.reply_parsing import read_action
from envweave_gym.core.spaces import Json
from envweave_gym.hubs.openenv.environment_names import ID as OPENENV
from envweave_gym.hubs.openenv.server_detection import is_openenv
from envweave_gym.registry.make import make

ActionType = TypeVar("ActionType")
ObservationType = TypeVar("ObservationType")


class StepResult(msgspec.Struct, Generic[ObservationType], frozen=True, kw_only=True):
    """The result of a reset or a step of a :class:`TypedClient`: a typed observation, the reward, and the end."""

    observation: ObservationType
    reward: float | None = None
    """The reward of the step; ``None`` for a reset."""
    done: bool = False
    """Whether the episode is over."""
    info: dict[str, Any] = {}
    """The ``info`` that Gymnasium's ``step`` returns."""


@dataclass(kw_only=True)
class Action:
    """Optional base class of the typed actions of a :class:`TypedClient`."""


@dataclass(kw_only=True)
class Observation:
    """Optional base class of the typed observations of a :class:`TypedClient`."""


@dataclass(kw_only=True)
class State:
    """The state of a running episode; environments with more fields define a subclass."""

    episode_id: str | None = None
    """An identifier that differs for each episode; ``None`` before the first."""
    step_count: int = 0


class TypedClient(Generic[ActionType, ObservationType]):
    """Base class of clients that play one environment with typed actions and observations.

    A subclass names its environment in ``env_id``. It overrides ``_step_payload``, ``_parse_result`` and
    ``_parse_state`` where its types differ from their plain JSON form. A number in a payload also stands for
    an array of one number, and a bool for 0 or 1. On a server of OpenEnv payloads are its own JSON, for which
    ``_openenv_payload``, ``_parse_openenv_result`` and ``_parse_openenv_state`` may be overridden too.

    A lost episode raises :class:`envweave_gym.SessionLost`; the next reset begins another.
    """

    env_id: ClassVar[str] = ""
    """The ID of the environment; empty if the server serves exactly one."""
    _defaults: ClassVar[dict[str, Any]] = {}
    """Arguments of the environment that are not its own defaults; not for servers of OpenEnv."""

    def __init__(self, base_url: str | None = None, *, env_id: str | None = None, **kwargs: Any) -> None:
        """Make the environment, on the server at ``base_url``, or without it in this process.

        ``kwargs`` are those of :func:`envweave_gym.make`, such as ``token="env:NAME"``.
        """
        wanted = self.env_id if env_id is None else env_id
        if base_url is None and not wanted:
            raise InvalidArgument(f"{type(self).__name__} needs base_url= of a server, or env_id=")
        if base_url is not None and not (isinstance(base_url, str) and "://" in base_url):
            raise InvalidArgument(
                f"{type(self).__name__}: base_url={shown(base_url)} is not a URL like 'http://host:port'"
            )
        kwargs.setdefault("on_fault", "raise")  # remote environments truncate by default
        self._where = base_url or wanted
        self._is_openenv = base_url is not None and is_openenv(base_url, kwargs.get("token"))
        if self._is_openenv and env_id is not None:
            raise InvalidArgument(
                f"{type(self).__name__}: {self._where} is a server of OpenEnv, which has one environment; leave "
                f"env_id={shown(env_id)} out"
            )
        self._env: gym.Env[Any, Any] = (
            _openenv(self._where, kwargs) if self._is_openenv else self._ours(base_url, wanted, kwargs)
        )
        self._name = uuid.uuid4().hex

    def _ours(self, base_url: str | None, env_id: str, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
        """Make the environment on a server of this package, or in this process."""
        name = env_id if base_url is None else "#".join(filter(None, (base_url, env_id)))
        return make(name, api="gym", **{**self._defaults, **kwargs})

    @classmethod
    def from_docker_image(cls, image: str, **kwargs: Any) -> Self:
        """Start a container of this image, which is removed when the client is closed.

        ``kwargs`` are those of the constructor and those of ``backend="docker"``, such as ``memory="512m"``.
        """
        return cls(f"docker://{image}", **kwargs)

    def reset(self, *, seed: int | None = None, **options: Any) -> StepResult[ObservationType]:
        """Begin an episode; ``options`` are those that the environment takes."""
        observation, info = self._env.reset(seed=seed, options=options or None)
        return self._result(observation, None, False, info)

    def step(self, action: ActionType) -> StepResult[ObservationType]:
        """Take one step with a typed action, and return the result."""
        payload = self._payload_of(action)
        member = payload if self._is_openenv else self._member(payload)
        observation, reward, terminated, truncated, info = self._env.step(member)
        earned = None if info.get("reward_missing") else float(reward)
        return self._result(observation, earned, bool(terminated or truncated), info)

    def state(self) -> Any:
        """Return the state of the running episode."""
        if self._is_openenv:
            core: Any = self._env.unwrapped
            return self._parse_openenv_state({"episode_id": None, "step_count": 0, **core.episode_state()})
        known = state_of(self._env)
        episode = known.pop("episode")
        return self._parse_state({"episode_id": f"{self._name}-{episode}" if episode >= 0 else None, **known})

    def close(self) -> None:
        """End the session, and remove a container that was started for it."""
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Conversions between types and JSON

    def _step_payload(self, action: ActionType) -> Any:
        """Return the action as JSON, by default its fields."""
        return msgspec.to_builtins(action, str_keys=True)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObservationType]:
        """Return the result for ``{"observation": …, "reward": …, "done": …}``."""
        return StepResult(**payload)

    def _parse_state(self, payload: dict[str, Any]) -> Any:
        """Return the state for ``{"episode_id": …, "step_count": …, …}``."""
        return payload

    def _openenv_payload(self, action: ActionType) -> Any:
        """Return the action as JSON for a server of OpenEnv."""
        return self._step_payload(action)

    def _parse_openenv_result(
        self, payload: dict[str, Any], info: dict[str, Any]
    ) -> StepResult[ObservationType]:
        """Return the result for the JSON of a server of OpenEnv, whose metadata are in ``info``."""
        return self._parse_result(payload)

    def _parse_openenv_state(self, payload: dict[str, Any]) -> Any:
        """Return the state for that of a server of OpenEnv."""
        return self._parse_state(payload)

    def _result(
        self, observation: Any, reward: float | None, done: bool, info: dict[str, Any]
    ) -> StepResult[ObservationType]:
        if self._is_openenv:
            payload = {"observation": dict(observation), "reward": reward, "done": done}
            try:
                result = self._parse_openenv_result(payload, info)
            except (KeyError, TypeError, AttributeError) as error:
                raise NotAvailable(
                    f"{self._where} has another environment than that of {type(self).__name__}: it sent "
                    f"{shown(observation)} ({error!r}); connect the client of that one"
                ) from None
        else:
            plain = _plain(self._env.observation_space, observation)
            result = self._parse_result({"observation": plain, "reward": reward, "done": done})
        return result if result.info else msgspec.structs.replace(result, info=info)

    def _payload_of(self, action: ActionType) -> Any:
        try:
            return self._openenv_payload(action) if self._is_openenv else self._step_payload(action)
        except (AttributeError, TypeError) as error:
            why = f"{shown(action)} is no action of {type(self).__name__}: {error}"
            raise InvalidAction(f"{name_of(self._env)}: {why}") from error

    def _member(self, payload: Any) -> Any:
        """Return the member of the environment's action space that a payload stands for."""
        space = self._env.action_space
        is_text = isinstance(space, Text) and not isinstance(space, Json)
        try:
            return read_action(space, payload if is_text else json.dumps(_fitted(space, payload)))
        except (InvalidAction, TypeError, ValueError) as error:
            raise InvalidAction(f"{name_of(self._env)}: {error}") from None


def _openenv(url: str, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    """Make the environment of a server or an image of OpenEnv, with actions and observations as JSON."""
    scheme, _, rest = url.partition("://")
    where = f"openenv://docker/{rest}" if scheme == "docker" else url
    given: dict[str, Any] = {"url": where, "spaces": "json", **kwargs}
    return make(OPENENV, api="gym", **given)


def _fitted(space: Space[Any], payload: Any) -> Any:
    """Return a payload in the form that :func:`read_action` parses."""
    if isinstance(space, Dict) and isinstance(payload, dict):
        members: dict[str, Any] = payload
        return {key: _fitted(space[key], value) for key, value in members.items() if key in space.spaces}
    if isinstance(space, Discrete) and isinstance(payload, bool):
        return int(payload)
    if isinstance(space, Box) and space.shape == (1,) and isinstance(payload, int | float):
        return [payload]
    return payload


def _plain(space: Space[Any], value: Any) -> Any:
    """Return an observation in the form of payloads: an array of one number becomes that number."""
    if isinstance(space, Dict):
        return {key: _plain(inner, value[key]) for key, inner in space.items()}
    plain = jsonable(value)
    return plain[0] if isinstance(space, Box) and space.shape == (1,) else plain


# Echo


@dataclass
class EchoAction(Action):
    """An action with a message to echo."""

    message: str


@dataclass
class EchoObservation(Observation):
    """An observation with the echoed message."""

    echoed_message: str
    message_length: int
    """The length of the message in characters; 0 before the first step."""


class EchoEnv(TypedClient[EchoAction, EchoObservation]):
    """Typed client of ``envweave/Echo-v0``, and of OpenEnv's echo environment, old or with tools."""

    env_id = "envweave/Echo-v0"

    def __init__(self, base_url: str | None = None, **kwargs: Any) -> None:
        """Make the environment; the arguments are those of :class:`TypedClient`."""
        super().__init__(base_url, **kwargs)
        try:
            self._has_tools = self._is_openenv and _has_tools(self._env)
        except BaseException:
            self.close()
            raise

    def _openenv_payload(self, action: EchoAction) -> dict[str, Any]:
        if not self._has_tools:
            return {"message": action.message}
        call = {"tool_name": "echo_message", "arguments": {"message": action.message}}
        return {"type": "call_tool", **call}

    def _parse_openenv_result(
        self, payload: dict[str, Any], info: dict[str, Any]
    ) -> StepResult[EchoObservation]:
        seen: dict[str, Any] = payload["observation"]
        if not self._has_tools:
            payload["observation"] = EchoObservation(seen["echoed_message"], seen["message_length"])
        elif "tool_name" in seen:
            said = _tool_result(self._where, seen)
            payload["observation"] = EchoObservation(said, len(said))
        else:  # of a reset
            payload["observation"] = EchoObservation(str(info.get("message", "")), 0)
        return StepResult(**payload)

    def _step_payload(self, action: EchoAction) -> str:
        return action.message

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[EchoObservation]:
        said: str = payload["observation"]
        length = 0 if payload["reward"] is None else len(said)
        payload["observation"] = EchoObservation(said, length)
        return StepResult(**payload)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(episode_id=payload["episode_id"], step_count=payload["step_count"])


def _has_tools(env: gym.Env[Any, Any]) -> bool:
    """Return whether the actions of an OpenEnv environment are calls of tools."""
    core: Any = env.unwrapped
    action = core.schemas().get("action")
    members = action.get("properties") if isinstance(action, dict) else None
    return isinstance(members, dict) and "tool_name" in members


def _tool_result(where: str, seen: dict[str, Any]) -> str:
    """Return the text that a tool of an OpenEnv environment has returned; raise ``ToolError`` if the tool failed."""
    result = seen.get("result")
    if (
        seen.get("error")
        or not isinstance(result, dict | str)
        or (isinstance(result, dict) and result.get("is_error"))
    ):
        raise ToolError(f"{where}: the tool {seen['tool_name']} failed: {shown(seen.get('error') or result)}")
    found: Any = result
    if isinstance(result, dict):
        structured = result.get("structured_content") or {}
        content = result.get("content") or [{}]
        found = next(
            (
                one
                for one in (result.get("data"), structured.get("result"), content[0].get("text"))
                if one is not None
            ),
            None,
        )
    if not isinstance(found, str):
        raise TypeError("the tool returned no text")
    return found


# Coding


@dataclass
class CodeAction(Action):
    """A program to run."""

    code: str


@dataclass
class CodeObservation(Observation):
    """An observation with the result of a program."""

    stdout: str
    """The output of the program, and the value of its last expression."""
    stderr: str
    exit_code: int
    """The exit code: 1 if the program ended with an error, else 0."""


@dataclass(kw_only=True)
class CodeState(State):
    """The state of an episode in which programs are run."""

    last_exit_code: int = 0


class CodingEnv(TypedClient[CodeAction, CodeObservation]):
    """Typed client of ``envweave/Coding-v0``, and of OpenEnv's coding environment."""

    env_id = "envweave/Coding-v0"

    def _step_payload(self, action: CodeAction) -> str:
        return action.code

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[CodeObservation]:
        payload["observation"] = CodeObservation(**payload["observation"])
        return StepResult(**payload)

    def _parse_state(self, payload: dict[str, Any]) -> CodeState:
        return CodeState(**{name: payload[name] for name in ("episode_id", "step_count", "last_exit_code")})

    def _openenv_payload(self, action: CodeAction) -> dict[str, Any]:
        return {"code": action.code}

    def _parse_openenv_result(
        self, payload: dict[str, Any], info: dict[str, Any]
    ) -> StepResult[CodeObservation]:
        names = ("stdout", "stderr", "exit_code")
        payload["observation"] = {name: payload["observation"][name] for name in names}
        return self._parse_result(payload)

    def _parse_openenv_state(self, payload: dict[str, Any]) -> CodeState:
        return self._parse_state({"last_exit_code": 0, **payload})
