"""Clients of MCP play our IDs: mcp 1.30 with fastmcp 3.4, and mcp 2.3 with fastmcp 4.1, which speaks both eras.

The venvs of OpenEnv's tests have them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("mcp", reason="MCP is not installed: run make trainers")

from servers import TOKEN, RunningServer, running_server, until

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]
COUNTER, POKER = "envweave/Counter-v0", "envweave/KuhnPoker-v0"
IS_OLD = version("mcp").startswith("1.")

Call = Callable[..., Any]
Connect = Callable[[str, str], AbstractAsyncContextManager[Call]]
"""Connects to a URL with a token, and yields a function that calls a tool and returns its value."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(COUNTER, POKER, protocol="mcp") as running:
        yield running


def value_of(result: Any) -> Any:
    """The value in the result of a tool, by the names of any client."""
    for names in ("structuredContent", "structured_content"):
        if (value := getattr(result, names, None)) is not None:
            return value
    failed = getattr(result, "isError", None) or getattr(result, "is_error", None)
    return {"error": result.content[0].text} if failed else result.content[0].text


@asynccontextmanager
async def official(url: str, token: str) -> AsyncIterator[Call]:
    """The client of mcp 1."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    headers = {"Authorization": f"Bearer {token}"}
    async with (
        streamablehttp_client(url, headers=headers) as (reads, writes, _),
        ClientSession(reads, writes) as one,
    ):
        await one.initialize()

        async def call(name: str, **arguments: Any) -> Any:
            return value_of(await one.call_tool(name, arguments))

        yield call


def modern(mode: str) -> Connect:
    """The client of mcp 2, in one of its modes."""

    @asynccontextmanager
    async def connect(url: str, token: str) -> AsyncIterator[Call]:
        import httpx2
        from mcp.client.client import Client
        from mcp.client.streamable_http import streamable_http_client

        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):

            async def call(name: str, **arguments: Any) -> Any:
                return value_of(await client.call_tool(name, arguments))

            yield call

    return connect


@asynccontextmanager
async def fast(url: str, token: str) -> AsyncIterator[Call]:
    """The client of fastmcp."""
    from fastmcp import Client
    from fastmcp.client.transports import StreamableHttpTransport

    async with Client(StreamableHttpTransport(url, headers={"Authorization": f"Bearer {token}"})) as client:

        async def call(name: str, **arguments: Any) -> Any:
            return value_of(await client.call_tool(name, arguments, raise_on_error=False))

        yield call


CLIENTS: dict[str, Connect] = {"fastmcp": fast}
CLIENTS |= {"mcp": official} if IS_OLD else {mode: modern(mode) for mode in ("auto", "legacy", "2026-07-28")}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_runner_and_an_agent_play_an_episode(server: RunningServer, client: str) -> None:
    connect = CLIENTS[client]

    async def play() -> None:
        async with connect(f"{server.url}/mcp", TOKEN) as runner:
            made = await runner("make", id=COUNTER, kwargs={"target": 4})
            await runner("reset", session=made["session"], seed=1)
            access = made["agents"]["agent"]
            async with connect(access["url"], access["token"]) as agent:
                seen = await agent("observe")
                assert (seen["observation"], seen["must_act"]) == ({"count": 0}, True)
                await agent("act", delta=2, turn=seen["turn"])
                assert "is over" in (await agent("act", delta=2, turn=seen["turn"]))["error"]
                ended = await agent("act", delta=2)
                assert (ended["done"], ended["reward"]) == (True, 1.0)
                await runner("close", session=made["session"])
                for _ in range(2):  # the connection goes on, although the token's session has ended
                    assert "has ended" in (await agent("observe"))["error"]

    asyncio.run(play())
    until(lambda: server.gauge("envweave_sessions") == 0)


@pytest.mark.parametrize("client", CLIENTS)
def test_two_agents_play_a_game(server: RunningServer, client: str) -> None:
    connect = CLIENTS[client]

    async def play_as(access: dict[str, str]) -> float:
        async with connect(access["url"], access["token"]) as agent:
            while not (seen := await agent("observe", wait=20))["done"]:
                if seen["must_act"]:
                    await agent("act", action=1, turn=seen["turn"])
            return seen["reward"]

    async def play() -> list[float]:
        async with connect(f"{server.url}/mcp", TOKEN) as runner:
            made = await runner("make", id=POKER)
            await runner("reset", session=made["session"], seed=3)
            rewards = await asyncio.gather(*map(play_as, made["agents"].values()))
            await runner("close", session=made["session"])
            return rewards

    assert sorted(asyncio.run(play())) == [-2.0, 2.0]


def test_a_wrong_token_is_refused(server: RunningServer) -> None:
    connect = next(iter(CLIENTS.values()))

    async def play() -> None:
        async with connect(f"{server.url}/mcp", "wrong-token") as runner:
            await runner("make", id=COUNTER)

    with pytest.raises(BaseException):  # noqa: B017, PT011 - each client has exceptions and groups of its own
        asyncio.run(play())
