"""Sessions over a framed Unix socket: who is let in, pipelined calls, hang-ups, and how a server stops."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import served_envs  # noqa: F401 - registers served/Nap-v0
from framed_server import FramedServer, soon
from servers import until

from envweave_gym.net.framed_socket import FramedSocket, connect
from envweave_gym.wire.messages import (
    HEALTH,
    Answer,
    Ask,
    Began,
    Close,
    Create,
    Created,
    Refused,
    Reset,
    Step,
    Stepped,
    encode,
    pack,
    read_reply,
)
from envweave_gym_server.protocols.native import framed_listener

COUNTER, NAP = "envweave/Counter-v0", "served_envs:served/Nap-v0"


@pytest.fixture
def server() -> Iterator[FramedServer]:
    server = FramedServer()
    yield server
    server.stop()


def ask(peer: FramedSocket, message: Any) -> Any:
    peer.send(encode(message))
    return reply_of(peer)


def reply_of(peer: FramedSocket) -> Any:
    return read_reply(peer.receive(soon()))


def test_an_episode_is_played_and_a_hang_up_detaches_the_session(server: FramedServer) -> None:
    peer = server.connect("one")
    assert isinstance(ask(peer, Create(COUNTER)), Created)
    assert isinstance(ask(peer, Reset(1, 0)), Began)
    stepped = ask(peer, Step(2, {"delta": 1}))
    assert isinstance(stepped, Stepped)
    session = server.service.sessions.get("one")
    assert session.attached == 1
    peer.close()
    until(lambda: session.attached == 0)
    again = server.connect("one")
    assert ask(again, Step(2, {"delta": 1})).info["seq"] == stepped.info["seq"], "it was done once"
    assert isinstance(ask(again, Close(-3)), Answer)
    until(lambda: len(server.service.sessions) == 0)


def test_calls_that_are_sent_together_are_answered_in_order(server: FramedServer) -> None:
    peer = server.connect("one")
    calls = (Create(COUNTER), Reset(1, 0), Step(2, {"delta": 1}), Ask(-2, "state"))
    create, reset, step, state = map(encode, calls)
    peer.send(reset, before=create)
    peer.send(state, before=step)
    assert [type(reply_of(peer)) for _ in calls] == [Created, Began, Stepped, Answer]


@pytest.mark.parametrize("token", ["", "another token", "ä"])
def test_without_the_token_nothing_is_answered(server: FramedServer, token: str) -> None:
    peer = server.connect("one", token)
    refused = reply_of(peer)
    assert isinstance(refused, Refused)
    assert (refused.kind, "token" in refused.message) == ("Unauthorized", True)
    peer.send(encode(Ask(-2, HEALTH)), soon())  # a client sends its first call before it reads the refusal
    with pytest.raises(ConnectionError):
        reply_of(peer)
    assert len(server.service.sessions) == 0


@pytest.mark.parametrize(
    "frame", [encode(Create(COUNTER)), b"\x94\xa5hello\xa0\xa0" + b"\x91" * 100_000], ids=["create", "deep"]
)
def test_a_first_frame_that_is_no_hello_is_refused(frame: bytes, server: FramedServer) -> None:
    peer = connect(server.address, soon())
    peer.send(frame)
    refused = reply_of(peer)
    assert (refused.kind, "hello" in refused.message) == ("BadRequest", True)
    peer.close()


def test_a_process_of_another_user_gets_no_answer(
    server: FramedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = framed_listener.accept
    refused = [True, False]

    def refuse_the_first(*arguments: Any) -> FramedSocket:
        peer = accept(*arguments)
        if refused.pop(0):
            peer.close()
            raise PermissionError("a process of user 7")
        return peer

    monkeypatch.setattr(framed_listener, "accept", refuse_the_first)
    ask(server.connect(), Ask(-2, HEALTH))  # it was accepted before the patch
    stranger = connect(server.address, soon())
    with pytest.raises(ConnectionError):
        stranger.receive(soon())
    stranger.close()
    assert isinstance(ask(server.connect(), Ask(-2, HEALTH)), Answer), "others are answered still"


def test_a_listener_that_fails_for_good_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(framed_listener, "accept", fail)
    listener = framed_listener.FramedListener(socket.socket(socket.AF_UNIX), lambda peer: None, 1 << 16)
    with pytest.raises(OSError, match="Bad file descriptor"):
        listener.run()


def test_without_a_session_environments_are_described_and_the_server_reports_its_health(
    server: FramedServer,
) -> None:
    peer = server.connect()
    described = ask(peer, Create(COUNTER))
    assert (described.value["env_id"], "action_space" in described.value) == (COUNTER, True)
    assert ask(peer, Ask(-2, HEALTH)) == Answer(-2, {"sessions": 0, "stopping": False})
    refused = ask(peer, Create("envweave/Nothing-v0"))
    assert refused.kind == "UnknownEnvironment"
    assert ask(peer, Reset(1)).kind == "BadRequest"
    peer.send(b"\xc1")
    assert reply_of(peer).kind == "BadRequest"


def test_a_frame_above_the_limit_ends_the_connection_and_leaves_the_session() -> None:
    server = FramedServer(largest_frame="64k")
    peer = server.connect("one")
    ask(peer, Create(COUNTER))

    def exchange() -> None:
        peer.send(bytes(70_000))  # the server may hang up before it has read all of it
        reply_of(peer)

    with pytest.raises(ConnectionError):
        exchange()
    assert isinstance(ask(server.connect("one"), Reset(1, 0)), Began)
    server.stop()


def test_a_server_that_stops_ends_idle_connections_and_answers_the_call_that_is_under_way() -> None:
    server = FramedServer()
    idle, busy = server.connect("idle"), server.connect("busy")
    ask(idle, Create(COUNTER))
    ask(busy, Create(NAP))
    ask(busy, Reset(1, 0))
    busy.send(encode(Step(2, pack(np.array(0.5)))))
    until(lambda: server.service.sessions.under_way == 1)
    stopping = threading.Thread(target=server.service.stop)
    stopping.start()
    with pytest.raises(ConnectionError):
        reply_of(idle)
    assert isinstance(reply_of(busy), Stepped)
    with pytest.raises(ConnectionError):
        reply_of(busy)
    stopping.join(10)
    assert len(server.service.sessions) == 0
    with pytest.raises(ConnectionRefusedError):
        connect(server.address, soon())
    server.stop()


def test_a_connection_waits_where_there_is_no_thread_for_it(
    server: FramedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(server.connect(), Ask(-2, HEALTH))
    start, failed = threading.Thread.start, list[str]()

    def fail_once(thread: threading.Thread) -> None:
        if thread.name == "framed peer" and not failed:
            failed.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    with pytest.raises(ConnectionError):
        reply_of(server.connect())
    assert isinstance(ask(server.connect(), Ask(-2, HEALTH)), Answer)
