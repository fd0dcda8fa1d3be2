"""Where tests of remote environments play: the private server of this process, by WebSocket and by HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest

from envweave_gym.providers.subprocess import private_server
from envweave_gym.remote import session
from envweave_gym.remote.transport import WebSocketBlocked


@pytest.fixture(scope="session")
def url() -> str:
    """The private server, which makes whatever this process can make."""
    server = private_server()
    server.ensure()
    return server.url


@pytest.fixture(params=["websocket", "http"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways a frame can go."""

    def blocked(*args: Any) -> Any:
        raise WebSocketBlocked

    if request.param == "http":
        monkeypatch.setattr(session, "WebSocketTransport", blocked)
    return request.param


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


class Trouble(gym.Env[int, int]):
    """Does what it is told: 0 nothing, 1 raises, 2 sleeps, 3 ends the process."""

    metadata = {"render_modes": []}

    def __init__(self, nap: float = 0.3, fails: int = 0) -> None:
        self.observation_space, self.action_space = gym.spaces.Discrete(1000), gym.spaces.Discrete(4)
        self.nap, self.fails, self.count = nap, fails, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.fails > 0:
            self.fails -= 1
            raise OSError("not yet")
        self.count = 0
        return 0, {}

    def step(self, action: int) -> Any:
        import os

        self.count += 1
        if action == 1:
            raise OSError("the disk is full")
        if action == 2:
            time.sleep(self.nap)
        if action == 3:
            os._exit(3)
        return self.count, 1.0, False, False, {}

    def episode_state(self) -> dict[str, Any]:
        return {"count": self.count}


gym.register("tests/Trouble-v0", entry_point="remote_worlds:Trouble")
TROUBLE = "remote_worlds:tests/Trouble-v0"
