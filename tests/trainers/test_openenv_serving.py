"""OpenEnv's own clients, unmodified, play our IDs; this file runs with openenv-core 0.3 and with openenv 0.10."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="OpenEnv is not installed: run make trainers")

from openenv.core import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from openenv_episodes import play_counter, play_many_echoes
from openenv_typed import CodeAction, CodingEnv, EchoAction, EchoEnv, REPLAction, REPLEnv
from servers import RunningServer, running_server, until

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]
ECHO, COUNTER, CODING, REPL = (f"envweave/{name}-v0" for name in ("Echo", "Counter", "Coding", "REPL"))
IMAGE = "envweave-echo:openenv"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    ids = (ECHO, COUNTER, CODING, REPL, "envweave/LineWorld-v0")
    with running_server(*ids, protocol="openenv", default=ECHO, token=None) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_session_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        running: RunningServer = request.getfixturevalue("server")
        until(lambda: running.gauge("envweave_sessions") == 0)


def of(server: RunningServer, env_id: str) -> str:
    return f"{server.url}/openenv/{env_id}"


def test_the_generic_client_plays_an_episode(server: RunningServer) -> None:
    play_counter(of(server, COUNTER))


def test_many_clients_play_at_the_same_time(server: RunningServer) -> None:
    play_many_echoes(server.url)


def test_the_typed_client_of_echo(server: RunningServer) -> None:
    with EchoEnv(base_url=server.url).sync() as env:
        began = env.reset()
        assert began.observation.echoed_message == "Echo environment ready!"
        stepped = env.step(EchoAction(message="hello"))
        assert (stepped.observation.message_length, stepped.reward) == (5, pytest.approx(0.5))
        assert stepped.observation.metadata == {"original_message": "hello", "step": 1}
        assert env.state().step_count == 1
        for _ in range(120):  # as in OpenEnv's own, there is no step limit
            assert not env.step(EchoAction(message="x")).done


def test_the_typed_client_of_coding(server: RunningServer) -> None:
    with CodingEnv(base_url=of(server, CODING)).sync() as env:
        env.reset()
        printed = env.step(CodeAction(code="x = 20\nprint(x + 1)"))
        assert (printed.observation.stdout, printed.observation.exit_code) == ("21\n", 0)
        assert printed.reward == pytest.approx(0.1)
        failed = env.step(CodeAction(code="1/0"))
        assert "ZeroDivisionError" in failed.observation.stderr
        assert env.state().last_exit_code == 1
        unsafe = env.step(CodeAction(code="import os"))
        assert unsafe.reward < 0
        assert unsafe.observation.metadata["safety_violation"]


def test_the_typed_client_of_the_repl(server: RunningServer) -> None:
    with REPLEnv(base_url=of(server, REPL)).sync() as env:
        began = env.reset(context="one two", task_prompt="Count the words", max_iterations=5, hf_token="hf_x")
        assert (began.observation.context_length, began.observation.max_iterations) == (7, 5)
        env.step(REPLAction(code="count = len(context.split())"))
        state = env.state()
        assert (state.context, state.task_prompt, "count" in state.namespace_keys) == (
            *("one two", "Count the words"),
            True,
        )
        done = env.step(REPLAction(code="print(f'FINAL({count})')"))
        assert (done.done, done.reward, env.state().final_answer) == (True, 1.0, "2")
        env.reset(context="abc")
        done = env.step(REPLAction(is_final=True, final_answer="it's 3"))
        assert (done.done, done.observation.metadata["final_answer"]) == (True, "it's 3")


def test_the_client_of_tools(server: RunningServer) -> None:
    async def play() -> list[Any]:
        async with MCPToolClient(base_url=server.url) as env:
            await env.reset()
            tools = await env.list_tools()
            assert all(tool.input_schema["required"] == ["message"] for tool in tools)
            said = await env.call_tool("echo_message", message="Hi")
            measured = await env.call_tool("echo_with_length", message="four")
            with pytest.raises(RuntimeError, match="nope"):
                await env.call_tool("nope")
            return [[tool.name for tool in tools], said, measured]

    names, said, measured = asyncio.run(play())
    assert names == ["echo_message", "echo_with_length"]
    assert (said, measured) == ("Hi", {"message": "four", "length": 4})


@pytest.mark.parametrize("path", ["", f"/openenv/{COUNTER}"])
def test_openenvs_own_validation_passes(server: RunningServer, path: str) -> None:
    program = Path(sys.executable).with_name("openenv")
    command = [str(program), "validate", "--url", f"{server.url}{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout


def test_the_token_is_the_password_of_the_url() -> None:
    with running_server(ECHO, protocol="openenv") as server:
        url = server.url.replace("http://", f"http://any:{server.token}@")
        with GenericEnvClient(base_url=url).sync() as env:
            assert env.reset().reward == 0.0
        with (
            pytest.raises((ConnectionError, RuntimeError)),
            GenericEnvClient(base_url=server.url).sync() as env,
        ):
            env.reset()


def has_image() -> bool:
    if shutil.which("docker") is None:
        return False
    return (
        subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.skipif(
    not has_image() and not os.environ.get("CI"), reason=f"there is no {IMAGE}: run make images"
)
def test_a_container_of_an_image() -> None:
    import requests

    async def play() -> tuple[Any, int, int]:
        env = await EchoEnv.from_docker_image(IMAGE)
        try:
            await env.reset()
            stepped = await env.step(EchoAction(message="in a container"))
            url = next(str(value) for value in vars(env).values() if str(value).startswith("ws://localhost"))
            health = url.replace("ws://", "http://").removesuffix("/ws") + "/health"
            here = requests.get(health, timeout=10).status_code
            elsewhere = requests.get(health, headers={"Host": "evil.example:8000"}, timeout=10).status_code
            return stepped, here, elsewhere
        finally:
            await env.close()

    stepped, here, elsewhere = asyncio.run(play())
    assert stepped.observation.echoed_message == "in a container"
    assert (here, elsewhere) == (200, 403)  # a web page may point a name of its own at this machine
