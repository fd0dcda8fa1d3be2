"""MCP servers behind URLs, those that behave and those that do not."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from mcp_http import HttpServer, http_server

from envweave_gym.tools import ToolError
from envweave_gym.tools.mcp.client import McpClosed, McpServer, McpTimeout


class Served:
    """A server that does what is wanted, and a client of it."""

    def __init__(self, stack: ExitStack, how: str, **options: Any) -> None:
        self.there: HttpServer = stack.enter_context(http_server(how))
        spec = {"url": self.there.url, "headers": options.pop("headers", {})}
        self.here = stack.enter_context(McpServer.of(spec, name=how, **options))

    def echo(self, text: str = "ü") -> Any:
        return self.here.call("écho", {"text": text})


@pytest.fixture
def served() -> Iterator[Any]:
    """Makes them; they end with the test."""
    with ExitStack() as stack:
        yield lambda how, **options: Served(stack, how, **options)


@pytest.mark.parametrize("how", ["json", "sse", "session", "moved"])
def test_a_server_that_is_greeted(served: Any, how: str):
    world = served(how, headers={"X-Key": "open sesame"})
    (tool,) = world.here.tools()
    assert tool.name == "écho"
    assert tool.call({"text": "ü"}) == "ü"
    asked = [each for each in world.there.seen if each[0] == "POST"]
    assert all(headers["X-Key"] == "open sesame" for _, headers, _ in asked)
    last = asked[-1][1]
    assert last["MCP-Protocol-Version"] == "2025-11-25"
    assert "Mcp-Method" not in last
    assert "Mcp-Param-Text" not in last
    found = dict.fromkeys(world.there.methods())
    assert list(found) == ["initialize", "notifications/initialized", "tools/list", "tools/call"]


def test_a_session_ends_with_the_server_and_is_renewed_when_it_is_gone(served: Any):
    world = served("session")
    assert world.echo() == "ü"
    world.there.sessions = 7
    assert world.echo() == "ü"
    assert world.there.sessions == 8
    world.here.close()
    assert world.there.seen[-1][0] == "DELETE"
    assert world.there.seen[-1][1]["Mcp-Session-Id"] == "8"


def test_each_request_to_a_stateless_server_repeats_what_the_handshake_says(served: Any):
    world = served("stateless")
    (tool,) = world.here.tools()
    for text in ("plain", "ü", " padded ", "two\nlines", "=?base64?x?=", ""):
        assert tool.call({"text": text, "place": {"deep": True}}) == text
    headers = world.there.seen[-1][1]
    assert headers["Mcp-Param-Deep"] == "true"
    assert "Mcp-Session-Id" not in headers
    with pytest.raises(ToolError, match=r"'stateless' refuses tools/call: refused \(-32601\)"):
        world.here.call("other")


def test_a_ping_within_a_stream_is_answered(served: Any):
    world = served("asking")
    assert world.echo() == "ü"
    assert world.there.replies == [{"jsonrpc": "2.0", "id": "q", "result": {}}]


@pytest.mark.parametrize("how", ["silent", "drip", "drip_body"])
def test_a_late_or_dripping_answer_times_out_at_the_deadline(served: Any, how: str):
    world = served(how, connect_timeout=0.4)
    begun = time.monotonic()
    with pytest.raises(McpTimeout, match=f"MCP server '{how}' has not answered initialize in time"):
        world.here.tools()
    assert time.monotonic() - begun < 4
    assert how == "silent" or world.there.hung_up.wait(1)


def test_a_request_that_timed_out_is_cancelled(served: Any):
    world = served("slow_calls", timeout=0.3)
    world.here.tools()
    with pytest.raises(McpTimeout, match="has not answered tools/call in time"):
        world.echo()
    assert world.there.methods()[-1] == "notifications/cancelled"
    assert world.there.hung_up.wait(2)


def test_closing_the_connection_cancels_a_request_to_a_stateless_server(served: Any):
    world = served("slow_stateless", timeout=0.3)
    world.here.tools()
    with pytest.raises(McpTimeout, match="has not answered tools/call in time"):
        world.echo()
    assert world.there.hung_up.wait(2)
    assert world.there.methods()[-1] == "tools/call"


@pytest.mark.parametrize("how", ["huge", "huge_event"])
def test_a_message_without_end_is_given_up(served: Any, how: str):
    world = served(how)
    with pytest.raises(ToolError, match=f"'{how}' sends a message of more than 64 MB"):
        world.echo()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("page", "'page' answers initialize with status 200 and '<html>Welcome</html>'"),
        ("forbidden", "'forbidden' answers initialize with status 401 and 'no key'; give headers="),
        ("moved_away", "'moved_away' has moved to another host; give its new URL"),
        ("wrong_id", "'wrong_id' sends a response with the id 999"),
    ],
)
def test_an_invalid_answer_is_an_error_of_one_line(served: Any, how: str, sentence: str):
    with pytest.raises(ToolError, match=sentence) as caught:
        served(how).here.tools()
    assert "\n" not in str(caught.value)


def test_a_server_that_hangs_up_raises_closed(served: Any):
    world = served("hangs_up")
    with pytest.raises(McpClosed, match="'hangs_up' has hung up before it answered tools/call"):
        world.echo()
    assert world.there.methods().count("tools/call") == 1


def test_a_refused_connection_raises_closed_without_showing_the_url():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = McpServer.of(f"http://127.0.0.1:{port}/mcp?key=secret", name="nobody")
    with pytest.raises(McpClosed) as caught:
        server.tools()
    assert str(caught.value) == "MCP server 'nobody' is out of reach: Connection refused"


def test_calls_of_many_threads_get_their_own_answers(served: Any):
    world = served("sse")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(world.echo, map(str, range(100))))
    assert found == [str(number) for number in range(100)]


def test_connections_are_used_again(served: Any):
    world = served("json")
    clients = set()
    finish = world.there.finish_request

    def remembered(request: Any, address: Any) -> None:
        clients.add(address)
        finish(request, address)

    world.there.finish_request = remembered
    for _ in range(5):
        world.echo()
    assert len(clients) == 1
