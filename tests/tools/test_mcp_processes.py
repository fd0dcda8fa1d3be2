"""MCP servers and processes: who owns them, who ends them, and what forks and pickles do."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
from mcp_servers import HERE, gone, is_alive, process_of

from envweave_gym.tools import ToolRegistry
from envweave_gym.tools.mcp.client import McpServer

Make = Callable[..., McpServer]

OWNER = """
import sys, time
from envweave_gym.tools.mcp.client import McpServer

server = McpServer.of([sys.executable, "-S", sys.argv[1], sys.argv[2]])
print(server.call("family"), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["family", "obstinate"])
def test_nothing_is_left_two_seconds_after_its_owner_was_killed(how: str):
    script = str(HERE / "mcp_misbehaving.py")
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, script, how], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = json.loads(owner.stdout.readline())
        keepers = [child.pid for child in psutil.Process(owner.pid).children()]
        assert len(keepers) == 1
        assert all(map(is_alive, [*pids, *keepers]))
        owner.kill()
    assert gone([*pids, *keepers])


@pytest.mark.parametrize("how", ["family", "obstinate"])
def test_closing_ends_the_server_and_all_that_it_has_started(misbehaving: Make, how: str):
    server = misbehaving(how)
    pids = json.loads(server.call("family"))
    begun = time.monotonic()
    server.close()
    assert time.monotonic() - begun < 2.5
    assert not any(map(is_alive, pids))


def test_a_server_does_not_outlive_its_keeper(misbehaving: Make):
    server = misbehaving("well")
    server.tools()
    process = process_of(server)
    keeper = process.parent()
    assert keeper is not None
    keeper.kill()
    assert gone([process.pid])
    assert server.call("add", {"a": 1}) == "2"


def test_a_server_ends_with_the_last_reference_to_it(misbehaving: Make):
    server = McpServer(misbehaving("well").spec)
    server.tools()
    pid = process_of(server).pid
    del server
    assert gone([pid])


def test_a_server_outlives_the_thread_that_opened_it(misbehaving: Make):
    server = misbehaving("well")
    thread = Thread(target=server.tools)
    thread.start()
    thread.join()
    pid = process_of(server).pid
    time.sleep(0.3)
    assert server.call("add", {"a": 1}) == "2"
    assert process_of(server).pid == pid


def test_no_descriptors_are_left_open(misbehaving: Make):
    def once() -> None:
        server = misbehaving("well")
        server.tools()
        server.close()

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        once()
    assert len(os.listdir("/proc/self/fd")) == before


def called_in_a_fork(server: McpServer, results: Any) -> None:
    found = server.call("add", {"a": 5})
    results.send((found, process_of(server).pid))


def test_a_forked_process_opens_its_own(misbehaving: Make):
    server = misbehaving("well")
    server.tools()
    own = process_of(server).pid
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=called_in_a_fork, args=(server, there))
    child.start()
    assert here.poll(10)
    found, pid = here.recv()
    child.join(10)
    assert (found, child.exitcode) == ("6", 0)
    assert pid != own
    assert gone([pid])
    assert server.call("add", {"a": 6}) == "7"
    assert process_of(server).pid == own


def test_a_fork_that_calls_nothing_keeps_no_server_alive(misbehaving: Make):
    server = misbehaving("well")
    server.tools()
    pids = [process_of(server).pid]
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        begun = time.monotonic()
        server.close()
        assert time.monotonic() - begun < 10  # the fork lives for longer
        assert not any(map(is_alive, pids))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_pickled_server_is_its_description(misbehaving: Make):
    server = misbehaving("well")
    tools = ToolRegistry([server])
    copy = pickle.loads(pickle.dumps(server))
    assert (copy.spec, copy.is_open) == (server.spec, False)
    with copy:
        assert copy.call("add", {"a": 1}) == "2"
    again = pickle.loads(pickle.dumps(list(tools)))
    assert again[0].call({"a": 3}) == "4"


def test_secrets_are_no_part_of_pickles_and_descriptions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "s3cr3t")
    server = McpServer.of({"url": "http://host/mcp", "headers": {"Authorization": "Bearer env:MY_KEY"}})
    assert server.spec.resolved_headers() == {"Authorization": "Bearer s3cr3t"}
    assert b"s3cr3t" not in pickle.dumps(server)
    assert "MY_KEY" not in f"{server!r} {server.spec!r} {server.spec}"


def test_a_fresh_server_is_another_one(misbehaving: Make):
    server = misbehaving("well")
    server.tools()
    with server.fresh() as fresh:
        assert not fresh.is_open
        fresh.tools()
        assert process_of(fresh).pid != process_of(server).pid
    assert server.is_open


def test_the_keeper_needs_no_packages():
    script = Path(sys.modules["envweave_gym.os_support.process_keeper"].__file__ or "")
    read, write = os.pipe()
    command = [
        sys.executable,
        "-I",
        "-S",
        str(script),
        str(read),
        "sh",
        "-c",
        "echo out; echo err >&2; exit 7",
    ]
    done = subprocess.run(command, pass_fds=[read], capture_output=True, text=True, timeout=10)
    os.close(read)
    os.close(write)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
