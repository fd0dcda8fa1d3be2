"""The examples of the first users of CodeAct, as they wrote them: with another import alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from envweave_gym.compat.envtorch import (
    CodeActEnvironment,
    CodeAction,
    CodeState,
    create_codeact_env,
    create_math_env_transform,
    create_mcp_environment,
    create_safe_env_transform,
)
from envweave_gym.core.faults import InvalidArgument


@pytest.fixture
def made() -> Iterator[Callable[[CodeActEnvironment], CodeActEnvironment]]:
    """Closes with the test what it is given."""
    found: list[CodeActEnvironment] = []

    def keep(env: CodeActEnvironment) -> CodeActEnvironment:
        found.append(env)
        return env

    yield keep
    for env in found:
        env.close()


def test_quick_start(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    env = made(create_codeact_env())
    obs = env.reset()
    action = CodeAction(
        code="""
x = 10
y = 20
result = x * y
print(f"Result: {result}")
result  # Return value
"""
    )
    obs = env.step(action)
    print(f"Output: {obs.execution_result.stdout}")
    print(f"Return: {obs.execution_result.return_value}")
    assert capsys.readouterr().out == "Output: Result: 200\n\nReturn: 200\n"


def test_actions_and_observations(made: Any) -> None:
    env = made(create_codeact_env())
    env.reset()
    action = CodeAction(code="math.sqrt(16)")
    obs = env.step(action)
    assert obs.execution_result.return_value == 4.0
    assert obs.execution_result.success is True
    assert obs.execution_result.stdout == ""
    assert 0 < obs.execution_result.execution_time_ms < 10_000


def test_tool_integration(made: Any) -> None:
    env = made(create_mcp_environment())
    env.reset()
    action = CodeAction(
        code="""
content = "Hello, world!"
file_write("/tmp/hello.txt", content)
result = file_read("/tmp/hello.txt")
print(f"File contents: {result}")
"""
    )
    obs = env.step(action)
    assert obs.execution_result.stdout == "File contents: Hello, world!\n"


def test_training_with_transforms(made: Any) -> None:
    transform = create_math_env_transform(expected_answer=42)
    env = made(create_codeact_env())
    env.reset()
    assert env.step(CodeAction(code="21 * 2")).reward is None
    env.transform = transform
    action = CodeAction(code="21 * 2")
    obs = env.step(action)
    assert obs.reward == pytest.approx(1.1)
    assert env.transform is transform


def test_a_training_loop(made: Any) -> None:
    env = made(create_codeact_env())
    env.transform = create_safe_env_transform()
    for _episode in range(3):
        obs = env.reset()
        assert obs.reward is None
        obs = env.step(CodeAction(code="x = 1"))
        assert obs.reward == pytest.approx(1.1)


def test_errors_are_observations(made: Any) -> None:
    env = made(create_codeact_env())
    env.reset()
    result = env.step(CodeAction(code="1 / 0")).execution_result
    assert (result.success, result.exception_type) == (False, "ZeroDivisionError")
    assert result.exception_message == "division by zero"
    assert result.traceback_str.startswith("Traceback")


def test_an_answer_ends_the_episode_and_the_state_tells_how_it_stands(made: Any) -> None:
    env = made(create_codeact_env())
    assert env.state == CodeState(episode_id=None, step_count=0, variables={})
    env.reset(seed=1)
    env.step(CodeAction(code="x = {1}"))
    assert env.step(CodeAction(code="x")).execution_result.return_value == "{1}"
    assert env.state == CodeState(episode_id="0", step_count=2, variables={"x": "set"})
    assert env.step(CodeAction(code="final_answer(1)")).done is True


@pytest.mark.parametrize("code", ["", " \n", None, 5])
def test_an_action_without_a_program_is_refused(code: Any) -> None:
    with pytest.raises(InvalidArgument, match="is no program; give its text"):
        CodeAction(code=code)


def test_an_invalid_action_is_refused(made: Any) -> None:
    env = made(create_codeact_env())
    env.reset()
    with pytest.raises(InvalidArgument, match="'1' is no action; give CodeAction"):
        env.step("1")
