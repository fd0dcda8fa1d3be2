"""What a server or a proxy says when it hangs up, or answers with no frame, is heard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from remote_peers import HTML, Script, Talk, answers, ends, peer, plays, plays_over_http, reply_to
from remote_worlds import block_websockets, transport
from servers import TOKEN, RunningServer, running_server

import envweave_gym as ew
from envweave_gym.core.faults import AtCapacity
from envweave_gym.remote import address, started_servers
from envweave_gym.remote.address import TOKEN as TOKEN_VARIABLE
from envweave_gym.remote.address import Address, remember_token
from envweave_gym.remote.descriptions import describe
from envweave_gym.remote.env import RemoteEnv
from envweave_gym.remote.session import RemoteSession
from envweave_gym.remote.vector import RemoteVectorEnv
from envweave_gym.wire.messages import Create, Step

__all__ = ["transport"]
ECHO = "envweave/Echo-v0"
PATIENT = 30.0
TOO_LARGE = r"65536|exceeds"
FULL = b'{"error": "AtCapacity", "message": "there is no room"}'


@contextmanager
def at_once() -> Iterator[None]:
    """The block takes a small part of the deadline."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < PATIENT / 6


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningServer]:
    """A server that takes small frames only."""
    with running_server(ECHO, largest_frame="64k") as server:
        remember_token(server.url, server.token or "")
        yield server


# Tokens


@pytest.mark.parametrize(("token", "why"), [(None, "missing"), ("another", "wrong")])
def test_a_token_that_is_missing_or_wrong_is_refused_with_the_ways_to_give_one(
    token: str | None, why: str, transport: str, strict: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(address._tokens, strict.url)
    if token is None:
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
    with at_once(), pytest.raises(ew.NotAvailable) as refused:
        RemoteEnv(ECHO, strict.url, call_deadline=PATIENT).reset()
    assert f'{strict.url}: the token is {why}; set ENVWEAVE_TOKEN or token="file:PATH"' in str(refused.value)


# Frames that are too large


@pytest.mark.parametrize("size", [65_537, 8 << 20])
def test_a_frame_larger_than_the_server_takes_is_refused_at_once(
    size: int, transport: str, strict: RunningServer
) -> None:
    env = RemoteEnv(ECHO, strict.url, call_deadline=PATIENT)
    env.reset(seed=1)
    sentence = "a frame holds at most 65536 bytes" if transport == "websocket" else "exceeds"
    with at_once(), pytest.raises(ew.InvalidArgument, match=sentence):
        env.step("x" * size)
    assert env.step("small")[0] == "small"
    assert ew.state_of(env)["step_count"] == 1
    env.close()


def test_a_vector_gets_the_error_at_once_too(transport: str, strict: RunningServer) -> None:
    env = RemoteVectorEnv(ECHO, strict.url, num_envs=2, call_deadline=PATIENT)
    env.reset(seed=1)
    with at_once(), pytest.raises(ew.InvalidArgument, match=TOO_LARGE):
        env.step(("x" * 70_000, ""))
    assert env.step(("a", "b"))[0] == ("a", "b")
    env.close()


def test_a_first_reset_with_a_retryable_fault_is_tried_again(transport: str, strict: RunningServer) -> None:
    session = RemoteSession(Address.of(ECHO, strict.url), Create(ECHO), PATIENT)
    with at_once(), pytest.raises(ew.InvalidArgument, match=TOO_LARGE):
        session.reset(1, {"much": "x" * 70_000})
    assert session.reset(1, None).observation == "Echo environment ready!"
    session.close()


def test_arguments_larger_than_the_server_takes_are_refused_when_it_is_made(strict: RunningServer) -> None:
    with at_once(), pytest.raises(ew.InvalidArgument, match="exceeds"):
        ew.make(ECHO, backend=strict.url, num_envs=2, greeting="x" * 70_000)


# Frames with too many values


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningServer]:
    """A server that takes frames of the usual size."""
    with running_server(ECHO) as server:
        remember_token(server.url, server.token or "")
        yield server


def test_a_frame_with_too_many_values_is_refused_at_once_and_the_session_goes_on(
    transport: str, plain: RunningServer
) -> None:
    env = RemoteEnv(ECHO, plain.url, call_deadline=PATIENT)
    env.reset(seed=1)
    with at_once(), pytest.raises(ew.InvalidArgument, match="more than 1,048,576 values"):
        env.step([None] * (1 << 20))
    assert env.step("small")[0] == "small"
    assert ew.state_of(env)["step_count"] == 1
    env.close()


def test_a_vector_gets_the_same_error_and_plays_batches_of_long_texts(
    transport: str, plain: RunningServer
) -> None:
    env = RemoteVectorEnv(ECHO, plain.url, num_envs=512, call_deadline=PATIENT)
    env.reset(seed=1)
    texts = tuple("x" * 1500 + str(row) for row in range(512))
    with at_once(), pytest.raises(ew.InvalidArgument, match="more than 1,048,576 values"):
        env.step(([None] * (1 << 20), *texts[1:]))
    assert env.step(texts)[0] == texts
    env.close()


