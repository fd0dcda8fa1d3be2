"""An environment that an author writes with dataclasses, and its client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envweave_gym.compat.clients import Action, Observation, State, StepResult, TypedClient
from envweave_gym.typed import TypedEnv

MY = "tests/My-v0"


@dataclass
class MyAction(Action):
    """Your custom action."""

    command: str
    parameters: dict[str, Any] = field(default_factory=dict)
    times: int = 1
    loud: bool = False


@dataclass
class MyObservation(Observation):
    """Your custom observation."""

    result: str
    success: bool
    length: int = 0


@dataclass
class MyState(State):
    """Custom state fields."""

    custom_field: int = 0


class MyEnvironment:
    """Says what it is told."""

    def __init__(self) -> None:
        self._steps = 0

    def reset(self) -> MyObservation:
        self._steps = 0
        return MyObservation(result="Ready", success=True)

    def step(self, action: MyAction) -> MyObservation:
        self._steps += 1
        said = " ".join([action.command, *map(str, action.parameters.values())] * action.times)
        said = said.upper() if action.loud else said
        return MyObservation(result=said, success=action.command != "fail", length=len(said))

    def state(self) -> dict[str, int]:
        return {"custom_field": self._steps}


def make_my_environment() -> TypedEnv:
    return TypedEnv(MyEnvironment)


class MyEnv(TypedClient[MyAction, MyObservation]):
    """Its client."""

    env_id = MY

    def _step_payload(self, action: MyAction) -> dict[str, Any]:
        return {
            "command": action.command,
            "parameters": action.parameters,
            "times": action.times,
            "loud": action.loud,
        }

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[MyObservation]:
        obs = MyObservation(**payload["observation"])
        return StepResult(observation=obs, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload: dict[str, Any]) -> MyState:
        return MyState(**payload)


CARD = {
    "id": MY,
    "doc": "Say what you are told.",
    "gym": "command_env:make_my_environment",
    "max_steps": 3,
}
"""The row of its ID: in a server ``command_card`` registers it, and each test in its own process."""
