"""Steps that hang: who gives up frees what was waited with, and a process that nobody waits for ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import requests
import websocket
from servers import TOKEN, RunningServer, running_server, until

import envweave_gym
from envweave_gym.remote.address import remember_token
from envweave_gym.wire.messages import Create, Reset, Step, Stepped, encode, read_reply
from envweave_gym.wire.values import pack

NAP, LEASE = "served/Nap-v0", 1.0
SERVED = f"served_envs:{NAP}"
HANG = encode(Step(2, pack(60.0)))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(SERVED, isolation="process", max_sessions=2, idle_timeout=LEASE) as running:
        yield running


def play(server: RunningServer, name: str) -> websocket.WebSocket:
    url = server.url.replace("http", "ws") + f"/v1/sessions/{name}/stream"
    headers = [f"{name}: {value}" for name, value in server.headers.items()]
    return websocket.create_connection(url, timeout=20, header=headers, suppress_origin=True)


def play_soon(server: RunningServer, name: str) -> websocket.WebSocket:
    """A client that comes again, as clients do, where the server has not seen yet who has left."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return play(server, name)
        except websocket.WebSocketBadStatusException as refused:
            if refused.status_code != 503 or time.monotonic() > deadline:
                raise


def hanging(server: RunningServer, name: str) -> websocket.WebSocket:
    """A client whose step hangs."""
    client = play(server, name)
    for frame in (encode(Create(NAP)), encode(Reset(1, 0))):
        client.send_binary(frame)
        client.recv()
    client.send_binary(HANG)
    until(lambda: server.get(f"/v1/sessions/{name}")["busy"])
    return client


def step_without_patience(server: RunningServer, session: str, **fields: int) -> None:
    """A step over HTTP that hangs, and whose client hangs up."""
    body = {"action": 60.0, **fields}
    with pytest.raises(requests.ReadTimeout):
        requests.post(f"{server.url}{session}/step", json=body, headers=server.headers, timeout=0.2)


def is_empty(server: RunningServer) -> bool:
    return server.gauge("envweave_connections") == 0 and server.gauge("envweave_sessions") == 0


def test_clients_whose_steps_hang_get_their_sessions_and_connections_back(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HANGING_TOKEN", TOKEN)
    url = f"{server.url}#{NAP}"
    envweave_gym.make(url, token="env:HANGING_TOKEN").close()  # its description takes long at first
    env = envweave_gym.make(url, token="env:HANGING_TOKEN", call_deadline=2.0)
    for _ in range(3):
        _, info = env.reset(seed=0)
        assert "fault" not in info
        _, reward, _, truncated, info = env.step(60.0)
        assert (reward, truncated, str(info["fault"].kind)) == (0.0, True, "timeout"), info["fault"]
    env.close()
    until(lambda: is_empty(server))


def test_a_client_that_has_left_waits_no_longer_for_its_turn(server: RunningServer):
    with closing(hanging(server, "one")):
        for _ in range(3):
            with closing(play(server, "one")) as again:
                again.send_binary(HANG)
        until(lambda: server.gauge("envweave_connections") == 1, 5)
        step_without_patience(server, "/v1/sessions/one", call=3)
        assert server.get("/v1/sessions/one")["attached"] == 1
    until(lambda: is_empty(server))


def test_a_session_is_retained_while_a_client_waits_for_its_step(server: RunningServer):
    hanging(server, "two").shutdown()
    with closing(play(server, "two")) as waiting:
        waiting.send_binary(HANG)
        time.sleep(3 * LEASE)
        assert server.get("/v1/sessions/two")["busy"]
    until(lambda: is_empty(server))


def test_an_abandoned_step_over_http_is_ended(server: RunningServer):
    session = "/v1/sessions/" + server.post("/v1/sessions", {"id": NAP})["session"]
    server.post(f"{session}/reset")
    step_without_patience(server, session)
    until(lambda: is_empty(server))


def test_a_session_that_is_deleted_while_its_step_hangs_is_ended(server: RunningServer):
    with closing(hanging(server, "three")):
        assert server.ask("DELETE", "/v1/sessions/three").status_code == 204
    until(lambda: is_empty(server))
    until(lambda: "closed" in [line for line in server.log().splitlines() if "three" in line][-1], 10)


def test_in_a_thread_an_abandoned_step_runs_on_and_its_session_stays():
    with running_server(SERVED, max_sessions=2, idle_timeout=0.5, drain=0.6) as server:
        with closing(hanging(server, "one")) as client:
            client.send_binary(encode(Step(3, pack(0.0))))
        for _ in range(3):
            with closing(play(server, "one")) as again:
                again.send_binary(HANG)
        until(lambda: server.gauge("envweave_connections") == 1, 5)
        time.sleep(1.5)
        reported = server.get("/v1/sessions/one")
        assert (reported["busy"], reported["attached"]) == (True, 0)


def test_a_step_that_took_long_is_answered_when_it_is_asked_for_again(server: RunningServer):
    with closing(play(server, "four")) as first:
        for frame in (encode(Create(NAP)), encode(Reset(1, 0))):
            first.send_binary(frame)
            first.recv()
        slow = encode(Step(2, pack(1.5)))
        first.send_binary(slow)
        until(lambda: server.get("/v1/sessions/four")["busy"])
    with closing(play(server, "four")) as again:
        again.send_binary(slow)
        reply = read_reply(again.recv())
    assert isinstance(reply, Stepped)
    assert reply.observation == 1
    until(lambda: is_empty(server))


# The limit of connections


def test_connections_that_were_left_do_not_count():
    with running_server(SERVED, max_sessions=1, drain=0.6) as server, closing(hanging(server, "one")):
        for _ in range(5):
            with closing(play_soon(server, "one")) as again:
                again.send_binary(HANG)
        with (
            closing(play_soon(server, "one")),
            pytest.raises(websocket.WebSocketBadStatusException) as refused,
        ):
            play(server, "one")
        assert refused.value.status_code == 503
        assert b"2 of 2 connections are open" in refused.value.resp_body


def test_an_accepted_client_counts_from_then_on():
    with (
        running_server(f"served_slowly:{NAP}", max_sessions=1) as server,
        closing(play(server, "one")),
        closing(play(server, "two")),
        pytest.raises(websocket.WebSocketBadStatusException, match="503"),
    ):
        play(server, "three")


def test_a_slow_step_goes_well_at_a_full_server():
    with running_server(SERVED, max_sessions=1) as server:
        remember_token(server.url, TOKEN)
        env = envweave_gym.make(f"{server.url}#{NAP}", call_deadline=2.0)
        env.reset(seed=0)
        assert env.step(1.4)[0] == 1
        assert env.step(0.0)[0] == 2
        env.close()
