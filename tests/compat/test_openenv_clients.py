"""Typed clients notice whether a server is one of OpenEnv, and speak with it in its own types."""

from __future__ import annotations

from typing import Any

import pytest
from openenv_servers import NEW, OLD, SCHEMA, OpenEnvServer, openenv_server, saying
from servers import running_server

import envweave_gym as ew
from envweave_gym.compat.clients import (
    CodeAction,
    CodeObservation,
    CodeState,
    CodingEnv,
    EchoAction,
    EchoEnv,
    EchoObservation,
    TypedClient,
)
from envweave_gym.compat.repl import REPLEnv
from envweave_gym.core.faults import NotAvailable, SessionLost, ToolError
from envweave_gym.hubs.openenv.server_detection import is_openenv

TEXT = {"type": "string"}
ECHO = {"type": "object", "properties": {"message": TEXT}, "required": ["message"]}
TOOLS = {"type": "object", "properties": {"tool_name": TEXT, "arguments": {"type": "object"}}}
BLOCK = {"stdout": "1\n", "stderr": "", "locals_snapshot": {}, "success": True, "exception": None}
REPL = {
    "result": {**BLOCK, "execution_time": 0.1},
    "context_preview": "c",
    "context_length": 1,
    "available_variables": ["context"],
    "iteration": 1,
    "max_iterations": 30,
}


def replies(server: OpenEnvServer, *observations: dict[str, Any], **members: Any) -> None:
    """The server answers with these observations."""
    for one in observations:
        data = {"observation": one, "reward": 0.5, "done": False, **members}
        server.faults.append(saying({"type": "observation", "data": data}))


def test_echo_with_messages() -> None:
    first, second = ({"echoed_message": text, "message_length": len(text)} for text in ("ready", "hi"))
    with openenv_server(schema={**SCHEMA, "action": ECHO}) as server, EchoEnv(server.url) as env:
        replies(server, first, second)
        assert env.reset(seed=3).observation == EchoObservation("ready", 5)
        result = env.step(EchoAction("hi"))
        assert (result.observation, result.reward, result.done) == (EchoObservation("hi", 2), 0.5, False)
        assert server.messages == [
            {"type": "reset", "data": {"seed": 3}},
            {"type": "step", "data": {"message": "hi"}},
        ]
        assert env.state().episode_id == "e"


@pytest.mark.parametrize(
    "result",
    [
        {"data": "hi", "structured_content": None, "content": [], "is_error": False},
        {"structured_content": {"result": "hi"}},
        {"content": [{"type": "text", "text": "hi"}]},
        "hi",
    ],
)
def test_echo_with_tools(result: Any) -> None:
    with openenv_server(schema={**SCHEMA, "action": TOOLS}) as server, EchoEnv(server.name) as env:
        replies(server, {}, metadata={"message": "ready"})
        replies(server, {"tool_name": "echo_message", "result": result, "error": None}, reward=None)
        assert env.reset().observation == EchoObservation("ready", 0)
        said = env.step(EchoAction("hi"))
        assert (said.observation, said.reward) == (EchoObservation("hi", 2), None)
        sent = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "hi"}}
        assert server.messages[-1]["data"] == sent


@pytest.mark.parametrize(
    "seen",
    [
        {"result": None, "error": {"error_type": "execution_error", "message": "it is broken"}},
        {"result": {"is_error": True, "content": [{"text": "it is broken"}]}, "error": None},
    ],
)
def test_a_tool_that_fails_is_an_error(seen: dict[str, Any]) -> None:
    with openenv_server(schema={**SCHEMA, "action": TOOLS}) as server, EchoEnv(server.name) as env:
        env.reset()
        replies(server, {"tool_name": "echo_message", **seen})
        with pytest.raises(ToolError, match=r"echo_message failed: .*it is broken"):
            env.step(EchoAction("hi"))


def test_coding() -> None:
    with openenv_server() as server, CodingEnv(server.url) as env:
        replies(server, {"stdout": "", "stderr": "", "exit_code": 0, "more": 1})
        replies(server, {"stdout": "", "stderr": "no", "exit_code": 1})
        assert env.reset().observation == CodeObservation("", "", 0)
        assert env.step(CodeAction("1/0")).observation == CodeObservation("", "no", 1)
        assert server.messages[-1]["data"] == {"code": "1/0"}
        server.faults.append(saying({"type": "state", "data": {"episode_id": "x", "last_exit_code": 1}}))
        assert env.state() == CodeState(episode_id="x", step_count=0, last_exit_code=1)