# Ends of WebSockets


@pytest.mark.parametrize("code", [1003, 1008, 1010])
def test_a_permanent_end_is_reported_at_once(code: int) -> None:
    refused = pytest.raises(ew.NotAvailable, match="you are not welcome")
    with peer(ends(code, "you are not welcome")) as unkind, at_once(), refused:
        unkind.session(PATIENT).reset(0, None)


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1011, 1012, 1013, 4000])
def test_after_any_other_end_another_connection_is_tried(code: int) -> None:
    with peer(ends(code, "come again"), plays) as restarted, at_once():
        assert restarted.session(PATIENT).reset(0, None).observation == 0


def test_the_error_at_the_deadline_has_the_reason_of_the_last_hang_up() -> None:
    with peer(ends(1013, "come again")) as busy, pytest.raises(ConnectionError, match="come again"):
        busy.session(0.5).reset(0, None)


# Answers of proxies


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_whose_server_is_not_there_is_asked_again(
    status: int, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, back = answers(status), plays if transport == "websocket" else plays_over_http
    with peer(gone, gone, back) as proxy, at_once():
        assert proxy.session(PATIENT).reset(0, None).observation == 0
    assert set(proxy.methods) == {"GET" if transport == "websocket" else "POST"}


@pytest.mark.parametrize(
    ("status", "body", "kind", "error"),
    [
        (502, HTML, "text/html", ConnectionError),
        (503, b"", "text/plain", ConnectionError),
        (504, b"\x93", "application/octet-stream", ConnectionError),
        (503, FULL, "application/json", AtCapacity),
        (413, HTML, "text/html", ew.InvalidArgument),
        (404, HTML, "text/html", ew.NotAvailable),
        (200, b"\x93", "application/msgpack", ew.NotAvailable),
    ],
)
def test_a_reply_of_a_proxy_is_no_description(
    status: int, body: bytes, kind: str, error: type[Exception]
) -> None:
    with peer(answers(status, body, kind)) as proxy, pytest.raises(error):
        describe(Address.of("x", proxy.url), Create("x"), PATIENT)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (answers(413), ew.InvalidArgument),
        (answers(503, FULL, "application/json"), AtCapacity),
    ],
)
def test_permanent_errors_are_reported_at_once_over_http(
    script: Script, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    block_websockets(monkeypatch)
    with peer(script) as proxy, at_once(), pytest.raises(error):
        proxy.session(PATIENT).reset(0, None)


def plays_a_reset(talk: Talk) -> None:
    """Play until a step comes, and hang up."""
    talk.shake_hands()
    for _ in range(2):
        talk.say(reply_to(talk.frame()))
    talk.frame()


def test_a_session_that_is_there_waits_for_a_connection() -> None:
    full = answers(503, FULL, "application/json")
    with peer(plays_a_reset, full, full, plays) as server, at_once():
        session = server.session(PATIENT)
        session.reset(0, None)
        session.call(Step(0, 0))
    assert server.methods == ["GET"] * 4


def test_a_listener_at_the_address_of_a_stopped_server_is_another_server() -> None:
    full = answers(503, FULL, "application/json")
    with peer(plays_a_reset, full, plays) as server, at_once():
        started_servers.keep_up(server.url, started_servers.Upkeep(lambda: None))
        started_servers.keep_up(server.url, None)
        session = server.session(PATIENT)
        session.reset(0, None)
        session.call(Step(0, 0))
    assert server.methods == ["GET"] * 3


def test_a_session_that_is_there_waits_for_a_connection_until_its_deadline() -> None:
    with peer(plays_a_reset, answers(503, FULL, "application/json")) as server:
        session = server.session(0.5)
        session.reset(0, None)
        with pytest.raises(ConnectionError, match="there is no room"):
            session.call(Step(0, 0))


def test_a_new_session_is_refused_at_once_at_capacity() -> None:
    full = peer(answers(503, FULL, "application/json"))
    with full as server, at_once(), pytest.raises(AtCapacity):
        server.session(PATIENT).reset(0, None)


def test_more_rows_than_the_servers_take_are_refused_before_a_session_is_opened() -> None:
    with running_server(ECHO, max_rows=4) as one, running_server(ECHO, max_rows=4) as other:
        for server in (one, other):
            remember_token(server.url, TOKEN)
        with pytest.raises(ew.InvalidArgument, match="num_envs=5 are 5 rows a server, which takes 4; spread"):
            ew.make(ECHO, num_envs=5, backend=one.url)
        env = ew.make(ECHO, num_envs=8, backend=[one.url, other.url])
        observations, _ = env.reset(seed=0)
        assert len(observations) == 8
        env.close()
