"""The published MCP servers that others use: what .ci/mcp installs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_servers import NODE, PYTHON, published

from envweave_gym.tools import ToolError, ToolRegistry
from envweave_gym.tools.mcp.client import McpServer, McpTimeout, servers_of, tools_of
from envweave_gym.tools.mcp.mcp_session import McpRefused, McpSession


def test_the_server_of_time_answers_with_objects():
    with McpServer.of(published(PYTHON / "mcp-server-time")) as server:
        tools = tools_of([server])
        assert [tool.name for tool in tools] == ["get_current_time", "convert_time"]
        arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        assert "21:00" in tools.call("convert_time", arguments)["target"]["datetime"]
        with pytest.raises(ToolError, match="Invalid timezone"):
            tools.call("get_current_time", {"timezone": "Moon/Crater"})


def test_the_server_of_time_answers_without_a_greeting_too(monkeypatch: pytest.MonkeyPatch):
    """As of 2026-07-28: the Python SDK answers both, so the greeting is left out here."""
    ask = McpSession.ask

    def without_handshake(self: McpSession, method: str, *arguments: Any) -> Any:
        if method == "initialize":
            raise McpRefused("no handshake", -32601)
        return ask(self, method, *arguments)

    monkeypatch.setattr(McpSession, "ask", without_handshake)
    with McpServer.of(published(PYTHON / "mcp-server-time"), timeout=30) as server:
        tools = ToolRegistry([server])
        assert server._session is not None
        assert server._session.version == "2026-07-28"
        assert tools.call("get_current_time", {"timezone": "UTC"})["timezone"] == "UTC"
        with pytest.raises(ToolError, match="Nowhere"):
            tools.call("get_current_time", {"timezone": "Nowhere/At_All"})


def test_the_server_of_git_works_on_a_repository(tmp_path: Path):
    command = published(PYTHON / "mcp-server-git")
    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path], check=True)
    (tmp_path / "a.txt").write_text("hello\n")
    with McpServer.of(command) as server:
        tools = tools_of({"git": server})
        parameters = {each.name: each for each in tools["git_log"].parameters}
        assert (parameters["start_timestamp"].type, parameters["max_count"].default) == ("str | None", 10)
        tools.call("git_add", {"repo_path": str(tmp_path), "files": ["a.txt"]})
        assert "a.txt" in tools.call("git_status", {"repo_path": str(tmp_path)})


def test_the_server_of_files_reads_and_writes_in_its_folder_only(tmp_path: Path):
    with McpServer.of(published(NODE / "mcp-server-filesystem", tmp_path)) as server:
        tools = tools_of([server])
        (edits,) = [each for each in tools["edit_file"].parameters if each.name == "edits"]
        assert edits.type == "list[dict]"
        assert "'oldText': str" in edits.doc
        tools.call("write_file", {"path": str(tmp_path / "a.txt"), "content": "hello"})
        assert (tmp_path / "a.txt").read_text() == "hello"
        assert tools.call("read_text_file", {"path": str(tmp_path / "a.txt")}) == {"content": "hello"}
        with pytest.raises(ToolError, match="Access denied"):
            tools.call("read_text_file", {"path": "/etc/passwd"})


def test_two_servers_of_files_have_tools_of_their_own(tmp_path: Path):
    command = published(NODE / "mcp-server-filesystem", tmp_path)
    written = {"command": command[0], "args": command[1:]}
    config = {"mcpServers": {"one": written, "two": written}}
    servers = servers_of(config)
    tools = ToolRegistry(servers.values())
    assert {"list_directory", "two_list_directory"} <= {tool.name for tool in tools}
    for server in servers.values():
        server.close()


def node_options() -> dict[str, str]:
    """What Node 18, that of Debian 12, has to be told before it has what this server uses of it."""
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    return {"NODE_OPTIONS": "--experimental-global-webcrypto"} if version.startswith("v18.") else {}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The server that has everything, behind a URL."""
    command = [*published(NODE / "mcp-server-everything"), "streamableHttp"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen(
        command,
        env={**os.environ, **node_options(), "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = ""
        while "listening" not in said and process.poll() is None:
            said = process.stderr.readline()
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


@pytest.fixture(params=["stdio", "http"])
def everything(request: pytest.FixtureRequest) -> Iterator[McpServer]:
    """The server that has everything."""
    by_url = request.param == "http"
    spec = request.getfixturevalue("address") if by_url else published(NODE / "mcp-server-everything")
    with McpServer.of(spec, name="everything", timeout=10) as server:
        yield server


def test_the_server_of_everything_returns_all_kinds_of_results(everything: McpServer):
    tools = tools_of([everything])
    assert tools.call("echo", {"message": "ü"}) == "Echo: ü"
    assert tools.call("get_sum", {"a": 2, "b": 3}).startswith("The sum of 2 and 3 is 5")
    text, image, _ = tools.call("get_tiny_image", {})
    assert "image" in text
    assert (image["type"], image["mime_type"], image["base64_chars"] > 1000) == ("image", "image/png", True)
    weather = tools["get_structured_content"]
    assert weather.parameters[0].type == "Literal['New York', 'Chicago', 'Los Angeles']"
    assert set(weather.call({"location": "Chicago"})) == {"temperature", "conditions", "humidity"}
    assert re.search(r"'temperature': float", weather.doc)
    links = tools.call("get_resource_links", {"count": 2})
    assert [each["type"] for each in links[1:]] == ["resource_link"] * 2


def test_a_long_operation_of_the_server_of_everything_ends_at_the_deadline(everything: McpServer):
    everything.tools()
    hurried = McpServer.of(
        {"url": everything.spec.url} if everything.spec.url else list(everything.spec.command), timeout=0.5
    )
    with hurried:
        hurried.tools()
        begun = time.monotonic()
        with pytest.raises(McpTimeout, match="has not answered tools/call in time"):
            hurried.call("trigger-long-running-operation", {"duration": 20, "steps": 2})
        assert time.monotonic() - begun < 1.5
        assert hurried.call("echo", {"message": "still here"}) == "Echo: still here"


def test_the_server_of_everything_says_what_is_wrong_with_arguments(everything: McpServer):
    tools = tools_of([everything])
    with pytest.raises(ToolError, match=r"(?i)invalid"):
        tools.call("get_sum", {"a": "two", "b": 3})
    with pytest.raises(ToolError, match=r"get_sum\(\) takes no argument 'c'"):
        tools.call("get_sum", {"a": 1, "b": 2, "c": 3})
    with pytest.raises(ToolError, match="no-such-tool"):
        everything.call("no-such-tool")


def test_a_session_that_the_server_knows_no_more_is_opened_anew(address: str):
    with McpServer.of(address) as server:
        server.tools()
        assert server._session is not None
        transport = server._session.transport
        transport._session = {"Mcp-Session-Id": "long-gone"}  # type: ignore[attr-defined]
        assert server.call("echo", {"message": "x"}) == "Echo: x"
        assert server._session.transport is not transport
