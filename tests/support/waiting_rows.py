"""``waiting_rows.py METHOD [remote]``: a vector in worker processes whose rows are busy."""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Discrete
from gymnasium.vector import AsyncVectorEnv


class Evaluates(gym.Env[Any, Any]):
    """Holds the only slot for ten minutes."""

    observation_space = action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        from envweave_gym.swebench.evaluation_semaphore import slot

        with slot(1):
            print("begun", flush=True)
            time.sleep(600)
        return 0, 0.0, True, False, {}


class Waits(Evaluates):
    """Waits for a server for ten minutes."""

    def step(self, action: Any) -> Any:
        from envweave_gym.providers.base import urls_of

        print("begun", urls_of("this test", "http://127.0.0.1:1", {}), flush=True)
        time.sleep(600)


if __name__ == "__main__":
    row = Waits if sys.argv[2:] == ["remote"] else Evaluates
    env: Any = AsyncVectorEnv([row] * 2, context=sys.argv[1])
    env.reset()
    print(tempfile.gettempdir(), *[process.pid for process in env.processes], flush=True)
    env.step_async([0, 0])
    time.sleep(600)
