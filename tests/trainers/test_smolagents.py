"""smolagents' CodeAgent runs its programs in our sandbox: tools, errors and answers are what it expects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("smolagents", reason="smolagents is not installed: run make trainers")

from smolagents import CodeAgent, FinalAnswerTool, LogLevel, Tool, tool
from smolagents.models import ChatMessage, MessageRole, Model

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.integrations.smolagents import ProgramFailed, SandboxExecutor

pytestmark = pytest.mark.trainers


class Script(Model):
    """A model that says what was written down before, and keeps what it was told."""

    def __init__(self, *programs: str) -> None:
        super().__init__(model_id="script")
        self.programs, self.told = list(programs), list[str]()

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        self.told.append("\n".join(str(message.content) for message in messages))
        return ChatMessage(MessageRole.ASSISTANT, f"Thought: so.\n<code>\n{self.programs.pop(0)}\n</code>")


@tool
def price(item: str, amount: int | None = None) -> float:
    """The price of something.

    Args:
        item: What it is.
        amount: How many; one where nothing is said.
    """
    if item == "moon":
        raise LookupError("the moon is not for sale")
    return {"tea": 2.5, "cake": 4.0}[item] * (1 if amount is None else amount)


@pytest.fixture
def executor() -> Iterator[SandboxExecutor]:
    made = SandboxExecutor(step_timeout=5)
    yield made
    made.cleanup()


def agent_of(executor: SandboxExecutor, *programs: str, **more: Any) -> tuple[CodeAgent, Script]:
    model = Script(*programs)
    agent = CodeAgent(
        tools=[price], model=model, executor=executor, max_steps=5, verbosity_level=LogLevel.OFF, **more
    )
    return agent, model


def test_tools_run_here_and_variables_last_from_program_to_program(executor: SandboxExecutor) -> None:
    agent, model = agent_of(
        executor, "paid = price('tea', amount=2)\nprint('paid', paid)", "final_answer(paid + price('cake'))"
    )
    assert agent.run("Buy two teas and a cake.") == 9.0
    assert "Execution logs:\\npaid 5.0" in model.told[1]


def test_an_error_comes_with_the_output_before_it(executor: SandboxExecutor) -> None:
    agent, model = agent_of(executor, "print('so far')\n1 / 0", "final_answer('done')")
    assert agent.run("Divide.") == "done"
    assert "so far" in model.told[1]
    assert "ZeroDivisionError: division by zero" in model.told[1]


def test_an_error_of_a_tool_is_recorded_too(executor: SandboxExecutor) -> None:
    agent, model = agent_of(executor, "price('moon')", "final_answer(0)")
    assert agent.run("Buy the moon.") == 0
    assert "the moon is not for sale" in model.told[1]


def test_output_is_not_repeated_with_the_next_failing_program(
    executor: SandboxExecutor,
) -> None:
    agent, model = agent_of(executor, "print('first')", "def f(:", "final_answer(1)")
    agent.run("Err.")
    assert model.told[2].count("first") == model.told[1].count("first")
    assert "SyntaxError" in model.told[2]


def test_a_final_answer_ends_the_program_though_it_catches_exceptions(executor: SandboxExecutor) -> None:
    program = "try:\n    final_answer(answer={'a': 1})\nexcept Exception:\n    print('caught')\nprice('moon')"
    agent, _ = agent_of(executor, program)
    assert agent.run("Answer.") == {"a": 1}


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("final_answer([*range(3)])", [0, 1, 2]),
        ("final_answer(list(n for n in (1, 2) if (m := n) > 1))", [2]),
        ("def squares():\n    yield from (1, 4)\nfinal_answer(sum(squares()))", 5),
        ("final_answer(None)", None),
        ("final_answer('None')", "None"),
        ("final_answer({1, 2})", "{1, 2}"),
    ],
)
def test_programs_mean_what_they_mean_in_python(executor: SandboxExecutor, program: str, answer: Any) -> None:
    agent, _ = agent_of(executor, program)
    assert agent.run("Answer.") == answer


def test_checks_of_the_answer_are_those_of_the_agent(executor: SandboxExecutor) -> None:
    agent, model = agent_of(
        executor,
        "final_answer(1)",
        "final_answer(2)",
        final_answer_checks=[lambda answer, *_, **__: answer == 2],
    )
    assert agent.run("Answer two.") == 2
    assert len(model.told) == 2


def test_a_final_answer_function_of_the_user_overrides_ours(executor: SandboxExecutor) -> None:
    class Doubled(FinalAnswerTool):
        def forward(self, answer: Any) -> Any:
            return 2 * answer

    executor.send_tools({"final_answer": Doubled()})
    assert executor("final_answer(21)").output == 42


def test_arguments_of_the_task_are_variables(executor: SandboxExecutor) -> None:
    agent, _ = agent_of(executor, "final_answer(sum(numbers))")
    assert agent.run("Add.", additional_args={"numbers": [1, 2, 3]}) == 6


def test_an_invalid_json_is_refused_by_name(executor: SandboxExecutor) -> None:
    with pytest.raises(InvalidArgument, match="'model'"):
        executor.send_variables(variables={"model": object()})


def test_a_program_that_never_ends_is_ended_in_time_and_the_next_one_runs() -> None:
    executor = SandboxExecutor(step_timeout=0.3)
    executor.send_variables(variables={"x": 1})
    with pytest.raises(ProgramFailed, match=r"took longer than 0\.3 s; its variables are kept"):
        executor("while True: pass")
    with pytest.raises(ProgramFailed, match="all variables are gone"):
        executor("sum(range(10 ** 12))")
    assert executor("x").output == 1
    executor.cleanup()


def test_an_agent_may_manage_another(executor: SandboxExecutor) -> None:
    inner_executor = SandboxExecutor()
    inner = CodeAgent(
        tools=[],
        model=Script("final_answer(6 * 7)"),
        executor=inner_executor,
        name="helper",
        description="Multiplies.",
        verbosity_level=LogLevel.OFF,
    )
    outer, model = agent_of(
        executor, "print(helper(task='6 by 7'))", "final_answer('told')", managed_agents=[inner]
    )
    assert outer.run("Ask the helper.") == "told"
    assert "42" in model.told[1]
    inner_executor.cleanup()


def test_after_a_cleanup_it_begins_anew(executor: SandboxExecutor) -> None:
    executor("x = 1")
    executor.cleanup()
    with pytest.raises(ProgramFailed, match="name 'x' is not defined"):
        executor("x")


def test_tools_that_are_offered_no_more_are_gone(executor: SandboxExecutor) -> None:
    tools: dict[str, Tool] = {"price": price}
    executor.send_tools(tools)
    assert executor("price('tea')").output == 2.5
    executor.send_tools({})
    with pytest.raises(ProgramFailed, match="name 'price' is not defined"):
        executor("price('tea')")
