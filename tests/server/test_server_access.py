"""Who may use a server, from where, and how much of it."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import pytest
import websocket
from json_clients import JsonClient, sentence
from servers import RunningServer, running_server

from envweave_gym.wire.messages import Create, Refused, Reset, Step, encode, read_reply
from envweave_gym.wire.values import pack
from envweave_gym_server.app import auth
from envweave_gym_server.app.app import create_app
from envweave_gym_server.offers.offers import offer_of_factory

COUNTER, TOKEN = "envweave/Counter-v0", "a-token-of-tests"


@pytest.fixture(scope="module")
def client() -> JsonClient:
    return JsonClient(COUNTER, "envweave/LineWorld-v0", token=TOKEN)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# The token


@pytest.mark.parametrize("path", ["/", "/v1/envs", "/metrics", "/openapi.json", "/v1/sessions/x", "/nope"])
def test_a_server_reveals_nothing_without_the_token(client: JsonClient, path: str):
    response = client.ask("GET", path)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "the token is missing" in sentence(response.json)


@pytest.mark.parametrize(
    "given", ["Bearer wrong", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}2", "Bearer \xff", "bearer  x"]
)
def test_a_wrong_token_is_refused(client: JsonClient, given: str):
    response = client.ask("GET", "/v1/envs", headers={"Authorization": given})
    assert (response.status_code, "the token is wrong" in sentence(response.json)) == (401, True)


@pytest.mark.parametrize("given", ["", "Bearer", "Basic YTpi", TOKEN])
def test_an_authorization_of_another_kind_is_no_token(client: JsonClient, given: str):
    response = client.ask("GET", "/v1/envs", headers={"Authorization": given})
    assert (response.status_code, "the token is missing" in sentence(response.json)) == (401, True)


def test_tokens_are_compared_in_constant_time(client: JsonClient, monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: Any, known: Any) -> bool:
        compared.append((given, known))
        return given == known

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    client.get("/v1/envs", headers=bearer(TOKEN))
    client.get("/v1/envs", 401, headers=bearer("x"))
    assert compared == [(TOKEN.encode(), TOKEN.encode()), (b"x", TOKEN.encode())]
    assert hmac.compare_digest is compare


def test_a_link_may_hold_the_token_but_nothing_is_changed_by_a_link(client: JsonClient):
    assert client.get(f"/v1/envs?token={TOKEN}")
    client.get("/v1/envs?token=wrong", 401)
    client.post(f"/v1/sessions?token={TOKEN}", {"id": COUNTER}, 401)


def test_health_needs_no_token_and_tells_nothing_else(client: JsonClient):
    assert client.get("/health") == {"status": "healthy"}


# Names and pages


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:80", "[0:0:0:0:0:0:0:1]", "localhost."]
)
def test_this_machine_is_asked_by_its_names(client: JsonClient, host: str):
    assert client.get("/health", headers={"Host": host})


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "evil@localhost",
        "localhost:x",
        "[::1",
        "::1",
        "",
        "localhost,evil",
    ],
)
def test_other_names_are_not_answered(client: JsonClient, host: str):
    reported = client.get("/health", 403, headers={"Host": host})
    assert "is not served" in sentence(reported)


def test_an_operator_may_allow_all_names():
    client = JsonClient(COUNTER, hosts=("*",))
    assert client.get("/health", headers={"Host": "any.example"})


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:8000", "localhost:8000"),
        ("http://LOCALHOST:8000", "localhost:8000"),
        ("https://localhost", "localhost"),
        ("http://localhost", "localhost:80"),
        ("http://[::1]:8000", "[0::1]:8000"),
    ],
)
def test_pages_of_the_server_itself_are_answered(client: JsonClient, origin: str, host: str):
    assert client.get("/health", headers={"Origin": origin, "Host": host})


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "http://localhost:9", "http://localhost", "null", "file://", "http://",
     "localhost:8000", "http://localhost:8000.evil.example", "http://localhost:8000, http://evil.example"],
)  # fmt: skip
def test_pages_of_others_are_not_answered(client: JsonClient, origin: str):
    reported = client.get("/health", 403, headers={"Origin": origin, "Host": "localhost:8000"})
    assert "web page" in sentence(reported)


# Limits


def test_a_full_server_says_how_many_sessions_there_are():
    client = JsonClient(COUNTER, max_sessions=2)
    sessions = [client.open(COUNTER) for _ in range(2)]
    response = client.ask("POST", "/v1/sessions", {"id": COUNTER})
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"
    assert "2 of 2 sessions are open" in sentence(response.json)
    client.ask("DELETE", sessions[0])
    assert client.open(COUNTER)


def test_vectors_have_a_largest_size():
    client = JsonClient(COUNTER, max_rows=8)
    assert client.open(COUNTER, num_envs=8)
    reported = client.post("/v1/sessions", {"id": COUNTER, "num_envs": 9}, 422)
    assert "num_envs=9 is more than 8" in sentence(reported)


def test_the_environments_of_all_sessions_are_limited():
    client = JsonClient(COUNTER, max_environments=8)
    four = client.open(COUNTER, num_envs=4)
    assert client.open(COUNTER, num_envs=3)
    assert client.open(COUNTER)
    response = client.ask("POST", "/v1/sessions", {"id": COUNTER, "num_envs": 2})
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert "8 of 8 environments are open, and 2 more" in sentence(response.json)
    reported = client.post(
        "/v1/sessions", {"id": COUNTER, "num_envs": 9}, 422
    )  # to come again would not help
    assert "num_envs=9 is more than 8" in sentence(reported)
    client.post("/v1/sessions", {"id": COUNTER, "num_envs": 0}, 422)
    client.ask("DELETE", four)
    assert client.open(COUNTER, num_envs=4)
    assert "envweave_environments 8.0" in client.ask("GET", "/metrics").text


def test_bodies_have_a_largest_size():
    client = JsonClient(COUNTER, largest_frame="64k")
    reported = client.post("/v1/sessions", b"[" * 65_537, 413)
    assert sentence(reported)
    session = client.open(COUNTER)
    response = client.ask("POST", f"{session}/frames", b"x" * 65_537, content_type="application/msgpack")
    assert response.status_code == 413
    assert read_reply(response.data).__class__ is Refused


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kwargs": {"traget": 3}}, "takes no argument 'traget' from a client (did you mean 'target'?)"),
        ({"kwargs": {"backend": "subprocess"}}, "takes no argument 'backend'"),
        ({"kwargs": {"target": "ten"}}, "target='ten'"),
        ({"kwargs": {"target": [[[[1]]]] * 3}}, "target="),
        ({"api": "aec"}, "served as gym, vector, not as 'aec'"),
        ({"api": "gym", "num_envs": 2}, "takes no argument 'num_envs'"),
        ({"num_envs": 0}, "`int` >= 1"),
        ({"num_envs": 10**30}, "is more than 65536"),
        ({"num_envs": True}, "got `bool`"),
        ({"autoreset_mode": "Never", "num_envs": 2}, "Invalid enum value 'Never'"),
        ({"session": "../etc"}, "$.session"),
        ({"session": "x" * 129}, "$.session"),
        ({"kwargs": []}, "Expected `object`"),
        ({"unknown": 1}, "unknown field `unknown`"),
    ],
)
def test_a_wrong_session_is_one_sentence(client: JsonClient, fields: dict[str, Any], says: str):
    reported = client.post("/v1/sessions", {"id": COUNTER, **fields}, 422, headers=bearer(TOKEN))
    assert says in sentence(reported)


def test_arguments_may_not_nest_without_end(client: JsonClient):
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    reported = client.post(
        "/v1/sessions", {"id": COUNTER, "kwargs": {"target": deep}}, 422, headers=bearer(TOKEN)
    )
    assert "nest too deep" in sentence(reported)


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff", b"NaN", b'{"id":"\\ud800"}', b'{"kwargs":' + b'{"a":[' * 5000],
    ids=lambda body: repr(body[:12]),
)
def test_invalid_json_is_one_sentence(client: JsonClient, body: bytes):
    assert "is no JSON" in sentence(client.post("/v1/sessions", body, 400, headers=bearer(TOKEN)))


@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "envweave/Echo-v0", "os:system", "gymnasium:CartPole-v1", "docker://image", "http://127.0.0.1:1",
     "local://coin", "envweave/Remote-v0", "x" * 3000, "../Counter-v0"],
)  # fmt: skip
def test_only_what_is_on_the_list_is_made(client: JsonClient, name: str):
    reported = client.post("/v1/sessions", {"id": name}, 404, headers=bearer(TOKEN))
    assert "is not served here" in sentence(reported)
    assert COUNTER in reported["message"]
    assert len(reported["message"]) < 400


@pytest.mark.parametrize(
    "action",
    [None, 1, "x", [], {}, {"delta": None}, {"delta": 1.5}, {"delta": 10**400}, {"delta": True},
     {"delta": [1]}, {"delta": "1"}, {"delta": 1, "more": 2}, [1] * 10**6],
    ids=lambda action: repr(action)[:20],
)  # fmt: skip
def test_a_wrong_action_is_one_sentence_and_costs_nothing(client: JsonClient, action: Any):
    session = client.open_as(TOKEN, COUNTER)
    client.post(f"{session}/reset", {"seed": 1}, headers=bearer(TOKEN))
    reported = client.post(f"{session}/step", {"action": action}, 422, headers=bearer(TOKEN))
    assert len(sentence(reported)) < 500
    assert client.get(session, headers=bearer(TOKEN))["state"]["step_count"] == 0


@pytest.mark.parametrize(
    ("call", "body", "status"),
    [
        ("step", {}, 422),
        ("step", {"action": {"delta": 1}}, 409),
        ("step", {"action": {"delta": 1}, "call": 0}, 422),
        ("step", {"action": {"delta": 1}, "call": 10**30}, 422),
        ("step", {"action": {"delta": 1}, "call": "1"}, 422),
        ("step", b'{"action": 1e999}', 422),
        ("reset", {"seed": -1}, 422),
        ("reset", {"seed": 1.5}, 422),
        ("reset", b'{"seed": 1' + b"0" * 400 + b"}", 422),
        ("reset", {"seed": [1, 2]}, 422),
        ("reset", {"options": {"nope": 1}}, 422),
        ("reset", {"options": []}, 422),
        ("nope", {}, 404),
    ],
)
def test_a_wrong_call_is_one_sentence(client: JsonClient, call: str, body: Any, status: int):
    session = client.open_as(TOKEN, COUNTER)
    sentence(client.post(f"{session}/{call}", body, status, headers=bearer(TOKEN)))


# Over a socket


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(COUNTER, largest_frame=100_000, max_sessions=4) as running:
        yield running


@contextmanager
def socket_of(server: RunningServer, session: str, **options: Any) -> Iterator[websocket.WebSocket]:
    url = server.url.replace("http", "ws") + f"/v1/sessions/{session}/stream"
    headers = [f"{name}: {value}" for name, value in server.headers.items()]
    options = {"header": headers, "suppress_origin": True, **options}
    connection = websocket.create_connection(url, timeout=10, **options)
    try:
        yield connection
    finally:
        connection.shutdown()


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"header": []}, 401),
        ({"header": ["Authorization: Bearer wrong"]}, 401),
        ({"suppress_origin": False, "origin": "http://evil.example"}, 403),
        ({"host": "evil.example"}, 403),
    ],
)
def test_websockets_are_checked_as_all_requests_are(
    server: RunningServer, options: dict[str, Any], status: int
):
    with pytest.raises(websocket.WebSocketBadStatusException) as caught, socket_of(server, "s", **options):
        pass
    assert caught.value.status_code == status
    assert sentence(json.loads(caught.value.resp_body or b"{}"))


def test_a_page_of_the_server_may_open_a_websocket_with_the_token_in_the_url(server: RunningServer):
    link = f"s/stream?token={server.token}&x="
    with socket_of(server, link, header=[], suppress_origin=False, origin=server.url) as connection:
        connection.send_binary(encode(Reset(1)))
        assert read_reply(connection.recv()).kind == "NoSession"


def test_too_long_a_frame_ends_its_connection_but_not_the_session(server: RunningServer):
    with socket_of(server, "long") as connection:
        connection.send_binary(encode(Create(COUNTER)))
        connection.recv()
        connection.send_binary(b"x" * 100_001)
        opcode, data = connection.recv_data()
    assert opcode == websocket.ABNF.OPCODE_CLOSE
    assert data[:2] == (1009).to_bytes(2, "big")
    with socket_of(server, "long") as connection:
        connection.send_binary(encode(Reset(1, 1)))
        assert read_reply(connection.recv()).call == 1
    server.ask("DELETE", "/v1/sessions/long")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x91" * 3000 + b"\xc0",
        encode(Step(2, pack({"delta": 1})))[:-1],
        encode(Step(2, pack({"delta": float("nan")}))),
        encode(Step(2, pack({"delta": 1 << 200}))),
        encode(Step(2, pack({"delta": [1] * 10_000}))),
        b"\x93\xa4step\x02\xc7\xff\x01",
        b"\x93\xa4step\x02\xc7\x04\x01\x02\x01<O8",
        b"\x93\xa4nope\x02\xc0",
        "text",
    ],
)
def test_a_broken_frame_is_refused_in_one_sentence_and_the_session_goes_on(server: RunningServer, frame: Any):
    kinds = websocket.ABNF
    with socket_of(server, "broken") as connection:
        for message in (Create(COUNTER), Reset(1, 1)):
            connection.send_binary(encode(message))
            connection.recv()
        connection.send(frame, kinds.OPCODE_TEXT if isinstance(frame, str) else kinds.OPCODE_BINARY)
        refused = read_reply(connection.recv())
        assert isinstance(refused, Refused)
        assert "\n" not in refused.message
        assert "Traceback" not in refused.message
        assert refused.kind in ("BadRequest", "InvalidAction")
        connection.send_binary(encode(Step(2, pack({"delta": 1}))))
        assert read_reply(connection.recv()).call == 2
    server.ask("DELETE", "/v1/sessions/broken")


def test_the_log_holds_neither_tokens_nor_what_was_sent(server: RunningServer):
    server.ask(
        "GET", "/v1/envs?token=secret-in-a-link", headers={"Authorization": "Bearer secret-in-a-header"}
    )
    server.ask("POST", "/v1/sessions", json={"id": COUNTER, "kwargs": {"target": "secret-in-a-body"}})
    log = server.log()
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"time", "level", "event"} <= lines[-1].keys()
    assert lines[-1]["status"] == 422
    assert "secret" not in log
    assert server.token is not None
    assert server.token not in log


def test_a_create_that_comes_again_while_the_first_is_under_way_gets_the_same_session():
    started, go = threading.Event(), threading.Event()

    class Slow(gym.Env):  # type: ignore[type-arg]
        observation_space = action_space = gym.spaces.Discrete(2)

        def __init__(self):
            started.set()
            assert go.wait(10)

    app = create_app(offer_of_factory(Slow, name="SlowToMake"))
    sessions, create = app.extensions["envweave"].sessions, Create("SlowToMake")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(sessions.create, "one", create, encode(create))
        assert started.wait(10)
        second = pool.submit(sessions.create, "one", create, encode(create))
        go.set()
        assert first.result(10)[0] is second.result(10)[0]
    sessions.stop()


def test_an_invalid_origin_is_refused(server: RunningServer):
    for origin in ("null", "", "http://", "about:blank"):
        reported = server.ask("GET", "/v1/envs", headers={"Origin": origin, "Host": "localhost"})
        assert reported.status_code in (200, 403)
        assert "Traceback" not in reported.text
    assert server.ask("GET", "/v1/envs", headers={"Origin": "null", "Host": "localhost"}).status_code == 403
