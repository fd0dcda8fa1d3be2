"""A reset of a server that is not there is given up in time; one that is under way may take its time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from remote_peers import Script, Talk, answers, peer, plays, plays_over_http, reply_to
from remote_worlds import transport
from servers import running_server

import envweave_gym as ew
from envweave_gym.remote.address import Address, remember_token
from envweave_gym.remote.session import RemoteSession, call_all
from envweave_gym.wire.messages import CONTENT_TYPE, Began, Create, Reset

__all__ = ["transport"]
COUNTER, KUHN = "envweave/Counter-v0", "envweave/KuhnPoker-v0"
NOBODY = "http://127.0.0.1:9"
LONG, HOPE, NAP = 20.0, 0.3, 1.0


@contextmanager
def soon(seconds: float = HOPE) -> Iterator[None]:
    """The block takes so long, and far less than ``call_deadline``."""
    started = time.monotonic()
    yield
    assert 0.8 * seconds < time.monotonic() - started < seconds + 3


def says_nothing(talk: Talk) -> None:
    time.sleep(LONG)


def naps(talk: Talk) -> None:
    """A server whose reset takes long."""
    talk.shake_hands()
    talk.frame()
    frame = talk.frame()
    time.sleep(NAP)
    talk.say(reply_to(frame))
    talk.frame()


def naps_over_http(talk: Talk) -> None:
    while True:
        _, frame = talk.request()
        time.sleep(NAP)
        talk.respond(200, reply_to(frame), CONTENT_TYPE)


def hangs_up_after_a_while(talk: Talk) -> None:
    talk.shake_hands()
    talk.frame()
    time.sleep(NAP)


def nobody() -> RemoteSession:
    return RemoteSession(Address.of("x", NOBODY), Create("x"), LONG)


# Nobody is there


def test_of_a_server_that_is_gone_gives_a_placeholder_after_the_reset_deadline() -> None:
    ways: list[dict[str, Any]] = [
        {"id": COUNTER},
        {"id": COUNTER, "num_envs": 2},
        {"id": KUHN, "api": "aec"},
        {"id": KUHN, "api": "parallel"},
    ]
    with running_server(COUNTER, KUHN) as server:
        remember_token(server.url, server.token or "")
        deadlines = {"call_deadline": LONG, "reset_deadline": HOPE}
        envs = [ew.make(way.pop("id"), backend=server.url, **way, **deadlines) for way in ways]
        for env in envs:
            env.reset(seed=1)
        server.process.terminate()
        server.process.wait()
        for env in envs:
            with soon():
                reported = env.reset(seed=2)
            infos = reported[1] if reported else env.infos
            fault = infos["fault"] if "fault" in infos else infos["player_0"]["fault"]
            assert (fault if isinstance(fault, ew.Fault) else fault[0]).kind is ew.FaultKind.LOST


def test_a_refusing_server_is_given_up(transport: str) -> None:
    with soon(), pytest.raises(ConnectionError):
        nobody().reset(0, None, give_up_s=HOPE)


def test_a_silent_server_is_given_up() -> None:
    with peer(says_nothing) as silent, soon(1.5), pytest.raises(TimeoutError):
        silent.session(LONG).reset(0, None, give_up_s=1.5)


def test_a_client_that_comes_back_in_time_keeps_its_session(transport: str) -> None:
    back = plays if transport == "websocket" else plays_over_http
    with peer(answers(502), answers(503), back) as server:
        assert server.session(LONG).reset(0, None, give_up_s=LONG).observation == 0


def test_one_that_is_gone_does_not_keep_the_others_for_longer() -> None:
    with peer(naps) as slow:
        sessions = [nobody(), slow.session(LONG), nobody()]
        with soon(NAP):
            lost, reply, also = call_all(sessions, [Reset(0, 0, None) for _ in range(3)], HOPE)
        assert isinstance(lost, ConnectionError)
        assert isinstance(also, ConnectionError)
        assert isinstance(reply, Began)


# A reset is under way


@pytest.mark.parametrize("hope", [0.0, HOPE])
def test_under_way_may_take_longer_than_the_reset_deadline(hope: float, transport: str) -> None:
    with peer(naps if transport == "websocket" else naps_over_http) as slow, soon(NAP):
        assert slow.session(LONG).reset(0, None, give_up_s=hope).observation == 0


@pytest.mark.parametrize("script", [plays, naps])
def test_under_way_goes_on_after_its_connection_was_cut(script: Script) -> None:
    with peer(hangs_up_after_a_while, hangs_up_after_a_while, script) as server:
        assert server.session(LONG).reset(0, None, give_up_s=HOPE).observation == 0


def test_under_way_ends_with_the_call_deadline() -> None:
    with peer(naps) as slow, pytest.raises(TimeoutError):
        slow.session(0.4).reset(0, None, give_up_s=LONG)


# Addresses


def test_a_name_that_is_looked_up_for_long_is_looked_up_once_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released, asked = threading.Event(), []

    def long_lookup(*what: Any, **how: Any) -> Any:
        asked.append(what)
        released.wait(10)
        raise socket.gaierror("nobody knows")

    monkeypatch.setattr(socket, "getaddrinfo", long_lookup)
    session = RemoteSession(Address.of("x", "http://far.invalid:8000"), Create("x"), 0.8)
    with soon(0.8), pytest.raises(TimeoutError):
        session.reset(0, None)
    released.set()
    assert asked == [("far.invalid", 8000)]


def test_the_error_for_an_unknown_host_names_it() -> None:
    session = RemoteSession(Address.of("x", "http://far.invalid:8000"), Create("x"), 0.5)
    with pytest.raises(ConnectionError, match=r"far\.invalid has no address"):
        session.reset(0, None)
