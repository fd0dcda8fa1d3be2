"""Models of OpenEnv's echo, coding and REPL environments, whose packages are not on PyPI, for clients and servers.

Names and fields are theirs; models forbid unknown members, as OpenEnv's base classes do. They need a venv with OpenEnv.
"""

from __future__ import annotations

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
