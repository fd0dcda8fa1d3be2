"""Framed Unix sockets do for sessions, health and abandoned sessions what HTTP does."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from urllib.parse import quote

import gymnasium as gym
import numpy as np
import pytest
from remote_worlds import TROUBLE
from servers import until

import envweave_gym as ew
from envweave_gym.core.faults import SessionLost
from envweave_gym.net.framed_socket import listen
from envweave_gym.providers.ray.pipelined import PipelinedSession
from envweave_gym.providers.replica import answers, is_healthy
from envweave_gym.remote.address import Address, remember_token
from envweave_gym.remote.session import RemoteSession
from envweave_gym.testing.traces import same
from envweave_gym.wire.messages import Began, Create, Step
from envweave_gym_server.core.settings import settings_of_owner
from envweave_gym_server.offers.offers import Everything
from envweave_gym_server.protocols.native.framed_sessions import FramedSessions
from envweave_gym_server.sessions.service import SessionService

LINE, COUNTER, KUHN = (f"envweave/{name}-v0" for name in ("LineWorld", "Counter", "KuhnPoker"))
TOKEN = "token-of-the-tests"


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[SessionService, str]]:
    address = f"@envweave/tests/{uuid.uuid4().hex}"
    service = SessionService(Everything(), settings_of_owner())
    FramedSessions(service, listen(address), TOKEN).start()
    url = f"unix://{quote(address, safe='')}"
    remember_token(url, TOKEN)
    yield service, url
    service.stop()


def soon() -> float:
    return time.monotonic() + 10


def test_environments_vectors_and_games_play_as_they_do_here(service: tuple[SessionService, str]) -> None:
    url = service[1]
    here, there = gym.make(LINE, length=9), gym.make(LINE, length=9, backend=url)
    assert same(here.reset(seed=3), there.reset(seed=3))
    for _ in range(20):
        mine, theirs = here.step(1), there.step(1)
        assert same(mine, theirs)
        if mine[2] or mine[3]:
            assert same(here.reset(), there.reset())
    there.close()
    rows = ew.make(LINE, num_envs=300, backend=url)
    assert same(rows.reset(seed=1)[0], ew.make(LINE, num_envs=300).reset(seed=1)[0])
    rows.close()
    game = ew.make(KUHN, backend=url)
    assert same(game.reset(seed=1)[0], ew.make(KUHN).reset(seed=1)[0])
    game.close()
    until(lambda: len(service[0].sessions) == 0)


def test_a_wrong_token_is_refused_with_what_to_do(service: tuple[SessionService, str]) -> None:
    wrong = Address(service[1], "env:WRONG")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WRONG", "wrong")
        with pytest.raises(ew.NotAvailable, match="token"):
            RemoteSession(wrong, Create(COUNTER), 5.0).reset(0, None)


def test_its_health_and_its_sessions_are_asked_over_the_same_socket(
    service: tuple[SessionService, str],
) -> None:
    env = gym.make(COUNTER, backend=service[1])
    env.reset()
    assert is_healthy(service[1])
    assert Address(service[1]).connector().count_sessions(soon()) == 1
    env.close()


def test_an_address_without_a_listener_is_an_error_that_says_so() -> None:
    url = "unix://%40envweave%2Ftests%2Fnobody"
    assert not is_healthy(url)
    assert not answers(url, 1.0)
    with pytest.raises(ConnectionError, match=r"%40envweave.*refused"):
        ew.make(COUNTER, backend=url)


def test_a_session_that_is_abandoned_while_its_step_runs_is_deleted_at_once(
    service: tuple[SessionService, str],
) -> None:
    one = RemoteSession(Address(service[1]), Create(TROUBLE, kwargs={"nap": 2.0}), 0.5)
    one.reset(0, None)
    one.send(Step(0, 2))
    until(lambda: service[0].sessions.under_way == 1)
    started = time.monotonic()
    one.discard()
    until(lambda: len(service[0].sessions) == 0)
    assert time.monotonic() - started < 1.5


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_reply_that_an_interruption_leaves_unread_is_not_taken_for_that_to_the_next_call(
    service: tuple[SessionService, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ew.make(COUNTER, num_envs=2, backend=service[1])
    begun = rows.reset(seed=1)[0]["count"].tolist()
    monkeypatch.setattr(RemoteSession, "attempt", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rows.step({"delta": np.array([3, 3])})
    monkeypatch.undo()
    assert rows.reset(seed=1)[0]["count"].tolist() == begun
    assert rows.step({"delta": np.array([1, 1])})[0]["count"].tolist() == [count + 1 for count in begun]
    rows.close()


@pytest.mark.parametrize("is_polled", [False, True])
def test_the_reply_to_a_step_that_was_sent_ahead_is_not_taken_for_that_to_a_reset(
    service: tuple[SessionService, str], is_polled: bool
) -> None:
    session = PipelinedSession(Address(service[1]), Create(COUNTER), 5.0)
    session.reset(0, None)
    session.send_ahead(Step(0, {"delta": 1}))
    until(lambda: service[0].sessions.get(session.id).core.committed == 2)
    if is_polled:
        session.poll()
        assert isinstance(session.reset(1, None), Began)
    else:
        with pytest.raises(SessionLost):
            session.reset(1, None)
    session.close()


def test_a_session_whose_close_is_interrupted_is_not_played_on(
    service: tuple[SessionService, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = gym.make(COUNTER, backend=service[1])
    env.reset(seed=1)
    monkeypatch.setattr(RemoteSession, "close", interrupt)
    with pytest.raises(KeyboardInterrupt):
        env.close()
    monkeypatch.undo()
    with pytest.raises(ew.ResetNeeded):
        env.step({"delta": 1})
    assert "fault" not in env.reset(seed=1)[1]
    env.close()


@pytest.mark.parametrize("url", ["unix://", "unix://%2Ftmp%2Fx/path"])
def test_an_address_without_a_socket_is_one_sentence(url: str) -> None:
    with pytest.raises((ew.InvalidArgument, ew.UnknownEnvironment), match="unix:"):
        ew.make(COUNTER, backend=url)
