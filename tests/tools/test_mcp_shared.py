"""Shares of MCP servers: counted right, whenever the shares of others are collected."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import Thread

import pytest
from mcp_servers import gone, misbehaving, process_of

from envweave_gym.tools.mcp import shared_servers as mcp_shared
from envweave_gym.tools.mcp.client import McpServer
from envweave_gym.tools.mcp.server_spec import ServerSpec, spec_of
from envweave_gym.tools.mcp.shared_servers import Share

__all__ = ["misbehaving"]
Make = Callable[..., McpServer]


def test_the_last_share_that_is_closed_ends_the_server(misbehaving: Make):
    spec = misbehaving("well").spec
    first, second = Share(spec), Share(spec)
    assert first.server is second.server
    first.server.tools()
    pid = process_of(first.server).pid
    first.close()
    assert second.server.call("add", {"a": 1}) == "2"
    assert process_of(second.server).pid == pid
    second.close()
    assert gone([pid])


def test_a_share_that_is_collected_while_another_begins_does_not_stop_it(monkeypatch: pytest.MonkeyPatch):
    one, other = spec_of(["one"]), spec_of(["other"])
    forgotten = Share(one)
    vars(forgotten)["itself"] = forgotten  # so it ends when garbage is collected
    del forgotten

    def made(spec: ServerSpec) -> McpServer:
        gc.collect()
        return McpServer(spec)

    monkeypatch.setattr(mcp_shared, "McpServer", made)
    shares: list[Share] = []
    thread = Thread(target=lambda: shares.append(Share(other)), daemon=True)
    thread.start()
    thread.join(10)
    (share,) = shares
    assert one.key() not in mcp_shared._used
    assert mcp_shared._used[other.key()].server is share.server
    share.close()
    assert other.key() not in mcp_shared._used
