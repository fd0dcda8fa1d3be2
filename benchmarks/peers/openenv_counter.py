"""A counter environment of openenv, and a client that measures it; run in a venv that has openenv.

``python openenv_counter.py serve PORT`` serves it. ``python openenv_counter.py client URL`` reads lines like
``sync 2000`` and answers each with a number: steps or sessions a second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any
from uuid import uuid4

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient


class CounterAction(Action):
    delta: int


class CounterObservation(Observation):
    count: int


class CounterEnvironment(Environment):
    """Adds ``delta``, as ours does."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state, self._count = State(episode_id=str(uuid4()), step_count=0), 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        self._state, self._count = State(episode_id=episode_id or str(uuid4()), step_count=0), 0
        return CounterObservation(count=0, reward=0.0, done=False)

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        self._state.step_count += 1
        self._count += action.delta
        reached = self._count == 1_000_000
        return CounterObservation(count=self._count, reward=float(reached), done=reached)

    @property
    def state(self) -> State:
        return self._state


def serve(port: int) -> None:
    import uvicorn

    app = create_fastapi_app(CounterEnvironment, CounterAction, CounterObservation, max_concurrent_envs=2048)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def sync(url: str, steps: int) -> float:
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset()
        started = time.perf_counter()
        for _ in range(steps):
            env.step({"delta": 1})
        return steps / (time.perf_counter() - started)


async def _play(client: Any, steps: int) -> None:
    for _ in range(steps):
        await client.step({"delta": 1})


async def sessions(url: str, count: int, steps: int) -> float:
    clients = [GenericEnvClient(base_url=url) for _ in range(count)]
    for client in clients:
        await client.connect()
        await client.reset()
    started = time.perf_counter()
    await asyncio.gather(*(_play(client, steps) for client in clients))
    rate = count * steps / (time.perf_counter() - started)
    for client in clients:
        await client.close()
    return rate


async def create(url: str, count: int) -> float:
    started, clients = time.perf_counter(), []
    for _ in range(count):
        client = GenericEnvClient(base_url=url)
        await client.connect()
        await client.reset()
        clients.append(client)
    rate = count / (time.perf_counter() - started)
    for client in clients:
        await client.close()
    return rate


def client(url: str) -> None:
    for line in sys.stdin:
        what, *numbers = line.split()
        given = [int(number) for number in numbers]
        if what == "sync":
            rate = sync(url, *given)
        else:
            rate = asyncio.run({"sessions": sessions, "create": create}[what](url, *given))
        print(rate, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        client(sys.argv[2])
