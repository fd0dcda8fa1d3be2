"""How fleets end: with their owners, whichever way those end, and while the process ends."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from engines import client, ours
from servers import runs, until

import envweave_gym as ew
from envweave_gym.containers.sweep import sweep
from envweave_gym.providers import parallel
from envweave_gym.providers.replica_fleet import Fleet

__all__ = ["client"]
LINE = "envweave/LineWorld-v0"

OWNER = """
import sys, time
from envweave_gym.providers.replica_fleet import Fleet
fleet = Fleet({backend!r}, replicas=2)
print(*(getattr(one, "pid", 0) or one._container.name for one in fleet._replicas), flush=True)
sys.stdin.readline()
"""


def owner(backend: str) -> tuple[subprocess.Popen[str], list[str]]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", OWNER.format(backend=backend)], **pipes)
    assert process.stdout is not None
    return process, process.stdout.readline().split()


def end(process: subprocess.Popen[str], how: str) -> None:
    if how == "is killed":
        process.kill()
    process.communicate("\n" if how == "returns" else None, timeout=30)


@pytest.mark.parametrize("how", ["returns", "is killed"])
def test_its_servers_end_when_its_owner(how: str):
    process, pids = owner("subprocess")
    servers = [psutil.Process(int(pid)) for pid in pids]
    servers += [child for one in servers for child in one.children(recursive=True)]
    end(process, how)
    until(lambda: not any(map(runs, servers)), 30)


@pytest.mark.parametrize("how", ["returns", "is killed"])
def test_no_container_is_left_when_its_owner(how: str, client: Any):
    process, names = owner("docker")
    there = {one.name for one in client.containers.list(ignore_removed=True)}
    end(process, how)
    assert set(names) <= there
    if how == "is killed":
        sweep(client)
    until(
        lambda: not set(names) & {one.name for one in client.containers.list(all=True, ignore_removed=True)}
    )


def test_containers_that_die_are_replaced_and_all_are_removed(client: Any):
    before = {one.name for one in ours(client)}
    with ew.Fleet("docker", replicas=2, memory="512m", check_every=0.1) as fleet:
        mine = [one for one in ours(client) if one.name not in before]
        assert [one.attrs["HostConfig"]["Memory"] for one in mine] == [512 << 20] * 2
        rows = gym.make_vec(LINE, num_envs=4, backend=fleet.urls, reset_deadline=20.0)
        rows.reset(seed=1)
        mine[0].kill()
        until(lambda: sum(fleet.restarts) == 1, 30)
        *_, truncated, infos = rows.step(np.ones(4, np.int64))
        assert truncated.sum() == 2
        assert [ew.trainable(infos)[row] for row in range(4)] == (~truncated).tolist()
        rows.reset(seed=1)
        assert not rows.step(np.ones(4, np.int64))[3].any()
        assert all("envweave serves" in text for text in fleet.logs().values())
        rows.close()
    assert {one.name for one in ours(client)} == before


def test_nothing_is_started_while_the_process_ends(monkeypatch: pytest.MonkeyPatch):
    parallel._ending.set()
    try:
        with pytest.raises(ew.NotAvailable, match="this process is ending; nothing is started any more"):
            Fleet("subprocess")
    finally:
        parallel._ending.clear()


ENDING = """
import atexit
from envweave_gym.providers.parallel import stop_at_exit

class Fake:
    def __init__(self, name):
        self.name = name
        stop_at_exit(self)

    def stop(self):
        print(f"{self.name} is stopped\\n", end="")  # in one piece: two do so at once

Fake("the first")
atexit.register(Fake, "the last")
"""


def test_a_replica_started_during_the_exit_is_stopped_too():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == ["the first is stopped", "the last is stopped"]
    assert done.stderr == ""
