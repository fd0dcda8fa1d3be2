"""Tools of the host, as programs call them and as a caller answers them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.sandbox import Call, Execution, Names, Sandbox, Session
from envweave_gym.sandbox.execution import MAX_OPEN_BYTES, Step
from envweave_gym.tools import ToolError, ToolRegistry


class Stop(BaseException):
    """What no tool should raise."""


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def refuse(why: str) -> None:
    raise ToolError(why)


def stop() -> None:
    raise Stop


def strange() -> Any:
    return {"a": {1}, "b": float("nan"), "c": "\ud800"}


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    opened = sandbox.open()
    opened.name(Names(), ToolRegistry([add, nap, refuse, stop, strange]))
    yield opened
    opened.close()


@pytest.fixture
def asking(sandbox: Sandbox) -> Iterator[Session]:
    """A session whose calls the caller answers."""
    opened = sandbox.open()
    opened.name(Names(), ToolRegistry({"ask": add, "nap": nap}), deferred=("ask",))
    yield opened
    opened.close()


def calls(session: Session) -> list[Call]:
    """The calls that a step waits for."""
    found = session.wait()
    assert not isinstance(found, Execution), found
    return found


def ended(session: Session) -> Execution:
    """How a step ends."""
    done = session.wait()
    assert isinstance(done, Execution)
    return done


def test_a_tool_looks_like_a_function_and_is_one(session: Session) -> None:
    assert session.run("add(1), add(1, 1), add(b=3, a=4)").value == [3, 2, 7]
    assert session.run("import inspect; str(inspect.signature(add)), add.__doc__").value == [
        "(a: 'int', b: 'int' = 2) -> 'int'",
        session.run("add.__doc__").value,
    ]
    assert session.usage.calls == 0


def test_wrong_arguments_raise_in_the_program_without_a_call_of_the_host(session: Session) -> None:
    done = session.run("add(1, c=2)")
    assert done.error_type == "TypeError"
    assert "add(" in done.error
    assert session.run("add(object())").error_type == "TypeError"
    assert session.usage.calls == 0


def test_a_failing_tool_is_an_error_in_the_program(session: Session) -> None:
    assert session.run("try: refuse('no')\nexcept ToolError as e: x = str(e)\nx").value == "no"
    assert session.run("add('a', 1)").error_type == "ToolError"
    assert session.run("stop()").error.endswith("ToolError: stop failed: Stop")
    assert session.run("add(1)").value == 3


def test_the_result_of_a_tool_is_json(session: Session) -> None:
    assert session.run("strange()").value == {"a": "{1}", "b": "nan", "c": "?"}


def test_many_calls_are_in_flight_at_once(session: Session) -> None:
    session.run("from concurrent.futures import ThreadPoolExecutor as T")
    code = "with T(32) as t: x = sum(t.map(nap, [0.2] * 32))\nround(x, 1)"
    began = time.monotonic()
    assert session.run(code).value == 6.4
    assert time.monotonic() - began < 2
    assert session.usage.calls == 32


def test_tools_of_one_session_do_not_wait_for_those_of_another(sandbox: Sandbox, session: Session) -> None:
    other = sandbox.open()
    never = threading.Event()
    other.name(Names(), ToolRegistry({"never": lambda: never.wait()}))
    code = "import threading\nfor _ in range(100): threading.Thread(target=never, daemon=True).start()"
    try:
        assert other.run(code).success
        assert session.run("add(1)").value == 3
    finally:
        never.set()
        other.close()


def test_the_number_of_tool_calls_in_a_step_is_limited(session: Session) -> None:
    done = session.run("for _ in range(10001): add(1)", timeout=20)
    assert "at most 10000 calls" in done.error
    assert session.run("add(1)").value == 3


def test_the_bytes_of_waiting_calls_are_limited() -> None:
    step = Step(10.0, 0, None, "")
    assert step.open_call(1, MAX_OPEN_BYTES)
    assert not step.exceeds_limits()
    assert step.open_call(2, 1)
    assert step.exceeds_limits()
    step.replies.append((1, "{}"))
    assert step.take_replies() == ["{}"]
    assert not step.exceeds_limits()


def test_a_call_counts_with_the_bytes_of_its_frame(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envweave_gym.sandbox.execution.MAX_OPEN_BYTES", 1000)
    assert session.run("add('x' * 500, 'y')").value == "x" * 500 + "y"
    done = session.run("add('x' * 1000, 'y')")
    assert (done.error_type, "256 with 33554432 bytes" in done.error) == ("ToolError", True)
    assert session.run("add(1)").value == 3


def test_names_that_were_tools_are_tools_again(session: Session) -> None:
    session.run("add = None; del nap")
    assert session.run("add(1), nap(0)").value == [3, 0]
    session.name(Names(), ToolRegistry([add]))
    assert session.run("nap(0)").error_type == "NameError"


def test_the_caller_answers(asking: Session) -> None:
    asking.begin("x = ask(1)\ny = ask(x['a'])\nx, y")
    (first,) = calls(asking)
    assert (first.name, first.arguments) == ("ask", {"a": 1})
    asking.answer(first, {"a": 5})
    (second,) = calls(asking)
    asking.answer(first, "ignored")
    asking.answer(second, error="no")
    done = ended(asking)
    assert done.error.endswith("ToolError: no")
    assert asking.run("x").value == {"a": 5}


def test_calls_of_several_threads_are_handed_out_together(asking: Session) -> None:
    asking.run("from concurrent.futures import ThreadPoolExecutor as T")
    asking.begin("with T(3) as t: x = list(t.map(ask, [1, 2, 3]))\nx")
    found: list[Call] = []
    while len(found) < 3:
        found += calls(asking)
    for call in reversed(found):
        asking.answer(call, 10 * call.arguments["a"])
    assert ended(asking).value == [10, 20, 30]


def test_the_time_the_caller_takes_does_not_count_at_all(asking: Session) -> None:
    asking.begin("ask(1)", timeout=0.05)
    (call,) = calls(asking)
    time.sleep(1.2)  # more than all time of the step
    asking.answer(call, 4)
    assert ended(asking).value == 4
    assert asking.usage.wall < 1


def test_an_answer_that_is_no_json_is_refused_and_another_may_follow(asking: Session) -> None:
    asking.begin("ask(1)")
    (call,) = calls(asking)
    with pytest.raises(InvalidArgument, match="ask is answered with"):
        asking.answer(call, {1, 2})
    asking.answer(call, 3)
    assert ended(asking).value == 3


def test_one_program_at_a_time(asking: Session) -> None:
    with pytest.raises(InvalidArgument, match="no program runs"):
        asking.wait()
    asking.begin("ask(1)")
    for misuse in (asking.begin, asking.run):
        with pytest.raises(InvalidArgument, match="runs already"):
            misuse("1")
    with pytest.raises(InvalidArgument, match="runs already"):
        asking.fork()


def test_a_call_without_a_server_fails(asking: Session) -> None:
    assert "must answer this tool call" in asking.run("ask(1)").error


def test_an_episode_may_be_closed_while_a_call_waits(sandbox: Sandbox) -> None:
    session = sandbox.open()
    session.name(Names(), ToolRegistry({"ask": add}), deferred=("ask",))
    session.begin("ask(1)")
    (call,) = calls(session)
    session.close()
    session.answer(call, 1)
