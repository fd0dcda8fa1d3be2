"""The local Tinker server as a child process: it ends with its owner, and says why it cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from absent import needs_module
from tinker_servers import ARGUMENTS

from envweave_gym.core.faults import NotAvailable
from envweave_gym.training.tinker import local_server
from envweave_gym.training.tinker.local_server import LocalServer

OWNER = """
import sys, time
from envweave_gym.training.tinker.local_server import LocalServer
server = LocalServer(*sys.argv[2:], folder=sys.argv[1])
print(server.pid, server.base_url, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _packages() -> None:
    for module in ("tinker", "torch"):
        needs_module(module)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_server_ends_when_its_owner_is_killed(tmp_path: Path):
    command = [sys.executable, "-c", OWNER, str(tmp_path), *ARGUMENTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, url = owner.stdout.readline().split()
        assert requests.get(f"{url}/api/v1/healthz", timeout=10).ok
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while is_there(int(pid)):
        assert time.monotonic() < deadline
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(f"{url}/api/v1/healthz", timeout=10)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def test_ctrl_c_while_the_server_starts_ends_it_too(tmp_path: Path):
    command = [sys.executable, "-m", "envweave_gym.training.tinker", "--local", "--out", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as owner:
        deadline = time.monotonic() + 60
        while not (started := children(owner.pid)):
            assert owner.poll() is None
            assert time.monotonic() < deadline
        owner.send_signal(signal.SIGINT)
        _, printed = owner.communicate(timeout=60)
    assert owner.returncode == 130, printed
    assert "Traceback" not in printed
    while any(map(is_there, started)):
        assert time.monotonic() < deadline + 60
    assert not list(tmp_path.glob("*/run.lock"))


def test_a_server_whose_start_is_interrupted_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pids: list[int | None] = []

    def interrupted(server: LocalServer) -> None:
        pids.append(server.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalServer, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        LocalServer(*ARGUMENTS, folder=tmp_path)
    assert pids[0] is not None
    assert not is_there(pids[0])
    assert caught.tb is not None  # which references the server


def test_a_server_that_cannot_start_says_why_and_one_that_takes_long_is_waited_for_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines: list[str] = []
    monkeypatch.setattr(local_server, "EXPECTED_STARTUP_S", 0.01)
    with pytest.raises(NotAvailable, match=r"did not start: .*no model at /nowhere"):
        LocalServer("--model", "local/x=/nowhere", folder=tmp_path, report=lines.append)
    assert [line.partition(";")[0] for line in lines] == ["waiting for the local Tinker server to start"]


def test_the_output_of_the_process_before_does_not_make_a_restarted_server_ready(tmp_path: Path):
    with LocalServer(*ARGUMENTS, folder=tmp_path) as server:
        before = server._ready
        server.end()
        server._start()
        before.set()  # as its thread does when it reads the end of the output late
        server.wait()
        assert requests.get(f"{server.base_url}/api/v1/healthz", timeout=10).ok
