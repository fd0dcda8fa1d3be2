"""The short way to an actor on the same machine: who is let in, what is asked again, who leaves."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from servers import until

from envweave_gym.net.framed_socket import FramedSocket, connect, listen
from envweave_gym.net.shared_memory import SHARED_FRAME
from envweave_gym.providers.ray.actor_calls import actor_at
from envweave_gym.remote.address import Address
from envweave_gym.remote.transports.unix_sockets import connect_session
from envweave_gym.wire.messages import (
    Began,
    Create,
    Created,
    Hello,
    Reset,
    encode,
    read_reply,
    socket_of_actor,
)
from envweave_gym_server.protocols.native import framed_listener
from envweave_gym_server.protocols.native.actor import ActorServer

COUNTER = "envweave/Counter-v0"


@pytest.fixture
def name() -> str:
    return f"tests/{uuid.uuid4().hex}"


@pytest.fixture
def server(name: str) -> Iterator[ActorServer]:
    server = ActorServer([COUNTER])
    server.listen_locally(name)
    until(lambda: is_there(name))
    yield server
    server.stop()


def soon() -> float:
    return time.monotonic() + 10


def transport_to(name: str) -> FramedSocket:
    way = Address(f"ray+actor://{name}").connector().connect("session", soon())
    assert isinstance(way, FramedSocket)
    return way


def create(name: str) -> None:
    with closing(connect_session(socket_of_actor(name), Hello(session="mine"), soon())) as peer:
        ask(peer, encode(Create(COUNTER)))


def ask(way: FramedSocket, frame: bytes) -> bytes:
    way.send(frame, soon())
    return way.receive(soon())


def test_frames_are_answered_in_order_and_hanging_up_abandons_the_session(
    server: ActorServer, name: str
) -> None:
    way = transport_to(name)
    way.send(encode(Reset(1, seed=0)), soon(), before=encode(Create(COUNTER)))
    assert isinstance(read_reply(way.receive(soon())), Created)
    assert isinstance(read_reply(way.receive(soon())), Began)
    (session,) = server._service.sessions._sessions.values()
    assert session is not None
    assert session.attached == 1
    way.close()
    until(lambda: session.attached == 0)


def test_a_large_reply_comes_over_the_socket_too(server: ActorServer, name: str) -> None:
    way = transport_to(name)
    ask(way, encode(Create(COUNTER, "vector", {"num_envs": 4000})))
    reply = ask(way, encode(Reset(1, seed=0)))
    assert len(reply) > SHARED_FRAME
    assert isinstance(read_reply(reply), Began)
    assert server._channels == {}, "it was no call of Ray"
    way.close()


def test_a_process_of_another_user_is_not_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(listener: Any, largest: int) -> FramedSocket:
        listener.accept()[0].close()
        raise PermissionError("another user")

    monkeypatch.setattr(framed_listener, "accept", refuse)
    server = ActorServer([COUNTER])
    server.listen_locally(name)
    with pytest.raises(ConnectionError):
        create(name)
    assert len(server._service.sessions) == 0
    server.stop()


def test_a_name_that_another_process_still_listens_at_is_taken_when_it_leaves(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framed_listener, "_PAUSE_S", 0.01)
    before = listen(socket_of_actor(name))
    server = ActorServer([COUNTER])
    server.listen_locally(name)
    before.close()
    until(lambda: is_there(name))
    server.stop()
    until(lambda: not is_there(name))


def is_there(name: str) -> bool:
    try:
        connect(socket_of_actor(name), soon()).close()
    except ConnectionRefusedError:
        return False
    return True


def test_an_actor_that_is_silent_is_given_up_at_the_deadline(name: str) -> None:
    listener = listen(socket_of_actor(name))
    way = transport_to(name)
    way.send(b"anybody there?", soon())
    with pytest.raises(TimeoutError, match="deadline"):
        way.receive(time.monotonic() + 0.05)
    way.close()
    listener.close()


def test_a_cluster_that_does_not_say_where_an_actor_is_is_given_up_at_the_deadline() -> None:
    asked = threading.Event()

    class Ray:
        def get_actor(self, name: str, namespace: str) -> Any:
            asked.wait(10)

    started = time.monotonic()
    with pytest.raises(TimeoutError, match="did not answer before the deadline"):
        actor_at(Ray(), "ray+actor://here/nobody", started + 0.1)
    assert time.monotonic() - started < 5
    asked.set()
