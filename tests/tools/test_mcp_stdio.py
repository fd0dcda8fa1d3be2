"""MCP servers that misbehave on their stdin and stdout: one sentence each, and nothing hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from mcp_servers import gone, process_of

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.tools import ToolError, ToolRegistry
from envweave_gym.tools.mcp.client import McpClosed, McpServer, McpTimeout

Make = Callable[..., McpServer]


def test_a_tool_is_a_function_with_a_signature(misbehaving: Make):
    (tool,) = misbehaving("well").tools()
    assert (tool.name, tool.origin) == ("add", "well")
    assert [(each.name, each.type, each.required, each.default) for each in tool.parameters] == [
        ("a", "int", True, None),
        ("b", "int", False, 1),
    ]
    assert tool.call({"a": 2}) == "3"
    assert tool.call({"a": 2, "b": 5}) == "7"


def test_nothing_is_opened_before_it_is_asked_for_something(misbehaving: Make):
    server = misbehaving("well")
    assert not server.is_open
    server.close()
    assert server.call("add", {"a": 1}) == "2"
    server.close()
    assert server.call("add", {"a": 1}) == "2"


def test_silence_ends_at_the_deadline(misbehaving: Make):
    begun = time.monotonic()
    with pytest.raises(McpTimeout, match="MCP server 'silent' has not answered initialize in time"):
        misbehaving("silent", connect_timeout=0.3).tools()
    assert time.monotonic() - begun < 2.5


def test_each_caller_of_a_silent_server_times_out_at_its_own_deadline(misbehaving: Make):
    server = misbehaving("silent", connect_timeout=0.5)
    begun = time.monotonic()
    with ThreadPoolExecutor(20) as threads:  # one after the other they would take 10 s
        for call in [threads.submit(server.tools) for _ in range(20)]:
            with pytest.raises(McpTimeout, match=r"MCP server 'silent' has not (answered|been opened)"):
                call.result()
    assert time.monotonic() - begun < 5


def test_a_flood_ends_at_the_deadline(misbehaving: Make):
    server = misbehaving("flooding", timeout=0.3)
    server.tools()
    begun = time.monotonic()
    for _ in range(2):
        with pytest.raises(McpTimeout, match="'flooding' has not answered tools/call in time"):
            server.call("add", {"a": 1})
    assert time.monotonic() - begun < 6


def test_a_request_that_timed_out_is_cancelled(misbehaving: Make, tmp_path: Path):
    reported = tmp_path / "cancelled.json"
    server = misbehaving("silent_in_calls", reported, timeout=0.3)
    server.tools()
    with pytest.raises(McpTimeout, match="has not answered tools/call in time"):
        server.call("add", {"a": 1})
    assert [tool.name for tool in server.tools()] == ["add"]
    assert json.loads(reported.read_text())["requestId"] == 3


def test_a_late_answer_is_not_taken_for_another_call(misbehaving: Make):
    server = misbehaving("late", timeout=5.0)
    server.tools()
    object.__setattr__(server.spec, "timeout", 0.2)
    with pytest.raises(McpTimeout):
        server.call("add", {"a": 100})
    object.__setattr__(server.spec, "timeout", 5.0)
    assert [server.call("add", {"a": n}) for n in range(3)] == ["1", "2", "3"]


def test_lines_that_are_no_messages_are_passed_over(misbehaving: Make):
    assert misbehaving("junk").call("add", {"a": 1}) == "2"


def test_a_server_that_prints_only_junk_is_given_up(misbehaving: Make):
    with pytest.raises(ToolError, match=r"'only_junk' prints 'junk junk .* that is no message of MCP"):
        misbehaving("only_junk").tools()


def test_a_response_to_no_request_is_an_error(misbehaving: Make):
    server = misbehaving("wrong_id")
    with pytest.raises(ToolError, match=r"'wrong_id' .*\b999\b"):
        server.call("add", {"a": 1})
    assert [tool.name for tool in server.tools()] == ["add"]


def test_a_server_that_dies_in_a_call_raises_with_its_reason_and_the_call_is_not_repeated(
    misbehaving: Make, tmp_path: Path
):
    calls = tmp_path / "calls"
    server = misbehaving("dies_in_calls", calls, env={"KEY": "s3cr3t-key"})
    server.tools()
    with pytest.raises(McpClosed) as caught:
        server.call("add", {"a": 1})
    assert str(caught.value) == (
        "MCP server 'dies_in_calls' has ended (exit code 3): out of paper, with the key …"
    )
    assert calls.read_text() == "x"
    assert server.call("add", {"a": 1}) == "2"


def test_a_call_of_a_read_only_tool_is_repeated_after_a_death(misbehaving: Make, tmp_path: Path):
    calls = tmp_path / "calls"
    (tool,) = misbehaving("dies_in_calls", calls, "repeatable").tools()
    assert tool.call({"a": 1}) == "2"
    assert calls.read_text() == "xx"


def test_a_server_that_died_meanwhile_is_started_again(misbehaving: Make):
    server = misbehaving("well")
    assert server.call("add", {"a": 1}) == "2"
    process = process_of(server)
    process.kill()
    assert gone([process.pid])
    assert server.call("add", {"a": 2}) == "3"


def test_a_server_that_cannot_start_says_why_once(misbehaving: Make):
    begun = time.monotonic()
    with pytest.raises(McpClosed, match=r"'dies_at_once' has ended \(exit code 4\): no such configuration$"):
        misbehaving("dies_at_once").tools()
    assert time.monotonic() - begun < 2.0


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(McpClosed, match="'no-such-server' cannot be started: no-such-server: No such file"):
        McpServer.of(["no-such-server"]).tools()


def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(InvalidArgument, match="cannot be started in '/no/such/folder': No such file"):
        McpServer.of({"command": "true", "cwd": "/no/such/folder"}).tools()


def test_a_message_without_end_is_given_up(misbehaving: Make):
    server = misbehaving("huge", timeout=20.0)
    with pytest.raises(ToolError, match="'huge' sends a message of more than 64 MB"):
        server.call("add", {"a": 1})


def test_large_messages_pass(misbehaving: Make):
    text = "é" * 4_000_000
    assert misbehaving("large", timeout=20.0).call("echo", {"a": text}) == text


def test_json_is_read_as_python_writes_it_and_sent_as_it_should_be(misbehaving: Make):
    tools = ToolRegistry([misbehaving("loose")])
    assert tools.call("add", {"a": 1}) == {"half": "?", "nan": "nan"}
    assert misbehaving("large").call("echo", {"a": ["half \ud800", np.arange(2)]}) == "['half ?', [0, 1]]"


def test_a_server_that_does_not_read_ends_at_the_deadline(misbehaving: Make):
    server = misbehaving("deaf", timeout=0.4)
    server.tools()
    with pytest.raises(ToolError, match=r"'deaf' .*in the middle of a message|'deaf' has not answered"):
        server.call("echo", {"a": "x" * 1_000_000})


def test_a_server_that_blocks_on_its_output_is_read_during_a_write(misbehaving: Make):
    text = "x" * 1_000_000
    assert misbehaving("stuck").call("echo", {"a": text}) == text


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("bad_schema", "'bad_schema' describes the tool 'add' badly: its properties are"),
        ("no_list", "'no_list' answers tools/list with None where its tools should be"),
        ("old", "'old' speaks MCP of '1999-01-01'; known are 2024-11-05"),
        ("refusing", r"'refusing' refuses initialize: go away \(-32000\)"),
    ],
)
def test_an_invalid_server_is_an_error_of_one_line(misbehaving: Make, how: str, sentence: str):
    with pytest.raises((ToolError, InvalidArgument), match=sentence) as caught:
        misbehaving(how).tools()
    assert "\n" not in str(caught.value)


def test_a_response_without_a_result_is_an_error(misbehaving: Make):
    with pytest.raises(ToolError, match="'no_result' answers tools/call with None, which is no result"):
        misbehaving("no_result").call("add", {"a": 1})


def test_a_list_in_pages_is_read_to_its_end(misbehaving: Make):
    assert [tool.name for tool in misbehaving("paging").tools()] == ["add0", "add1", "add2"]


def test_a_ping_is_answered_and_nothing_else_is_offered(misbehaving: Make):
    asked = json.loads(misbehaving("chatty").call("add", {"a": 1}))
    assert asked == {"p": {}, "s": -32601, "r": -32601}


def test_a_server_that_takes_no_greeting_is_asked_without(misbehaving: Make):
    server = misbehaving("stateless")
    (tool,) = server.tools()
    assert tool.call({"a": 2}) == "3"
    assert server._session is not None
    assert server._session.version == "2026-07-28"
    with pytest.raises(ToolError, match="'stateless': add asks for input"):
        tool.call({"a": 0})


def test_the_error_of_a_failed_tool_is_its_text(misbehaving: Make):
    with pytest.raises(ToolError) as caught:
        misbehaving("failing").call("add", {"a": 1})
    assert str(caught.value) == "line one\nline two"


def test_a_server_may_write_much_to_stderr(misbehaving: Make):
    server = misbehaving("noisy")
    assert [server.call("add", {"a": n}) for n in range(3)] == ["1", "2", "3"]


def test_calls_of_many_threads_run_side_by_side(misbehaving: Make):
    server = misbehaving("slow")
    server.tools()
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: server.call("add", {"a": 300 + n}), range(8)))
    assert found == [str(301 + n) for n in range(8)]
    assert time.monotonic() - begun < 1.5


def test_each_of_many_threads_gets_its_own_answer(misbehaving: Make):
    server = misbehaving("well")
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda n: server.call("add", {"a": n}), range(500)))
    assert found == [str(n + 1) for n in range(500)]


def wait_for_requests(requests: Path, count: int) -> None:
    deadline = time.monotonic() + 10
    while not requests.exists() or len(requests.read_text()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_call_ends_when_the_server_is_closed_by_another_thread(misbehaving: Make, tmp_path: Path):
    server = misbehaving("slow", tmp_path / "requests", timeout=30.0)
    server.tools()
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(server.call, "add", {"a": 20_000}) for _ in range(2)]
        wait_for_requests(tmp_path / "requests", 2)
        server.close()
        for call in calls:
            with pytest.raises(McpClosed, match=r"'slow' (was closed|has ended)"):
                call.result(5)


def test_a_server_that_is_closed_in_a_call_is_not_started_for_it_again(misbehaving: Make, tmp_path: Path):
    server = misbehaving("slow", "repeatable", tmp_path / "requests", timeout=30.0)
    (tool,) = server.tools()
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(tool.call, {"a": 20_000})
        wait_for_requests(tmp_path / "requests", 1)
        server.close()
        with pytest.raises(McpClosed):
            call.result(5)
    assert not server.is_open
    assert server.call("add", {"a": 1}) == "2"


def test_a_server_that_is_closed_while_it_is_opened_is_not_left(misbehaving: Make, tmp_path: Path):
    server = misbehaving("slow_to_greet", tmp_path / "requests")
    with ThreadPoolExecutor(1) as threads:
        opened = threads.submit(server.tools)
        wait_for_requests(tmp_path / "requests", 1)
        server.close()
        with pytest.raises(McpClosed, match="'slow_to_greet' was closed while it was opened"):
            opened.result(10)
    assert not server.is_open


def test_a_server_inherits_few_environment_variables(
    misbehaving: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MY_KEY", "one")
    (tmp_path / "key").write_text("two\n")
    env = {"KEY": "env:MY_KEY", "OTHER": f"file:{tmp_path / 'key'}", "PLAIN": "three"}
    found = json.loads(misbehaving("environment", env=env).call("environment"))["env"]
    assert (found["KEY"], found["OTHER"], found["PLAIN"]) == ("one", "two", "three")
    assert "PATH" in found
    assert "HF_TOKEN" not in found
    assert "MY_KEY" not in found
