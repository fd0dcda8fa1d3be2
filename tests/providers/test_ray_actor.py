"""The server in an actor: lines of clients that hang up while their calls are under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from envweave_gym.providers.ray.actor_calls import channel_prefix
from envweave_gym.wire.messages import Create, Created, encode, read_reply
from envweave_gym_server.protocols.native import actor
from envweave_gym_server.protocols.native.actor import ActorServer

COUNTER = "envweave/Counter-v0"
FRAME = encode(Create(COUNTER))


@pytest.fixture
def server() -> Iterator[ActorServer]:
    server = ActorServer([COUNTER])
    yield server
    server.stop()


def test_a_call_that_comes_after_its_client_has_left_opens_no_line(server: ActorServer) -> None:
    here, late = channel_prefix("one", "here"), channel_prefix("two", "late")
    assert isinstance(read_reply(server.frames(here + FRAME)), Created)
    assert list(server._channels) == [here]
    server.leave(here)
    server.leave(late)
    for line in (here, late):
        server.frames(line + FRAME)
    assert server._channels == {}
    assert {session and session.attached for session in server._service.sessions._sessions.values()} <= {0}


def test_a_client_that_leaves_during_a_scan_is_no_error(
    server: ActorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = channel_prefix("one", "first"), channel_prefix("two", "second")
    server.frames(first + FRAME)
    leaving = threading.Thread(target=server.leave, args=(first,))

    def leaves(line: object) -> bool:
        leaving.start()
        leaving.join(0.1)
        return True

    monkeypatch.setattr(actor.ActorChannel, "has_left", leaves)
    server._opened(second)
    leaving.join(10)
    assert (leaving.is_alive(), list(server._channels)) == (False, [second])
    monkeypatch.undo()


def test_of_those_that_have_left_only_so_many_are_remembered(
    server: ActorServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "_MOST_LEFT", 2)
    names = [channel_prefix("one", str(number)) for number in range(4)]
    for name in names:
        server.leave(name)
    assert list(server._left) == names[2:]
