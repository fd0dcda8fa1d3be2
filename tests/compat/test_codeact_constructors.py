"""codeact_env and mcp_env, and the examples that their first users know, with the names of Gymnasium."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from remote_worlds import url

import envweave_gym as ew
from envweave_gym.compat.constructors import codeact_env, mcp_env
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.rewards import RewardTransform, math_transform, safe_transform

__all__ = ["url"]
SERVER = str(Path(__file__).parents[1] / "support" / "mcp_misbehaving.py")


@pytest.fixture
def env() -> Iterator[Any]:
    made = codeact_env()
    yield made
    made.close()


# The examples of the first users


def test_quick_start(env: Any) -> None:
    observation, info = env.reset()
    code = """
x = 10
y = 20
result = x * y
print(f"Result: {result}")
result  # Return value
"""
    observation, _reward, _terminated, _truncated, info = env.step(code)
    assert observation["stdout"] == info["result"].stdout == "Result: 200\n"
    assert info["result"].value == 200


def test_actions_and_observations(env: Any) -> None:
    env.reset()
    *_, info = env.step("math.sqrt(16)")
    assert info["result"].value == 4.0
    assert info["result"].success is True
    assert info["result"].stdout == ""


@pytest.mark.parametrize(
    ("code", "earned"),
    [
        ("final_answer(42)", 1.0),
        ("final_answer('42.0')", 1.0),
        ("final_answer(type('N', (), {'__str__': lambda self: '42'})())", 1.0),
        ("final_answer(41)", 0.0),
        ("print(42); final_answer(None)", 0.0),
        ("print(42)\nfinal_answer(41)", 0.0),
    ],
)
@pytest.mark.parametrize("backend", [None, "subprocess"])
def test_a_final_answer_is_the_answer_of_its_step(code: str, earned: float, backend: str | None) -> None:
    env = RewardTransform(codeact_env(backend=backend), math_transform(42))
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(code)
    env.close()
    assert terminated
    assert info["reward_parts"]["earned"] == earned
    assert reward == pytest.approx(earned + 0.1)


def test_tool_integration() -> None:
    env = mcp_env()
    env.reset()
    code = """
content = "Hello, world!"
file_write("/tmp/hello.txt", content)
result = file_read("/tmp/hello.txt")
print(f"File contents: {result}")
"""
    observation, *_ = env.step(code)
    assert observation["stdout"] == "File contents: Hello, world!\n"
    env.close()


def test_training_with_transforms(env: Any) -> None:
    transform = math_transform(expected=42)
    env.reset()
    env.transform = transform
    assert env.step("21 * 2")[1] == pytest.approx(1.1)
    assert env.step("print(21 * 2)")[1] == pytest.approx(1.1)
    assert env.step("import os\n42")[1] == pytest.approx(-0.9)
    assert env.step("1 / 0")[1] == pytest.approx(-0.4)


def test_agent_exploration(env: Any) -> None:
    env.reset()
    env.step("data = [1, 2, 3, 4, 5]")
    *_, info = env.step("mean = sum(data) / len(data); mean")
    assert info["result"].value == 3.0


def test_a_training_loop(env: Any) -> None:
    env.transform = safe_transform()
    rewards = []
    for _episode in range(3):
        env.reset()
        rewards.append(env.step("x = 1")[1])
    assert rewards == pytest.approx([1.1] * 3)
    assert env.step("import os")[1] == pytest.approx(-0.9)  # no later transform pays for a violation


def test_first_an_agent_then_training(env: Any) -> None:
    env.reset()
    assert env.step("1")[1] == 0.0
    env.transform = lambda action, observation, info: float(info["result"].value)
    assert env.step("7")[1] == 7.0


# What it is


def test_it_is_a_gymnasium_environment_of_the_id(env: Any) -> None:
    assert isinstance(env, gym.Env)
    assert env.spec.id == "envweave/CodeAct-v0"
    again = gym.make(env.spec)
    again.reset(seed=0)
    again.close()


def test_the_transform_can_be_given_read_and_taken_away() -> None:
    env = codeact_env(transform := math_transform(1))
    env.reset(seed=0)
    assert env.transform is transform is env.unwrapped.transform
    env.transform = None
    assert env.step("1")[1] == 0.0
    with pytest.raises(InvalidArgument, match="a transform is a function"):
        env.transform = "math"
    env.close()


def test_state_and_parse_action_are_those_of_the_environment(env: Any) -> None:
    env.reset(seed=0)
    env.step("x = 1")
    assert env.state() == ew.state_of(env)
    assert env.state()["variables"] == {"x": "int"}
    assert env.parse_action("```python\nx\n```") == "x\n"


def test_arguments_go_to_the_environment() -> None:
    env = codeact_env(tools={"double": lambda number: 2 * number}, max_steps=1, task="Double 4.")
    assert "Double 4." in ew.messages_of(env.reset(seed=0)[1])[0]["content"]
    *_, truncated, info = env.step("double(4)")
    assert (info["result"].value, truncated) == (8, True)
    env.close()
    with pytest.raises(InvalidArgument, match="takes no argument 'tol'"):
        codeact_env(tol=1)


def test_servers_bring_their_tools() -> None:
    env = mcp_env({"mcpServers": {"adder": {"command": sys.executable, "args": ["-S", SERVER, "well"]}}})
    env.reset(seed=0)
    assert env.step("add(1)")[4]["result"].value == "2"
    assert env.step("file_read('a')")[4]["result"].error_type == "NameError"
    env.close()
    with pytest.raises(InvalidArgument, match="give functions and servers to tools="):
        mcp_env(["https://example.com/mcp"], tools=[])


def test_elsewhere_a_transform_cannot_be_replaced_and_the_sentence_says_what_can(url: str) -> None:
    env = codeact_env(backend=url)
    env.reset(seed=0)
    assert env.transform is None
    with pytest.raises(InvalidArgument, match="RewardTransform"):
        env.transform = math_transform(42)
    judged = RewardTransform(env, math_transform(42))
    assert judged.step("21 * 2")[1] == pytest.approx(1.1)
    env.close()
    with pytest.raises(InvalidArgument, match="transform"):
        codeact_env(math_transform(42), backend=url)
