"""A session that is abandoned frees its slot on the server at once, also while its step runs on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_peers import Peer, Talk, answers, peer
from remote_worlds import TROUBLE, transport
from servers import TOKEN, RunningServer, running_server, serving_at, until

import envweave_gym as ew
from envweave_gym.core.faults import EnvironmentCrashed
from envweave_gym.remote import abandoned_sessions, session, started_servers
from envweave_gym.remote.abandoned_sessions import delete_abandoned
from envweave_gym.remote.address import Address, remember_token
from envweave_gym.remote.env import RemoteEnv
from envweave_gym.remote.session import RemoteSession
from envweave_gym.remote.vector import RemoteVectorEnv
from envweave_gym.wire.messages import Create, Step

__all__ = ["transport"]
LATE: dict[str, Any] = {"nap": 1.5, "call_deadline": 0.5, "reset_deadline": 5.0}
"""A step with action 2 is not waited for to its end."""


@pytest.fixture(scope="module")
def full() -> Iterator[RunningServer]:
    """A server with room for two sessions, which end with their leases much too late."""
    options = {"max_sessions": 2, "idle_timeout": 600, "allow_kwargs": "tests/Trouble-v0=nap"}
    with running_server(TROUBLE, **options) as server:
        remember_token(server.url, TOKEN)
        yield server


def at_work(url: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"deletions at {url}"]


def test_closing_does_not_start_a_server_that_has_died(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[None] = []
    with running_server(TROUBLE, token=None) as server:
        env = RemoteEnv(TROUBLE, server.url)
        env.reset(seed=0)
        monkeypatch.setitem(
            started_servers._kept, server.url, started_servers.Upkeep(lambda: starts.append(None))
        )
        server.process.kill()
        server.process.wait()
        env.close()
    assert not starts


def test_as_many_environments_as_sessions_play_on_after_a_timeout(
    full: RunningServer, transport: str
) -> None:
    envs = [RemoteEnv(TROUBLE, full.url, **LATE) for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
    for env in envs:
        assert env.step(2)[4]["fault"].kind is ew.FaultKind.TIMEOUT
    for _ in range(3):
        for env in envs:
            assert "fault" not in env.reset(seed=0)[1]
            assert env.step(0)[0] == 1
    for env in envs:
        env.close()
    until(lambda: full.gauge("envweave_sessions") == 0)
    until(lambda: not at_work(full.url))


def test_so_does_a_vector(full: RunningServer) -> None:
    envs = RemoteVectorEnv(TROUBLE, [full.url] * 2, num_envs=4, **LATE)
    envs.reset(seed=0)
    for _ in range(2):
        faults = envs.step(np.array([2, 0, 0, 2]))[4]["fault"]
        assert {fault.kind for fault in faults} == {ew.FaultKind.TIMEOUT}
        assert "fault" not in envs.reset(seed=0)[1]
        assert envs.step(np.zeros(4, int))[0].tolist() == [1] * 4
    envs.close()
    until(lambda: full.gauge("envweave_sessions") == 0)
    until(lambda: not at_work(full.url))


def test_a_session_that_cannot_be_closed_during_a_step_frees_its_slot(full: RunningServer) -> None:
    one = RemoteSession(Address(full.url), Create(TROUBLE, kwargs={"nap": 4.0}), 0.5)
    one.reset(0, None)
    one.send(Step(0, 2))
    until(lambda: full.gauge("envweave_sessions_busy") == 1)
    started = time.monotonic()
    one.close()
    until(lambda: full.gauge("envweave_sessions") == 0)
    assert time.monotonic() - started < 3


def test_it_goes_to_unix_sockets_too(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with serving_at(path) as (_, line):
        assert line
        address = Address(f"http+unix://{str(path).replace('/', '%2F')}")
        remember_token(address.url, TOKEN)
        one = RemoteSession(address, Create("envweave/Counter-v0"), 10.0)
        one.reset(1, None)
        lost = RemoteSession(address, Create("envweave/Counter-v0"), 10.0)
        lost.id = one.id
        one.discard()
        until(lambda: not at_work(address.url))
        lost._core.committed = 1
        with pytest.raises(ew.SessionLost, match="there is no session"):
            lost.ask("state")


# Who says it, and to whom


def in_a_session(there: Peer) -> RemoteSession:
    one = there.session(1.0)
    one._core.may_exist = True
    return one


def test_it_is_a_request_to_delete_the_session() -> None:
    reported: list[str] = []

    def listens(talk: Talk) -> None:
        reported.append(talk.request()[0]["authorization"])
        talk.respond(204, b"")

    with peer(listens) as server:
        remember_token(server.url, "its-token")
        in_a_session(server).discard()
        until(lambda: not at_work(server.url))
        assert (server.methods, reported) == (["DELETE"], ["Bearer its-token"])


def test_nothing_is_said_of_a_session_that_never_was_or_is_another_process_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(session, "delete_abandoned", lambda *reported: said.append(reported))
    with peer(answers(204)) as server:
        server.session(1.0).discard()
        forked = in_a_session(server)
        forked._disown()
        forked.discard()
        assert said == []
        mine = in_a_session(server)
        mine.discard()
        assert said == [(mine.address, mine.id)]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TimeoutError("late"), True),
        (ConnectionError("cut"), True),
        (ew.SessionLost("the server says that it is gone"), False),
        (EnvironmentCrashed("its session goes on"), False),
    ],
)
def test_a_session_that_is_gone_is_not_closed_again(
    error: Exception, says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(session, "delete_abandoned", lambda address, session_id: said.append(session_id))
    with peer(answers(204)) as server:
        env = RemoteEnv("x/X-v0", server.url)
        one = env._served.session()
        one._core.may_exist = True
        env._served.lost(error)
        assert said == [one.id] * says


def test_no_server_is_started_and_no_actor_is_called() -> None:
    def starts() -> None:
        raise AssertionError("a server was started")

    with peer(answers(204)) as server:
        started_servers.keep_up(server.url, started_servers.Upkeep(starts))
        try:
            delete_abandoned(Address(server.url), "one")
            until(lambda: not at_work(server.url))
        finally:
            started_servers.keep_up(server.url, None)
        assert server.methods == ["DELETE"]
    delete_abandoned(Address("ray+actor://space/name"), "one")
    assert not at_work("ray+actor://space/name")


def test_a_server_that_stands_still_holds_one_thread_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandoned_sessions, "_TIMEOUT_S", 0.4)

    def says_nothing(talk: Talk) -> None:
        talk.request()
        time.sleep(5)

    with peer(says_nothing) as server:
        started = time.monotonic()
        for number in range(50):
            delete_abandoned(Address(server.url), str(number))
        assert time.monotonic() - started < 0.2
        assert len(at_work(server.url)) == 1
        until(lambda: not at_work(server.url), 3)
        delete_abandoned(Address(server.url), "another")
        assert len(at_work(server.url)) == 1
        until(lambda: not at_work(server.url), 3)
    assert not abandoned_sessions._deletions.value.queues


def test_a_deletion_that_fails_is_silent() -> None:
    delete_abandoned(Address("http://127.0.0.1:9"), "one")
    delete_abandoned(Address("http://no.invalid", "file:/nowhere/token"), "two")
    until(lambda: not at_work("http://127.0.0.1:9") and not at_work("http://no.invalid"))
