"""Clusters that a process starts for itself, and what goes wrong on the way to one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import envweave_gym as ew
from envweave_gym.core.faults import MissingExtra
from envweave_gym.providers.ray import cluster as ray_cluster

COUNTER = "envweave/Counter-v0"
PATIENCE = 60.0

PLAYS = """
import multiprocessing, os, pickle, sys, warnings
warnings.simplefilter("error")
import gymnasium as gym
import envweave_gym

def child(pickled):
    env = pickle.loads(pickled)
    print("spawned", env.reset(seed=0)[0]["count"], flush=True)
    env.close()

def forked():
    try:
        gym.make("envweave/Counter-v0", backend="ray")
    except envweave_gym.NotAvailable as error:
        print("forked", error, flush=True)
    os._exit(0)

if __name__ == "__main__":
    env = gym.make("envweave/Counter-v0", backend="ray", reset_deadline=20.0)
    print("here", env.reset(seed=0)[0]["count"], flush=True)
    if "--wait" in sys.argv:
        sys.stdin.read()
    for gpus in (3,):
        try:
            gym.make("envweave/Counter-v0", backend="ray", num_gpus=gpus)
        except envweave_gym.NotAvailable as error:
            print("full", error, flush=True)
    if not (pid := os.fork()):
        forked()
    os.waitpid(pid, 0)
    process = multiprocessing.get_context("spawn").Process(target=child, args=(pickle.dumps(env),))
    process.start()
    process.join()
    import ray
    ray.shutdown()
    told = env.step({"delta": 1})
    print("left", told[3], told[4]["fault"].kind, flush=True)
    print("again", env.reset(seed=0)[0]["count"], flush=True)
"""


def descendants(session: int) -> list[psutil.Process]:
    """The processes that a script has left behind: those that name it, or its session of Ray."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        environ = process.info["environ"] or {}
        if environ.get("TEST_OF_RAY") == str(session) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def started(tmp_path: Path, source: str, *arguments: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(source)
    environ = {**os.environ, "TEST_OF_RAY": str(os.getpid())}
    environ.pop("RAY_ADDRESS", None)
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, str(script), *arguments], env=environ, text=True, start_new_session=True, **pipes
    )


def none_left(seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while descendants(os.getpid()):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
def test_a_cluster_of_ones_own_starts_with_the_first_environment_and_ends_with_the_process(
    tmp_path: Path,
) -> None:
    process = started(tmp_path, PLAYS)
    out, err = process.communicate(timeout=2 * PATIENCE)
    lines = dict(line.split(" ", 1) for line in out.splitlines())
    assert process.returncode == 0, err
    assert lines["here"] == lines["again"] == lines["spawned"]
    assert "asks for 1 CPU, 3 GPU on one node and finds no room ever" in lines["full"]
    assert lines["forked"].startswith("Ray does not work in a process that was forked from one that uses it")
    assert lines["left"] == "True lost"
    assert [line for line in err.splitlines() if "is started again" not in line] == []
    assert none_left()


def test_nothing_is_left_of_a_process_that_was_killed(tmp_path: Path) -> None:
    process = started(tmp_path, PLAYS, "--wait")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("here")
    assert len(descendants(os.getpid())) > 3
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert none_left()


# What goes wrong on the way to a cluster


class FakeRay:
    """A Ray that cannot be joined."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (
            RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9\n    Python: 3.9"),
            "the Ray cluster at auto cannot be joined: Version mismatch: The cluster was started with: "
            "Ray: 2.9 Python: 3.9; install the same versions on both sides",
        ),
        (
            ConnectionError("Could not find any Ray instance."),
            "Could not find any Ray instance",
        ),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reported: str
) -> None:
    monkeypatch.setattr(ray_cluster, "need", lambda *_: FakeRay(error))
    with pytest.raises(ew.NotAvailable) as caught:
        ray_cluster.cluster("auto")
    assert reported in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_no_cluster_head_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "need", lambda *_: FakeRay(AssertionError("it was asked all the same")))
    monkeypatch.setattr(ray_cluster, "_CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in ("127.0.0.1:1", f"127.0.0.1:{silent.getsockname()[1]}", "nowhere:what"):
            with pytest.raises(ew.NotAvailable, match=rf"there is no Ray cluster at {address}; start one"):
                ray_cluster.cluster(address)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"needs ray, .* pip install 'envweave-gym\[ray\]'"):
        ew.make(COUNTER, backend="ray")


def test_a_cluster_is_started_by_a_lasting_thread_whose_error_is_raised() -> None:
    began: list[threading.Thread] = []

    def start() -> None:
        began.append(threading.current_thread())

    caller = threading.Thread(target=ray_cluster._in_a_thread_that_stays, args=(start,))
    caller.start()
    caller.join(10)
    assert (caller.is_alive(), began[0].is_alive(), began[0].daemon) == (False, True, True)
    ray_cluster._in_a_thread_that_stays(start)
    assert began[1] is threading.main_thread()
    with ThreadPoolExecutor(1) as pool, pytest.raises(ZeroDivisionError):
        pool.submit(ray_cluster._in_a_thread_that_stays, lambda: 1 // 0).result(10)
