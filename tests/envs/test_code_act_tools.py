"""envweave/CodeAct-v0 with tools: functions, MCP servers, what is told of calls."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from code_episodes import CODE_ACT, ran, settles, value
from mcp_servers import gone

import envweave_gym as ew
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.episode.stream import EventKind
from envweave_gym.tools import ToolError, ToolRegistry
from envweave_gym.tools.mcp.client import McpServer

Make = Callable[..., Any]
SERVER = str(Path(__file__).parents[1] / "support" / "mcp_misbehaving.py")


def server(how: str, **more: Any) -> dict[str, Any]:
    """What ``mcp.json`` says of a server that behaves in this way."""
    return {"command": sys.executable, "args": ["-S", SERVER, how], **more}


def servers_below() -> list[int]:
    """The processes of servers that this one has started."""
    return [child.pid for child in psutil.Process().children(recursive=True) if SERVER in command_of(child)]


def command_of(process: psutil.Process) -> list[str]:
    """Its command; one that has ended has none."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # or a zombie, which is one of these
        return []


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    And no more.
    """
    return a + b


def size_of(text: str) -> int:
    """The length of a text."""
    return len(text)


def text_of(size: int) -> str:
    """A text of some length."""
    return "x" * size


def fail(why: str) -> None:
    """Fail."""
    raise LookupError(why)


# Functions


def test_functions_are_called_here_by_name_and_by_position(code_act: Make) -> None:
    env = code_act(tools=[add, {"double": lambda text: 2 * text}])
    assert value(env, "add(1), add(2, 3), add(b=5, a=1), double('la')") == [2, 5, 6, "lala"]


@pytest.mark.parametrize(
    "tools", [add, [add], (add,), {"add": add}, ToolRegistry([add]), [ToolRegistry(add)]]
)
def test_tools_are_given_in_any_form(code_act: Make, tools: Any) -> None:
    assert value(code_act(tools=tools), "add(1)") == 2


def test_the_tools_are_in_the_first_message(code_act: Make) -> None:
    env = code_act(tools=[add], files=True, task="Add.")
    (reported,) = ew.messages_of(env.reset()[1])
    task, how, functions = reported["content"].split("\n\n")
    assert task == "Add."
    assert "final_answer" in how
    assert functions.splitlines() == [
        "There are these functions:",
        "- add(a: int, b: int = 1) -> int: Add two numbers.",
        "- file_read(path: str) -> str: The text of a file.",
        "- file_write(path: str, content: str) -> str: Write a text into a file.",
        "- final_answer(x: Any) -> None: Give the answer, which ends the episode.",
    ]


def test_an_error_of_a_tool_can_be_caught_and_tells_one_line(code_act: Make) -> None:
    env = code_act(tools=[fail])
    assert value(env, "try:\n    fail('no')\nexcept ToolError as error:\n    said = str(error)\nsaid") == (
        "LookupError: no"
    )
    assert ran(env, "fail('no')").error.endswith("ToolError: LookupError: no")


def test_wrong_arguments_fail_before_anything_is_called(code_act: Make) -> None:
    called: list[int] = []
    env = code_act(tools={"note": lambda number: called.append(number)})
    for code in ("note()", "note(1, 2)", "note(n=1)", "note(object())"):
        assert ran(env, code).error_type == "TypeError"
    assert called == []


def test_calls_and_their_results_are_events(code_act: Make) -> None:
    env = code_act(tools=[add, fail])
    events = env.step("add(1, b=2)\ntry:\n    fail('no')\nexcept ToolError: pass")[4]["stream"].events
    reported = [
        (one.kind, one.data) for one in events if one.kind in (EventKind.TOOL_CALL, EventKind.TOOL_RESULT)
    ]
    assert reported == [
        (EventKind.TOOL_CALL, {"name": "add", "arguments": {"a": 1, "b": 2}}),
        (EventKind.TOOL_RESULT, {"name": "add", "result": 3}),
        (EventKind.TOOL_CALL, {"name": "fail", "arguments": {"why": "no"}}),
        (EventKind.TOOL_RESULT, {"name": "fail", "error": "LookupError: no"}),
    ]
    assert [one.seq for one in events] == list(range(events[0].seq, events[0].seq + len(events)))


def test_the_bytes_of_an_episodes_calls_are_limited(code_act: Make) -> None:
    env = code_act(tools={"take": size_of, "give": text_of})
    loop = (
        f"taken = 0\ntry:\n  while True: take('x' * {(4 << 20) - 99}); taken += 1\n"
        "except ToolError as error: said = str(error)"
    )
    done = ran(env, f"{loop}\n(taken, said)")
    assert done.value[0] == 15
    assert "67108864 bytes" in done.value[1]
    assert ran(env, "take('x')").error_type == "ToolError"
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert ran(other, "taken, said").value == done.value
        assert ran(other, "take('x')").error_type == "ToolError"
        other.close()
    env.reset()
    assert value(env, "take('x')") == 1
    assert "bytes" in ran(env, f"for _ in range(5): give({15 << 20})").error


def test_a_lost_step_gives_an_episode_no_new_bytes(code_act: Make) -> None:
    env = code_act(tools={"take": size_of})
    for _ in range(2):
        ran(env, "import os\nfor _ in range(8): take('x' * 4194000)\nos._exit(1)")
    assert "bytes" in ran(env, "take('x')").error


def test_calls_run_side_by_side_and_the_clock_stops_meanwhile(code_act: Make) -> None:
    barrier = threading.Barrier(4, timeout=10)

    def meet(number: int) -> int:
        barrier.wait()
        time.sleep(1.1)
        return number

    env = code_act(tools=[meet], step_timeout=1.0)
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: met = list(pool.map(meet, range(4)))\n"
        "met"
    )
    assert value(env, program) == [0, 1, 2, 3]


def test_an_answer_after_its_step_is_dropped(code_act: Make) -> None:
    asked, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        asked.set()
        may_end.wait(10)
        return "late"

    def is_asked() -> bool:
        return asked.wait(10)

    def end_it() -> str:
        may_end.set()
        time.sleep(0.3)
        return "in time"

    env = code_act(tools=[slow, is_asked, end_it])
    env.step("import threading\nthreading.Thread(target=slow, daemon=True).start()\nis_asked()")
    events = env.step("end_it()")[4]["stream"].events
    assert [one.data.get("result") for one in events if one.kind == EventKind.TOOL_RESULT] == ["in time"]


def test_a_tool_is_what_it_was_in_the_next_step(code_act: Make) -> None:
    env = code_act(tools=[add])
    assert value(env, "add = None") is None
    assert value(env, "add(1)") == 2


def test_tools_hide_nothing_that_programs_find(code_act: Make) -> None:
    env = code_act(tools={"math": lambda: 1, "ToolError": lambda: 2, "print": lambda: 3})
    assert value(env, "math.floor(1.5), math_(), ToolError_(), print_()") == [1, 1, 2, 3]


async def later() -> None:
    """Never awaited."""


def any_number(*numbers: int) -> None:
    """No names."""


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([lambda x: x], "no function with a name"),
        ([later], "the tool later is async"),
        ([any_number], "takes arguments by name"),
        ([add, add], "there is a tool 'add' already"),
        ([5], "no function with a name"),
        ({"final_answer": add}, "programs have a function 'final_answer' already"),
        ([None], "no function with a name"),
        ([{"command": 5}], "5 is no command"),
        ([{"comand": "x"}], "there is no 'comand' .did you mean 'command'"),
        ({"mcpServers": 5}, "is not like"),
        ("http://", "is not a URL like"),
        (["http://h/mcp", "x y"], "'x y' is not a URL like"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_invalid_tools_are_refused_by_the_constructor(tools: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as refusal:
        ew.make(CODE_ACT, tools=tools)
    assert str(refusal.value).startswith(f"{CODE_ACT}: ")


# Files


def test_files_of_an_episode_are_read_and_written_and_slash_tmp_is_its_folder(code_act: Make) -> None:
    env = code_act(files=True)
    program = (
        "file_write('/tmp/notes/a.txt', 'héllo')\nfile_read('/tmp/notes/a.txt'), file_read('notes/a.txt')"
    )
    assert value(env, program) == ["héllo", "héllo"]
    assert not Path("/tmp/notes/a.txt").exists()
    assert ran(env, "file_read('/etc/passwd')").error_type == "PermissionError"
    env.reset()
    assert ran(env, "file_read('/tmp/notes/a.txt')").error_type == "FileNotFoundError"


# MCP servers


@pytest.mark.parametrize(
    "tools",
    [
        server("well"),
        [server("well")],
        [[sys.executable, "-S", SERVER, "well"]],
        [sys.executable, "-S", SERVER, "well"],
        {"mcpServers": {"adder": server("well")}},
    ],
    ids=["dict", "list", "list of a command", "command", "mcp.json"],
)
def test_tools_of_servers_are_functions(code_act: Make, tools: Any) -> None:
    env = code_act(tools=tools)
    assert value(env, "add(2), add(a=2, b=3)") == ["3", "5"]


def test_servers_and_functions_go_together(code_act: Make) -> None:
    env = code_act(tools=[server("well"), {"double": lambda text: 2 * text}])
    assert value(env, "double(add(2))") == "33"


def test_a_server_is_shared_by_episodes_and_ends_with_the_environment(code_act: Make) -> None:
    env = code_act(tools=server("well"))
    before = servers_below()
    env.reset()
    value(env, "add(1)")
    assert servers_below() == before != []
    env.close()
    assert gone(before)


def test_environments_of_a_process_share_the_servers_that_they_describe_alike(code_act: Make) -> None:
    rows = ew.make(CODE_ACT, num_envs=3, tools=[server("well")])
    rows.reset(seed=0)
    shared = servers_below()
    other = code_act(tools={"mcpServers": {"mcp_misbehaving": server("well")}})
    copied = copy.deepcopy(other)
    different = code_act(tools=server("well", timeout=7.0))
    own = set(servers_below()) - set(shared)
    assert len(own) == len(shared)
    different.close()
    assert gone([*own])
    rows.close()
    assert value(other, "add(1)") == value(copied, "add(1)") == "2"
    other.close()
    assert set(servers_below()) == set(shared)
    copied.close()
    assert gone(shared)


def test_a_shared_server_ends_with_the_last_that_was_forgotten() -> None:
    env = ew.make(CODE_ACT, tools=[server("well")])
    env.reset(seed=0)
    started = servers_below()
    del env
    gc.collect()
    assert started
    assert gone(started, 5.0)


def test_each_episode_has_a_server_of_its_own_where_that_is_wanted(code_act: Make) -> None:
    env = code_act(tools=server("well"), tools_per_episode=True)
    first = servers_below()
    env.reset()
    assert value(env, "add(1)") == "2"
    second = servers_below()
    assert gone(first)
    assert set(second) - set(first)
    env.close()
    assert gone(second)


def test_a_server_that_is_made_already_is_its_hosts(
    code_act: Make, misbehaving: Callable[..., McpServer]
) -> None:
    made = misbehaving("well")
    env = code_act(tools=made)
    assert value(env, "add(1)") == "2"
    one_of_its_own = code_act(tools=made, tools_per_episode=True)
    assert value(one_of_its_own, "add(1)") == "2"
    both = servers_below()
    assert len(both) > 1
    one_of_its_own.close()
    env.close()
    assert settles(lambda: len(servers_below()) < len(both))
    assert servers_below() != []
    assert made.tools()[0].call({"a": 1}) == "2"


def test_a_server_that_never_answers_is_an_error_of_the_program(code_act: Make, tmp_path: Path) -> None:
    spec = server("silent_in_calls", timeout=0.3)
    spec["args"].append(str(tmp_path / "reported"))
    env = code_act(tools=spec)
    assert ran(env, "add(1)").error_type == "ToolError"
    assert value(env, "1 + 1") == 2


def test_a_server_that_fails_tells_the_program_why(code_act: Make) -> None:
    assert "line one" in ran(code_act(tools=server("failing")), "add(1)").error


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("silent", ToolError),
        ("dies_at_once", ToolError),
        ("bad_schema", InvalidArgument),
        ("no_list", ToolError),
    ],
)
def test_a_server_that_cannot_be_used_is_said_so_at_the_reset_and_leaves_nothing(
    how: str, error: type[Exception]
) -> None:
    tools = [server("well"), server(how, connect_timeout=0.5, name="wrong")]
    env = ew.make(CODE_ACT, tools=tools)
    with pytest.raises(error, match="wrong"):
        env.reset()
    assert gone(servers_below())
    env.close()


def test_a_command_that_is_not_there_is_said_so(code_act: Make) -> None:
    env = ew.make(CODE_ACT, tools=["/no/such/server"])
    with pytest.raises((ToolError, InvalidArgument, ew.NotAvailable), match="/no/such/server"):
        env.reset()
    env.close()


def test_a_result_that_is_too_large_is_an_error_and_costs_no_variables(code_act: Make) -> None:
    env = code_act(tools={"much": lambda mb: "x" * (mb << 20)})
    assert value(env, "kept = len(much(8)); kept") == 8 << 20
    for size in (20, 64):
        done = ran(env, f"much({size})")
        assert re.search(r"ToolError: much gave \d+ bytes.* 16777216", done.error)
    assert value(env, "kept") == 8 << 20
