"""MCP servers as people write them down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.tools.mcp.client import McpServer, servers_of, tools_of


@pytest.mark.parametrize(
    ("given", "name", "command"),
    [
        (["mcp-server-time"], "mcp-server-time", ("mcp-server-time",)),
        (["python", "-m", "my_server"], "my_server", ("python", "-m", "my_server")),
        (["npx", "-y", "@scope/files@1.2", "/x"], "files", ("npx", "-y", "@scope/files@1.2", "/x")),
        ({"command": "uvx", "args": ["tool"]}, "tool", ("uvx", "tool")),
        ({"command": ["node", Path("/x/srv.js")]}, "srv", ("node", "/x/srv.js")),
        (["python", "-c", "import this"], "python", ("python", "-c", "import this")),
        ({"command": "run", "name": "mine"}, "mine", ("run",)),
    ],
)
def test_commands(given: Any, name: str, command: tuple[str, ...]):
    server = McpServer.of(given)
    assert (server.name, server.spec.command, server.spec.timeout) == (name, command, 30.0)


def test_urls():
    server = McpServer.of("https://example.com:8443/mcp", timeout=3, name="far")
    assert (server.spec.url, server.spec.timeout) == ("https://example.com:8443/mcp", 3)
    assert (server.name, McpServer.of("http://example.com/mcp").name) == ("far", "example.com")
    assert McpServer.of(server) is server


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (3, "MCP server: 3 is none; give a command as list, a dict as in mcp.json, or a URL"),
        ("mcp-server-time", "'mcp-server-time' is not a URL like 'http://host:port/mcp'; give a command as"),
        ("http://", "is not a URL"),
        ("http://host:99999/", "is not a URL"),
        ("http://me:secret@host/", "its URL holds a secret; give headers="),
        ([], "MCP server 'mcp': give either its command or its url"),
        ({}, "give either its command or its url"),
        ({"command": ["a"], "url": "http://host"}, "give either its command or its url"),
        ({"comand": ["a"]}, "there is no 'comand' .did you mean 'command'"),
        (["a", 3], "its command has 3, which is no word of one"),
        (["a", "b\0"], r"has 'b.*which is no word of one"),
        ({"command": 3}, "3 is no command; give a list of texts"),
        ({"command": "a", "args": "b c"}, "'b c' is no command; give a list of texts"),
        ({"command": "a", "env": {"A": 1}}, r"env\['A'\] is not a text"),
        ({"command": "a", "env": ["A=1"]}, "env is not a dict of texts, but a list"),
        ({"command": "a", "headers": {"A": "1"}}, "headers= is not for a server with a command"),
        ({"url": "http://host", "cwd": "/"}, "cwd= is not for a server with a url"),
        ({"command": "a", "cwd": 3}, "cwd=3 is not the path of a folder"),
        ({"command": "a", "timeout": 0}, "MCP server 'a': timeout=0 is not a number of seconds"),
        ({"command": "a", "connect_timeout": "1"}, "connect_timeout='1' is not a number of seconds"),
        ({"command": "a", "name": ""}, "name='' is not a name"),
    ],
)
def test_an_invalid_description_is_refused_in_one_sentence(given: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        McpServer.of(given)


def test_the_content_of_a_file_names_its_servers():
    servers = servers_of(
        {
            "mcpServers": {
                "time": {"command": "mcp-server-time", "type": "stdio", "autoApprove": []},
                "web": {"type": "http", "url": "http://host/mcp", "headers": {"X-Key": "env:KEY"}},
                "off": {"command": "none", "disabled": True},
            }
        }
    )
    assert {name: server.name for name, server in servers.items()} == {"time": "time", "web": "web"}
    assert servers["web"].spec.headers == {"X-Key": "env:KEY"}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({}, "is not like"),
        ({"mcpServers": {"a": ["b"]}}, "is not like"),
        (
            {"mcpServers": {"a": {"type": "sse", "url": "http://host"}}},
            "'a': type 'sse' is unknown",
        ),
        ({"mcpServers": {"a": {"command": "b", "cmd": "c"}}}, "there is no 'cmd'"),
    ],
)
def test_invalid_content_of_a_file_is_refused_in_one_sentence(config: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        servers_of(config)


def test_tools_of_takes_no_text():
    with pytest.raises(InvalidArgument, match="tools_of takes a list of servers"):
        tools_of("http://host/mcp")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("env:NOT_SET", "MCP server 'x': there is nothing in env:NOT_SET: KeyError"),
        ("file:/no/such/key", "there is nothing in file:/no/such/key: FileNotFoundError"),
        ("env:TWO_LINES", "the header X-Key is not one line of ASCII characters"),
    ],
)
def test_a_secret_that_is_not_there_is_named(value: str, sentence: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TWO_LINES", "one\ntwo")
    server = McpServer.of({"url": "http://127.0.0.1:9/", "headers": {"X-Key": value}}, name="x")
    with pytest.raises(InvalidArgument, match=sentence) as caught:
        server.tools()
    assert "two" not in str(caught.value)
