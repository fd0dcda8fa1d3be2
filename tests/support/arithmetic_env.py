"""An environment that computes, for the tests of reward transforms."""

from __future__ import annotations

import ast
import operator
from typing import Any

import gymnasium
from gymnasium.spaces import Text

from envweave_gym.core.program_result import Result
from envweave_gym.rewards.transforms import Transform

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](evaluate(left), evaluate(right))
        case _:
            raise TypeError(f"{type(node).__name__} is no arithmetic")


def run(code: str) -> Result:
    """Execute arithmetic (and imports, which do nothing)."""
    try:
        statement = ast.parse(code).body[-1]
        return Result(value=evaluate(statement.value) if isinstance(statement, ast.Expr) else None)
    except (SyntaxError, ArithmeticError, TypeError, KeyError, IndexError):
        return Result(success=False)


class Arithmetic(gymnasium.Env[str, str]):
    """Arithmetic in, its value out; ``info["result"]`` has the result, as code-executing environments do."""

    def __init__(self, own_reward: float = 0.25) -> None:
        self.observation_space = Text(10_000)
        self.action_space = Text(10_000)
        self.own_reward = own_reward
        self.extra: dict[str, Any] = {}
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return "ready", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        result = run(action)
        return str(result.value), self.own_reward, False, False, {"result": result, **self.extra}


def judged(transform: Transform, code: str) -> float:
    return transform(code, "", {"result": run(code)})
