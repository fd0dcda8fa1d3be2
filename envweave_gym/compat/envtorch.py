"""CodeAct under the class names of EnvTorch, by which its first users know it.

A program written for EnvTorch needs another import and nothing else::

    from envweave_gym.compat.envtorch import CodeAction, create_codeact_env

New programs use :func:`envweave_gym.compat.constructors.codeact_env`, which makes a ``gymnasium.Env``. A transform
is a reward function here too, and changes no observation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Self

from envweave_gym.compat import clients
from envweave_gym.compat.clients import Action, Observation, State
from envweave_gym.compat.constructors import WithTransform, codeact_env, mcp_env
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.rewards.transforms import (
    CodeQuality,
    CodeSafety,
    Composite,
    MathAnswer,
    RewardFunction,
    TaskCompletion,
    Transform,
    math_transform,
    safe_transform,
)
from envweave_gym.sandbox import Execution
from envweave_gym.tools import ToolRegistry

__all__ = [
    "Action",
    "CodeActEnvironment",
    "CodeAction",
    "CodeObservation",
    "CodeQualityTransform",
    "CodeSafetyTransform",
    "CodeState",
    "CompositeTransform",
    "ExecutionResult",
    "MathProblemTransform",
    "Observation",
    "State",
    "TaskCompletionTransform",
    "ToolRegistry",
    "Transform",
    "create_codeact_env",
    "create_math_env_transform",
    "create_mcp_environment",
    "create_safe_env_transform",
]

CodeSafetyTransform, CodeQualityTransform = CodeSafety, CodeQuality
MathProblemTransform, TaskCompletionTransform, CompositeTransform = MathAnswer, TaskCompletion, Composite


@dataclass
class CodeAction(clients.CodeAction):
    """An action with a program to run, which must not be empty."""

    def __post_init__(self) -> None:
        if not isinstance(self.code, str) or not self.code.strip():
            raise InvalidArgument(f"CodeAction: code={shown(self.code)} is no program; give its text")


@dataclass(kw_only=True)
class ExecutionResult:
    """The result of running a program: its output, value, error and duration."""

    stdout: str = ""
    stderr: str = ""
    return_value: Any = None
    """The value of the last expression, as JSON; a value that has no JSON form as its ``repr``."""
    exception_type: str = ""
    traceback_str: str = ""
    execution_time_ms: float = 0.0
    success: bool = True

    @property
    def exception_message(self) -> str:
        """The last line of the traceback, without the type."""
        last = self.traceback_str.rpartition("\n")[2]
        return last.removeprefix(self.exception_type).removeprefix(": ")


@dataclass(kw_only=True)
class CodeObservation(Observation):
    """The observation after a reset or a step."""

    execution_result: ExecutionResult = field(default_factory=ExecutionResult)
    reward: float | None = None
    """The reward from the transform; ``None`` without a transform, and for a reset."""
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """The ``info`` that Gymnasium's ``reset`` or ``step`` returns."""


@dataclass(kw_only=True)
class CodeState(State):
    """The state of a running episode."""

    variables: dict[str, str] = field(default_factory=dict[str, str])
    """The type names of the variables that programs have defined, by name."""


class CodeActEnvironment:
    """Adapter of ``envweave/CodeAct-v0`` to EnvTorch's interface, in which all results are in the observation."""

    def __init__(self, env: WithTransform) -> None:
        """Adapt ``env``, the result of :func:`envweave_gym.compat.constructors.codeact_env`."""
        self.env = env

    @property
    def transform(self) -> RewardFunction | None:
        """The function that computes the reward of a step, replaceable at any time; with ``None`` rewards are 0."""
        return self.env.transform

    @transform.setter
    def transform(self, value: RewardFunction | None) -> None:
        self.env.transform = value

    def reset(self, *, seed: int | None = None) -> CodeObservation:
        """Begin an episode, with an empty namespace."""
        _, info = self.env.reset(seed=seed)
        return CodeObservation(metadata=info)

    def step(self, action: clients.CodeAction) -> CodeObservation:
        """Run a program, and return its result, reward and info as an observation."""
        if not isinstance(action, clients.CodeAction):
            raise InvalidArgument(f"{shown(action)} is no action; give CodeAction(code=…)")
        started = time.monotonic()
        _, reward, terminated, truncated, info = self.env.step(action.code)
        took = 1000 * (time.monotonic() - started)
        return CodeObservation(
            execution_result=_result_of(info["result"], took),
            reward=None if self.transform is None else float(reward),
            done=terminated or truncated,
            metadata=info,
        )

    @property
    def state(self) -> CodeState:
        """The state of the running episode."""
        known = self.env.state()
        episode = str(known["episode"]) if known["episode"] >= 0 else None
        return CodeState(episode_id=episode, step_count=known["step_count"], variables=known["variables"])

    def close(self) -> None:
        """End the episode and the processes of its programs."""
        self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _result_of(done: Execution, took: float) -> ExecutionResult:
    value = done.shown if done.value is None and done.shown else done.value
    return ExecutionResult(
        stdout=done.stdout,
        stderr=done.stderr,
        return_value=value,
        exception_type=done.error_type,
        traceback_str=done.error,
        execution_time_ms=took,
        success=done.success,
    )


def create_codeact_env(**kwargs: Any) -> CodeActEnvironment:
    """Make an environment; ``kwargs`` are those of :func:`envweave_gym.compat.constructors.codeact_env`."""
    return CodeActEnvironment(codeact_env(**kwargs))


def create_mcp_environment(servers: Any = None, **kwargs: Any) -> CodeActEnvironment:
    """Make an environment with the tools of MCP servers, or else with ``file_read`` and ``file_write``."""
    return CodeActEnvironment(mcp_env(servers, **kwargs))


def create_math_env_transform(expected_answer: Any, tolerance: float = 1e-6) -> Composite:
    """Return a transform that rewards programs for the one expected answer of a problem."""
    return math_transform(expected_answer, tolerance)


def create_safe_env_transform() -> Composite:
    """Return a transform that rewards programs for running without an error."""
    return safe_transform()
