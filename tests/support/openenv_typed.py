"""Typed clients of OpenEnv's echo, coding and REPL environments, rewritten on its base classes.

The packages echo_env, coding_env and repl_env are not on PyPI. The conversions here are theirs, as their models are in
``openenv_models``.
"""

from __future__ import annotations

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import Observation, State
from openenv_models import (
    CodeAction,
    CodeObservation,
    CodeState,
    EchoAction,
    EchoObservation,
    REPLAction,
    REPLObservation,
    REPLState,
)

__all__ = ["CodeAction", "CodingEnv", "EchoAction", "EchoEnv", "REPLAction", "REPLEnv"]


class _Typed(EnvClient[Any, Any, Any]):
    """Converts fields as they are."""

    observation: type[Observation]
    state_type: type[State] = State

    def _step_payload(self, action: Any) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
        reward, done = payload.get("reward"), payload.get("done", False)
        seen = self.observation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=seen, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return self.state_type(**payload)


class EchoEnv(_Typed):
    observation = EchoObservation


class CodingEnv(_Typed):
    observation, state_type = CodeObservation, CodeState


class REPLEnv(_Typed):
    observation, state_type = REPLObservation, REPLState