@pytest.mark.parametrize("dialect", [OLD, NEW])
def test_the_repl(dialect: str) -> None:
    with openenv_server() as server, REPLEnv(base_url=server.url) as env:
        replies(server, REPL, REPL)
        result = env.reset(context="c", task_prompt="Do.", hf_token="hf_s3cret", episode_id="mine")
        sent = {"context": "c", "task_prompt": "Do.", "max_iterations": 30, "episode_id": "mine"}
        assert server.messages[-1]["data"].items() >= {**sent, "hf_token": "hf_s3cret"}.items()
        assert "s3cret" not in repr(result)
        result = env.execute("1")
        assert server.messages[-1]["data"] == {"code": "1", "is_final": False, "final_answer": None}
        assert (result.observation.result.stdout, result.observation.context_length) == ("1\n", 1)
        assert env.list_variables() == ["context"]
        replies(server, REPL, done=True, metadata={"final_answer": "42"} if dialect == NEW else {})
        if dialect == OLD:
            server.faults.append(saying({"type": "state", "data": {"final_answer": "42"}}))
        result = env.submit_final_answer("42")
        assert server.messages[-1 if dialect == NEW else -2]["data"]["final_answer"] == "42"
        assert (result.done, env.state().final_answer) == (True, "42")
        replies(server, REPL)
        env.reset()
        assert "hf_token" not in server.messages[-1]["data"]


def test_a_refused_reset_forgets_the_token() -> None:
    with openenv_server() as server, REPLEnv(server.url) as env:
        server.faults.append(saying({"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no"}}))
        with pytest.raises(ew.InvalidArgument):
            env.reset(hf_token="hf_s3cret")
        replies(server, REPL)
        env.reset()
        assert "hf_token" not in server.messages[-1]["data"]


@pytest.mark.parametrize("client", [EchoEnv, CodingEnv, REPLEnv])
def test_another_environment_is_one_clear_error(client: Any) -> None:
    with (
        openenv_server() as server,
        client(server.url) as env,
        pytest.raises(
            NotAvailable, match=rf"{server.url} has another environment than that of {client.__name__}"
        ),
    ):
        env.reset()


def test_a_client_of_a_users_own_takes_the_json() -> None:
    with openenv_server() as server, TypedClient[Any, Any](server.name) as env:
        assert env.reset(seed=1).observation == {"count": 0, "text": "0"}
        result = env.step({"delta": 3})
        assert (result.observation["count"], result.reward, result.done) == (3, 3.0, True)


def test_an_id_is_for_servers_of_ours() -> None:
    with openenv_server() as server, pytest.raises(ew.InvalidArgument, match="leave env_id='x' out"):
        TypedClient[Any, Any](server.url, env_id="x")


def test_a_lost_session_raises_and_is_never_a_fresh_episode() -> None:
    with openenv_server() as server, TypedClient[Any, Any](server.url) as env:
        env.reset()
        server.faults.append(lambda talk: talk.hang_up())
        with pytest.raises((SessionLost, ConnectionError)):
            env.step({"delta": 1})
        with pytest.raises(ew.ResetNeeded):
            env.step({"delta": 1})
        env.reset()
        assert env.step({"delta": 1}).observation["count"] == 1


def test_a_token_is_not_sent_in_the_clear_to_find_out_whose_server_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    with openenv_server() as server:
        for host, sent in (("127.0.0.1", "Bearer s3cret"), ("0.0.0.0", None)):
            server.requests.clear()
            assert is_openenv(f"http://{host}:{server.port}", "env:MY_TOKEN")
            assert {headers.get("authorization") for _, headers in server.requests} == {sent}


def test_servers_are_told_apart() -> None:  # words: ok
    with openenv_server() as theirs, running_server("envweave/Echo-v0") as ours:
        assert is_openenv(theirs.url)
        assert is_openenv(theirs.name)
        assert not is_openenv(ours.url)
        assert not is_openenv(ours.url, "env:NOT_SET")
        theirs.documents["/schema"] = (200, b"<html>")
        assert not is_openenv(theirs.url)
    for nobody in (theirs.url, "unix://%40x", "docker://no-such-image", "http://[", "http://host:port"):
        assert not is_openenv(nobody)
