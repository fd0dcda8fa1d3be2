"""The short way to an actor on the same machine: who is let in, what is asked again, who leaves."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from servers import until

from envweave_gym.net.framed_socket import FramedSocket, connect, listen
from envweave_gym.providers.ray import actor_connector
from envweave_gym.providers.ray.actor_calls import actor_at
from envweave_gym.providers.ray.actor_connector import LocalActorTransport
from envweave_gym.remote.address import Address
from envweave_gym.wire.messages import Began, Create, Created, Reset, encode, read_reply, socket_of_actor
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


def transport_to(name: str) -> LocalActorTransport:
    way = Address(f"ray+actor://{name}").connector().connect("session", soon())
    assert isinstance(way, LocalActorTransport)
    return way


def ask(way: LocalActorTransport, frame: bytes) -> bytes:
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
    until(lambda: (session.attached, server._channels) == (0, {}))


def test_a_reply_that_is_too_large_and_all_after_it_come_by_calls(
    server: ActorServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bytes] = []

    class Calls:
        def __init__(self, address: Address, line: bytes, deadline: float) -> None:
            self._line, self._replies = line, list[bytes]()

        def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
            calls.append(frame)
            self._replies.append(bytes(server.frames(self._line + frame)))

        def receive(self, deadline: float) -> bytes:
            return self._replies.pop(0)

        def close(self) -> None:
            server.leave(self._line)

    monkeypatch.setattr(actor_connector, "ActorTransport", Calls)
    way = transport_to(name)
    create, reset = encode(Create(COUNTER)), encode(Reset(1, seed=0))
    way.send(create, soon())
    assert isinstance(read_reply(way.receive(soon())), Created)
    monkeypatch.setattr("envweave_gym_server.protocols.native.actor.LARGE", 1)
    way.send(reset, soon())
    began = way.receive(soon())
    assert isinstance(read_reply(began), Began)
    assert calls == [reset]
    (session,) = server._service.sessions._sessions.values()
    assert session is not None
    assert (session.core.committed, session.core.last_reply) == (1, began), "it was done once"
    way.send(reset, soon())
    assert way.receive(soon()) == began
    assert calls == [reset, reset]
    way.close()
    until(lambda: (session.attached, server._channels) == (0, {}))


def test_a_process_of_another_user_is_not_answered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(listener: Any, largest: int) -> FramedSocket:
        listener.accept()[0].close()
        raise PermissionError("another user")

    monkeypatch.setattr(framed_listener, "accept", refuse)
    server = ActorServer([COUNTER])
    server.listen_locally(name)
    way = transport_to(name)
    with pytest.raises(ConnectionError, match=rf"ray\+actor://{name} "):
        ask(way, encode(Create(COUNTER)))
    way.close()
    assert server._channels == {}
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
    with pytest.raises(TimeoutError, match="did not answer before the deadline"):
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
