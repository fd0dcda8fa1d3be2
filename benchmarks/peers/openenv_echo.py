"""An echo environment on openenv's own server, and openenv's client that measures any server of one.

``python openenv_echo.py serve PORT`` serves it. ``python openenv_echo.py client`` reads lines like ``sync URL 2000`` or
``sessions URL 32 200`` and answers each with steps a second. Run both in a venv that has openenv.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any
from uuid import uuid4

EPISODE = 90
"""Steps after which the client resets; our Echo ends an episode after 100."""
ACTION = {"message": "hello, world"}


def serve(port: int) -> None:
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class EchoAction(Action):
        message: str

    class EchoObservation(Observation):
        echoed_message: str
        message_length: int

    class EchoEnvironment(Environment):
        """Returns the message, with a tenth of a point for each character, as ours does."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._state = State(episode_id=str(uuid4()), step_count=0)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
            self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
            return EchoObservation(echoed_message="ready", message_length=0, reward=0.0, done=False)

        def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
            self._state.step_count += 1
            said = action.message
            about = {"original_message": said, "step": self._state.step_count}
            reward, size = 0.1 * len(said), len(said)
            return EchoObservation(
                echoed_message=said, message_length=size, reward=reward, done=False, metadata=about
            )

        @property
        def state(self) -> State:
            return self._state

    app = create_fastapi_app(EchoEnvironment, EchoAction, EchoObservation, max_concurrent_envs=256)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def sync(url: str, steps: int) -> float:
    from openenv.core.generic_client import GenericEnvClient

    with GenericEnvClient(base_url=url).sync() as env:
        env.reset()
        started = time.perf_counter()
        for done in range(steps):
            if done % EPISODE == 0:
                env.reset()
            env.step(ACTION)
        return steps / (time.perf_counter() - started)


async def _play(client: Any, steps: int) -> None:
    for done in range(steps):
        if done % EPISODE == 0:
            await client.reset()
        await client.step(ACTION)


async def _sessions(url: str, count: int, steps: int) -> float:
    from openenv.core.generic_client import GenericEnvClient

    clients = [GenericEnvClient(base_url=url) for _ in range(count)]
    for client in clients:
        await client.connect()
    started = time.perf_counter()
    await asyncio.gather(*(_play(client, steps) for client in clients))
    rate = count * steps / (time.perf_counter() - started)
    for client in clients:
        await client.close()
    return rate


def client() -> None:
    for line in sys.stdin:
        what, url, *numbers = line.split()
        given = [int(number) for number in numbers]
        rate = sync(url, *given) if what == "sync" else asyncio.run(_sessions(url, *given))
        print(rate, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        client()
