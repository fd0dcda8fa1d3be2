"""Where tests of remote environments play: a web server, by WebSocket and by HTTP, and servers to kill."""

from __future__ import annotations

import builtins
import os
import queue
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pettingzoo
import psutil
import pytest
from pettingzoo import ParallelEnv
from servers import until
from web_replica import WebReplica

from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.remote.transports import web_servers
from envweave_gym.remote.transports.websockets import WebSocketBlocked


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """A server that speaks HTTP, and makes whatever this process can make."""
    server = WebReplica()
    server.wait()
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def mortal() -> Iterator[PrivateServer]:
    """A server to kill; it is there again when the next call comes."""
    server = PrivateServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def mortal_web() -> Iterator[WebReplica]:
    """As ``mortal``, but one that speaks HTTP."""
    server = WebReplica()
    yield server
    server.stop()


def kill(server: PrivateServer | WebReplica) -> None:
    """End the server and with it all its sessions."""
    pid = server.pid
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    until(lambda: server.pid is None)


def stop(server: PrivateServer) -> None:
    """Let the server stand still, with all its processes and their threads."""
    pid = server.pid
    assert pid is not None
    pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    os.killpg(pid, signal.SIGSTOP)
    until(lambda: all(_stands(task) for one in pids for task in Path(f"/proc/{one}/task").iterdir()))


def _stands(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture(params=["websocket", "http"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways a frame can go."""
    if request.param == "http":
        block_websockets(monkeypatch)
    return request.param


def block_websockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no WebSocket through."""

    def blocked(*args: Any) -> Any:
        raise WebSocketBlocked

    monkeypatch.setattr(web_servers, "WebSocketTransport", blocked)


class Trouble(gym.Env[int, int]):
    """Does what it is told: 0 nothing, 1 raises, 2 sleeps, 3 ends the process."""

    metadata = {"render_modes": []}

    def __init__(self, nap: float = 0.3, fails: int = 0) -> None:
        self.observation_space, self.action_space = gym.spaces.Discrete(1000), gym.spaces.Discrete(4)
        self.nap, self.fails, self.count = nap, fails, 0
        self.slept = [0.0, 0.0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.fails > 0:
            self.fails -= 1
            raise OSError("not yet")
        self.count = 0
        return 0, {}

    def step(self, action: int) -> Any:
        self.count += 1
        if action == 1:
            raise OSError("the disk is full")
        if action == 2:
            began = time.monotonic()
            time.sleep(self.nap)
            self.slept = [began, time.monotonic()]
        if action == 3:
            os._exit(3)
        return self.count, 1.0, False, False, {}

    def episode_state(self) -> dict[str, Any]:
        return {"count": self.count, "slept": self.slept}


class Unmade(gym.Env[Any, Any]):
    """Raises in its constructor what it is told to."""

    def __init__(self, error: str = "Empty") -> None:
        raise getattr(builtins, error, queue.Empty)("no such card")


class Keeper(gym.Env[Any, Any]):
    """Keeps its arguments, and tells them."""

    observation_space, action_space = gym.spaces.Discrete(1), gym.spaces.Discrete(1)

    def __init__(self, **given: Any) -> None:
        self.given = given

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, False, False, {}

    def episode_state(self) -> dict[str, Any]:
        return {"given": self.given}


class KeeperGame(ParallelEnv[str, Any, Any]):
    """A game that does the same."""

    metadata = {"name": "keeper"}
    possible_agents = ["only"]

    def __init__(self, **given: Any) -> None:
        self.given, self.agents = given, []
        self.observation_spaces = self.action_spaces = {"only": gym.spaces.Discrete(1)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents = ["only"]
        return {"only": 0}, {"only": {}}

    def step(self, actions: Any) -> Any:
        return {"only": 0}, {"only": 0.0}, {"only": False}, {"only": False}, {"only": {}}

    def episode_state(self) -> dict[str, Any]:
        return {"given": self.given}


gym.register("tests/Trouble-v0", entry_point="remote_worlds:Trouble")
gym.register("tests/Unmade-v0", entry_point="remote_worlds:Unmade")
gym.register("tests/Keeper-v0", entry_point="remote_worlds:Keeper")
pettingzoo.register("parallel", "tests/KeeperGame-v0", "remote_worlds:KeeperGame")
TROUBLE, KEEPER, KEEPER_GAME, UNMADE = (
    f"remote_worlds:tests/{name}-v0" for name in ("Trouble", "Keeper", "KeeperGame", "Unmade")
)
