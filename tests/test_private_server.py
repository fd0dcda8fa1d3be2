"""``backend="subprocess"``: one private server for a process, which ends with it whichever way that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
import requests
from servers import until

import envweave_gym as ew
from envweave_gym.providers.subprocess import PrivateServer, private_server
from envweave_gym.remote.env import RemoteEnv

COUNTER = "envweave/Counter-v0"

OWNER = """
import sys, time
import envweave_gym as ew
from envweave_gym.providers.subprocess import private_server
env = ew.make("envweave/Counter-v0", backend="subprocess")
env.reset(seed=1)
server = private_server()
print(server.pid, server.url, flush=True)
sys.stdin.readline()
{then}
"""


def family(pid: int) -> list[psutil.Process]:
    """A server's process and those it has started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def runs(process: psutil.Process) -> bool:
    """Whether it is there, and no mere zombie."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


STARTED_BY_A_THREAD = OWNER.replace(
    "env.reset(seed=1)\n",
    "import threading\nthread = threading.Thread(target=env.reset)\nthread.start()\nthread.join()\n",
)


def owner(then: str, program: str = OWNER) -> subprocess.Popen[str]:
    code = program.format(then=textwrap.dedent(then))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)


def test_all_environments_of_a_process_share_it():
    envs = [ew.make(COUNTER, backend="subprocess") for _ in range(3)]
    for env in envs:
        env.reset(seed=1)
    assert len({env.unwrapped._served.address.url for env in envs}) == 1
    assert private_server().pid is not None


def test_nobody_gets_in_without_its_token():
    url = private_server().url
    private_server().ensure()
    assert requests.post(f"{url}/v1/describe", b"", timeout=10).status_code == 401
    assert (
        requests.get(f"{url}/v1/envs", headers={"Authorization": "Bearer x"}, timeout=10).status_code == 401
    )


@pytest.mark.parametrize(
    ("how", "then"),
    [
        ("returns", ""),
        ("raises", "raise SystemExit(3)"),
        ("is killed", "time.sleep(60)"),
        (
            "is killed with a child of its own",
            "import os\nif os.fork() == 0:\n    time.sleep(3)\ntime.sleep(60)",
        ),
    ],
)
def test_it_ends_when_its_owner(how: str, then: str):
    process = owner(then)
    assert process.stdout is not None
    assert process.stdin is not None
    pid, url = process.stdout.readline().split()
    servers = family(int(pid))
    assert len(servers) >= 2
    process.stdin.write("\n")
    process.stdin.close()
    if "killed" in how:
        process.send_signal(signal.SIGKILL)
    process.wait(20)
    process.stdout.close()
    until(lambda: not any(map(runs, servers)))
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{url}/health", timeout=5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux wakes it")
@pytest.mark.parametrize("thread", ["main", "one that ended long ago"])
def test_it_ends_with_its_owner_although_it_was_stopped(thread: str):
    process = owner("time.sleep(60)", STARTED_BY_A_THREAD if thread != "main" else OWNER)
    assert process.stdout is not None
    assert process.stdin is not None
    pid, url = process.stdout.readline().split()
    assert requests.get(f"{url}/health", timeout=5).status_code == 200
    servers = family(int(pid))
    for one in servers:
        one.suspend()
    process.kill()
    process.communicate()
    try:
        until(lambda: not any(map(runs, servers)))
    finally:
        for one in filter(runs, servers):
            one.kill()


def test_one_that_died_is_started_again_behind_the_same_address():
    server = PrivateServer()
    env = RemoteEnv(COUNTER, server.url)
    env.reset(seed=1)
    first = server.pid
    assert first is not None
    os.killpg(first, signal.SIGKILL)
    until(lambda: server.pid is None)
    _, reward, _, truncated, info = env.step({"delta": 1})
    assert (reward, truncated, info["fault"].kind) == (0.0, True, ew.FaultKind.LOST)
    env.reset(seed=1)
    assert env.step({"delta": 1})[0]["count"] == RemoteEnv(COUNTER, server.url).reset(seed=1)[0]["count"] + 1
    assert server.pid not in (None, first)
    env.close()
    server.stop()


def test_stopping_leaves_no_process_and_no_port():
    server = PrivateServer()
    RemoteEnv(COUNTER, server.url).reset(seed=1)
    assert server.pid is not None
    servers = family(server.pid)
    server.stop()
    assert server.pid is None
    until(lambda: not any(one.is_running() for one in servers))


def test_one_that_rests_leaves_no_process_and_comes_back_when_it_is_asked():
    server = PrivateServer()
    env = RemoteEnv(COUNTER, server.url)
    begun = env.reset(seed=1)[0]
    assert server.pid is not None
    servers = family(server.pid)
    env.close()
    server.rest()
    server.rest()
    until(lambda: not any(map(runs, servers)))
    assert env.reset(seed=1)[0] == begun
    assert server.starts == 2
    env.close()
    server.stop()
    server.ensure()
    assert (server.pid, server.starts) == (None, 2)


def test_one_that_ends_by_itself_says_with_which_code_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "leaving.py").write_text(
        "import gymnasium, os, sys, time\nfrom envweave_gym.envs.counter import CounterEnv\n"
        "class Leaving(CounterEnv):\n"
        "    def step(self, action):\n"
        "        print('I go', file=sys.stderr, flush=True)\n"
        "        os.kill(os.getppid(), 9)\n"
        "        time.sleep(60)\n"
        "gymnasium.register('own/Leaving-v0', entry_point='leaving:Leaving')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    server = PrivateServer()
    env = RemoteEnv("leaving:own/Leaving-v0", server.url)
    env.reset(seed=1)
    fault = env.step({"delta": 1})[4]["fault"]
    assert "the server of this session has ended: exit code -9, and it last said: I go" in fault.message
    assert "fault" not in env.reset(seed=1)[1]
    assert server.starts == 2
    env.close()
    server.stop()


def test_one_that_stands_still_is_stopped_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("envweave_gym.providers.subprocess._GRACE", 0.2)
    server = PrivateServer().wait()
    assert server.pid is not None
    servers = family(server.pid)
    os.killpg(server.pid, signal.SIGSTOP)
    server.stop()
    until(lambda: not any(map(runs, servers)))


def test_without_the_servers_packages_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("envweave_gym.providers.subprocess.find_spec", lambda name: None)
    with pytest.raises(ew.MissingExtra, match=r"pip install 'envweave-gym\[server\]'"):
        PrivateServer()


def test_an_environment_of_the_owners_own_modules_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_world.py").write_text(
        "import gymnasium\nfrom envweave_gym.envs.counter import CounterEnv\n"
        "gymnasium.register('own/World-v0', entry_point='own_world:CounterEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    server = PrivateServer()
    env = RemoteEnv("own_world:own/World-v0", server.url, target=3)
    assert env.reset(seed=1)[0].keys() == {"count"}
    server.stop()
