"""Typed clients: play an environment through ``reset``, ``step`` and ``state`` with typed values.

The environment runs on a server, or in this process if no server is given. Clients use :func:`envweave_gym.make`
rather than HTTP requests of their own. So each call is carried out exactly once even if the connection breaks, and
containers are started and removed like those of ``make``.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import gymnasium as gym
import msgspec
from gymnasium.spaces import Box, Dict, Discrete, Space, Text

from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import name_of, state_of
from envweave_gym.core.reply_parsing import read_action
from envweave_gym.core.spaces import Json
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
    an array of one number, and a bool for 0 or 1.

    A lost episode raises :class:`envweave_gym.SessionLost`; the next reset begins another.
    """

    env_id: ClassVar[str] = ""
    """The ID of the environment; empty if the server serves exactly one."""

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
        name = wanted if base_url is None else "#".join(filter(None, (base_url, wanted)))
        kwargs.setdefault("on_fault", "raise")  # remote environments truncate by default
        self._env: gym.Env[Any, Any] = make(name, api="gym", **kwargs)
        self._name = uuid.uuid4().hex

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
        member = self._member(self._payload_of(action))
        observation, reward, terminated, truncated, info = self._env.step(member)
        return self._result(observation, float(reward), bool(terminated or truncated), info)

    def state(self) -> Any:
        """Return the state of the running episode."""
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

    def _result(
        self, observation: Any, reward: float | None, done: bool, info: dict[str, Any]
    ) -> StepResult[ObservationType]:
        plain = _plain(self._env.observation_space, observation)
        result = self._parse_result({"observation": plain, "reward": reward, "done": done})
        return result if result.info else msgspec.structs.replace(result, info=info)

    def _payload_of(self, action: ActionType) -> Any:
        try:
            return self._step_payload(action)
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
    """Typed client of ``envweave/Echo-v0``."""

    env_id = "envweave/Echo-v0"

    def _step_payload(self, action: EchoAction) -> str:
        return action.message

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[EchoObservation]:
        said: str = payload["observation"]
        length = 0 if payload["reward"] is None else len(said)
        payload["observation"] = EchoObservation(said, length)
        return StepResult(**payload)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(episode_id=payload["episode_id"], step_count=payload["step_count"])


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
    """Typed client of ``envweave/Coding-v0``."""

    env_id = "envweave/Coding-v0"

    def _step_payload(self, action: CodeAction) -> str:
        return action.code

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[CodeObservation]:
        payload["observation"] = CodeObservation(**payload["observation"])
        return StepResult(**payload)

    def _parse_state(self, payload: dict[str, Any]) -> CodeState:
        return CodeState(**{name: payload[name] for name in ("episode_id", "step_count", "last_exit_code")})
