"""Episodes that the generic client of any release of OpenEnv plays on a server of ours."""

from __future__ import annotations

import asyncio

import pytest
from openenv.core import GenericEnvClient


def play_counter(url: str) -> None:
    """Play ``envweave/Counter-v0`` to its end, step on after it, and reset, by the synchronous client."""
    with GenericEnvClient(base_url=url).sync() as env:
        result = env.reset(seed=1, episode_id="mine")
        assert result.observation["observation"] == {"count": 0}
        rewards = []
        while not result.done:
            result = env.step({"action": {"delta": 2}})
            rewards.append(result.reward)
        assert rewards == [0.0, 0.0, 0.0, 0.0, 1.0]
        state = env.state()
        assert (state["episode_id"], state["step_count"]) == ("mine", 5)
        with pytest.raises(RuntimeError, match="reset"):
            env.step({"action": {"delta": 2}})
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            env.step({"delta": 2})
        assert env.reset().observation["observation"] == {"count": 0}


def play_many_echoes(url: str, clients: int = 16) -> None:
    """Play ``envweave/Echo-v0`` by several asynchronous clients at the same time."""

    async def play(number: int) -> int:
        async with GenericEnvClient(base_url=url) as env:
            await env.reset()
            for step in range(10):
                result = await env.step({"message": f"{number}: {step}"})
                assert result.observation["echoed_message"] == f"{number}: {step}"
            return (await env.state())["step_count"]

    async def play_all() -> list[int]:
        return await asyncio.gather(*map(play, range(clients)))

    assert asyncio.run(play_all()) == [10] * clients
