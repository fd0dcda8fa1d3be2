"""Typed clients of OpenEnv's echo, coding and REPL environments, rewritten on its base classes.

The packages echo_env, coding_env and repl_env are not on PyPI. Names, fields and conversions here are theirs; models
forbid unknown members, as OpenEnv's base classes do.
"""

from __future__ import annotations

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed_message: str
    message_length: int = 0


class CodeAction(Action):
    code: str


class CodeObservation(Observation):
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class CodeState(State):
    last_exit_code: int = 0


class REPLAction(Action):
    code: str = ""
    is_final: bool = False
    final_answer: str | None = None


class CodeBlockResult(BaseModel):
    stdout: str
    stderr: str
    locals_snapshot: dict[str, str] = Field(default_factory=dict)
    execution_time: float
    success: bool
    exception: str | None = None


class REPLObservation(Observation):
    result: CodeBlockResult
    context_preview: str | None = None
    context_length: int = 0
    available_variables: list[str] = Field(default_factory=list)
    iteration: int = 0
    max_iterations: int = 30


class REPLState(State):
    context: str | None = None
    task_prompt: str | None = None
    iteration: int = 0
    max_iterations: int = 30
    namespace_keys: list[str] = Field(default_factory=list)
    final_answer: str | None = None
    total_execution_time: float = 0.0


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
