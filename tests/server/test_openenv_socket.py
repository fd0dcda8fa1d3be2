"""OpenEnv's WebSocket: messages, errors and what ends a session, as OpenEnv's own clients expect them."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import websocket
from openenv_socket import OpenEnvSocket, openenv_socket
from servers import RunningServer, running_server, until

ECHO, COUNTER, NAP = "envweave/Echo-v0", "envweave/Counter-v0", "served/Nap-v0"
CRASHING, FAULTY = "served/Awkward-v0", "faulty/Judged-v0"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    ids = (ECHO, COUNTER, "envweave/LineWorld-v0", "envweave/KuhnPoker-v0")
    others = (f"served_envs:{NAP}", f"served_envs:{CRASHING}", f"openenv_envs:{FAULTY}")
    with running_server(*ids, *others, protocol="openenv", default=ECHO, max_sessions=4) as running:
        yield running


@pytest.fixture
def echo(server: RunningServer) -> Iterator[OpenEnvSocket]:
    with openenv_socket(server) as connection:
        yield connection
    until(lambda: server.gauge("envweave_sessions") == 0)


def of(env_id: str) -> str:
    return f"/openenv/{env_id}/ws"


def test_an_episode_of_echo_is_that_of_openenvs_own_environment(echo: OpenEnvSocket) -> None:
    began = echo.reset(seed=1, episode_id="mine")
    assert began["observation"] == {
        "echoed_message": "Echo environment ready!",
        "message_length": 0,
        "metadata": {},
    }
    assert (began["reward"], began["done"]) == (0.0, False)
    stepped = echo.step(message="abc")
    assert stepped["observation"]["echoed_message"] == "abc"
    assert stepped["observation"]["message_length"] == 3
    assert stepped["observation"]["metadata"] == stepped["metadata"]
    assert stepped["metadata"] == {"original_message": "abc", "step": 1}
    assert stepped["reward"] == pytest.approx(0.3)
    assert echo.state() == {"episode_id": "mine", "step_count": 1, "last_message": "abc", "tools": []}


def test_other_ids_take_actions_in_the_form_of_their_space(server: RunningServer) -> None:
    with openenv_socket(server, of(COUNTER)) as counter:
        assert counter.reset()["observation"]["observation"] == {"count": 0}
        stepped = counter.step(action={"delta": 3})
        assert stepped["observation"]["observation"] == {"count": 3}
        assert stepped["observation"]["truncated"] is False
        assert stepped["done"] is False


def test_a_reply_of_a_model_is_parsed_as_the_environment_does(server: RunningServer) -> None:
    with openenv_socket(server, of("envweave/LineWorld-v0")) as world:
        start = world.reset(seed=3)["observation"]["observation"][0]
        assert world.step(message="I go right.")["observation"]["observation"][0] > start
        assert world.refused({"type": "step", "data": {"message": "sideways"}})[0] == "VALIDATION_ERROR"


def test_a_game_is_played_by_one_client(server: RunningServer) -> None:
    with openenv_socket(server, of("envweave/KuhnPoker-v0")) as poker:
        result = poker.reset(seed=3)
        while not result["done"]:
            result = poker.step(action=dict.fromkeys(result["observation"]["agents"], 0))
            assert result["reward"] is None
        assert sorted(result["observation"]["rewards"].values()) == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        ("{", "INVALID_JSON", "Invalid JSON"),
        ({"type": "nope"}, "UNKNOWN_TYPE", "nope"),
        ({"data": {}}, "UNKNOWN_TYPE", "None"),
        ({"type": "state", "data": {}}, "VALIDATION_ERROR", "'data'"),
        ({"type": "step", "data": {"message": "x"}, "request_id": "1"}, "VALIDATION_ERROR", "request_id"),
        ({"type": "step", "data": [1]}, "VALIDATION_ERROR", "object"),
        ({"type": "step"}, "VALIDATION_ERROR", "object"),
        ({"type": "step", "data": {"massage": "x"}}, "VALIDATION_ERROR", "massage"),
        ({"type": "step", "data": {"message": 5}}, "VALIDATION_ERROR", "no text"),
        ({"type": "step", "data": {"message": "x" * 5000}}, "VALIDATION_ERROR", "not in"),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR", "seed"),
        ({"type": "reset", "data": {"seed": True}}, "VALIDATION_ERROR", "seed"),
        ({"type": "reset", "data": {"episode_id": 5}}, "VALIDATION_ERROR", "episode_id"),
        ({"type": "reset", "data": {"difficulty": 5}}, "VALIDATION_ERROR", "difficulty"),
    ],
)
def test_a_wrong_message_has_no_effect_and_the_session_goes_on(
    echo: OpenEnvSocket, message: Any, code: str, words: str
) -> None:
    echo.reset()
    echo.step(message="one")
    refused = echo.refused(message)
    assert refused[0] == code
    assert words in refused[1]
    assert echo.state()["step_count"] == 1
    assert echo.step(message="two")["observation"]["echoed_message"] == "two"


def test_what_is_no_object_ends_the_session(echo: OpenEnvSocket) -> None:
    assert echo.refused([1])[0] == "SESSION_ERROR"
    assert echo.receive() == {}


def test_a_step_after_the_end_is_refused(server: RunningServer) -> None:
    with openenv_socket(server, of(COUNTER)) as counter:
        step = {"type": "step", "data": {"action": {"delta": 10}}}
        while not counter.ask(step)["data"]["done"]:
            pass
        code, sentence = counter.refused(step)
        assert code == "EXECUTION_ERROR"
        assert "reset" in sentence
        assert counter.reset()["done"] is False


def test_a_crash_is_an_error_and_never_a_reward(server: RunningServer) -> None:
    with openenv_socket(server, of(CRASHING)) as env:
        env.reset()
        code, sentence = env.refused({"type": "step", "data": {"action": 1}})
        assert code == "EXECUTION_ERROR"
        assert "stepped badly" in sentence
        assert (
            env.refused({"type": "step", "data": {"action": 0}})[0] == "EXECUTION_ERROR"
        )  # no fresh episode
        assert env.reset()["done"] is False


def test_a_fault_of_the_environments_own_is_an_error_too(server: RunningServer) -> None:
    with openenv_socket(server, of(FAULTY)) as env:
        env.reset()
        code, sentence = env.refused({"type": "step", "data": {"action": 0}})
        assert (code, "the judge is away" in sentence) == ("EXECUTION_ERROR", True)


def test_close_ends_the_connection_and_what_follows_it_is_not_done(echo: OpenEnvSocket) -> None:
    echo.reset()
    echo.send({"type": "close"})
    echo.send({"type": "step", "data": {"message": "late"}})
    assert echo.receive() == {}


def test_frames_of_a_client_that_has_left_are_not_done(server: RunningServer) -> None:
    with openenv_socket(server, of(NAP)) as slow:
        slow.reset()
        before = steps_done(server)
        for _ in range(5):
            slow.send({"type": "step", "data": {"action": 0.2}})
    until(lambda: server.gauge("envweave_sessions") == 0)
    assert steps_done(server) - before <= 2  # the first, and at most one that was read before the close was


def steps_done(server: RunningServer) -> float:
    lines = server.ask("GET", "/metrics").text.splitlines()
    calls = (line for line in lines if line.startswith("envweave_calls_total"))
    return sum(float(line.split()[-1]) for line in calls if 'kind="step"' in line and 'status="done"' in line)


def test_pings_are_answered_while_a_step_runs(server: RunningServer) -> None:
    with openenv_socket(server, of(NAP)) as slow:
        slow.reset()
        slow.send({"type": "step", "data": {"action": 1}})
        connection: websocket.WebSocket = slow._connection
        connection.ping("still there?")
        assert connection.recv_frame().opcode == websocket.ABNF.OPCODE_PONG
        assert slow.receive()["type"] == "observation"


def test_a_full_server_says_so_with_counts_and_closes(server: RunningServer) -> None:
    connections = [openenv_socket(server) for _ in range(4)]
    for connection in connections:
        connection.__enter__().reset()
    with openenv_socket(server) as refused:
        data = refused.receive()["data"]
        assert data["code"] == "CAPACITY_REACHED"
        assert (data["active_sessions"], data["max_sessions"]) == (4, 4)
        assert refused.receive() == {}
    for connection in connections:
        connection.__exit__(None, None, None)
    until(lambda: server.gauge("envweave_sessions") == 0)


def handshake(server: RunningServer, path: str = "/ws", **headers: str) -> int:
    """The status with which a handshake is refused."""
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    return server.ask("GET", path, headers={**upgrade, "Sec-WebSocket-Key": "x" * 24, **headers}).status_code


def test_an_unknown_id_has_no_socket(server: RunningServer) -> None:
    assert handshake(server, of("envweave/Nothing-v0")) == 404


def test_a_web_page_of_others_gets_no_socket(server: RunningServer) -> None:
    assert handshake(server, Origin="http://evil.example") == 403
    assert handshake(server, Host="evil.example:8000") == 403


def test_the_token_may_be_the_password_of_the_url(server: RunningServer) -> None:
    assert handshake(server, Authorization="Bearer wrong-token") == 401
    basic = base64.b64encode(f"any:{server.token}".encode()).decode()
    with openenv_socket(server, header=[f"Authorization: Basic {basic}"]) as echo:
        assert echo.reset()["done"] is False
    until(lambda: server.gauge("envweave_sessions") == 0)
    assert (
        requests.get(f"{server.url}/v1/envs", auth=("any", server.token or ""), timeout=30).status_code == 401
    )


def test_two_sessions_do_not_disturb_each_other(server: RunningServer) -> None:
    with openenv_socket(server) as one, openenv_socket(server) as other:
        one.reset()
        other.reset()
        threads = [
            threading.Thread(target=lambda env=env: [env.step(message="x") for _ in range(50)])
            for env in (one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one.state()["step_count"], other.state()["step_count"]] == [50, 50]


# Tools


def test_tools_are_listed_and_called_by_steps(echo: OpenEnvSocket) -> None:
    echo.reset()
    tools = echo.step(type="list_tools")["observation"]["tools"]
    assert [tool["name"] for tool in tools] == ["echo_message", "echo_with_length"]
    assert tools[0].keys() == {"name", "description", "input_schema"}
    called = echo.step(type="call_tool", tool_name="echo_message", arguments={"message": "hi"})
    assert called["observation"]["result"]["data"] == "hi"
    assert called["observation"]["error"] is None
    assert called["reward"] == pytest.approx(0.2)
    unknown = echo.step(type="call_tool", tool_name="nope", arguments={})
    assert unknown["observation"]["error"]["error_type"] == "tool_not_found"
    assert unknown["observation"]["result"] is None
    wrong = echo.step(type="call_tool", tool_name="echo_message", arguments={"message": 5})
    assert wrong["observation"]["error"]["error_type"] == "invalid_args"
    assert echo.state()["step_count"] == 1


def test_tools_are_called_by_json_rpc_over_the_socket(echo: OpenEnvSocket) -> None:
    def rpc(method: str, **params: Any) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        reply = echo.ask({"type": "mcp", "data": request})
        assert (reply["type"], reply["data"]["id"]) == ("mcp", 7)
        return reply["data"]

    assert len(rpc("tools/list")["result"]["tools"]) == 2
    called = rpc("tools/call", name="echo_with_length", arguments={"message": "four"})
    assert called["result"]["data"] == {"message": "four", "length": 4}
    assert rpc("tools/call", name="nope")["error"]["code"] == -32602
    assert rpc("initialize")["error"]["code"] == -32601
    assert echo.state()["step_count"] == 1


def test_a_tool_call_after_the_end_begins_no_new_episode(server: RunningServer) -> None:
    with openenv_socket(server, of(COUNTER)) as counter:
        counter.reset()
        act = {"type": "call_tool", "tool_name": "act", "arguments": {"action": {"delta": 10}}}
        while not (result := counter.step(**act))["done"]:
            assert result["observation"]["result"]["data"]["done"] is False
        code, sentence = counter.refused({"type": "step", "data": act})
        assert (code, "reset" in sentence) == ("EXECUTION_ERROR", True)
