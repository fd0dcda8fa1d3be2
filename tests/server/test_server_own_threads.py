"""An environment of another package is made, played, drawn and closed in one thread of a server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import bound_envs
import gymnasium as gym
import pytest
from json_clients import JsonClient, sentence
from servers import until

from envweave_gym.registry.catalog import EnvCard, register_card
from envweave_gym.wire.messages import Ask, encode, read_reply
from envweave_gym_server.environments.own_thread import OwnThread
from envweave_gym_server.offers.offers import offer_of_factory

ENV_ID = "tests/Bound-v0"


def elsewhere(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in a thread that nobody else has."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


_before: set[threading.Thread] = set()
"""Threads of environments that other tests have left."""


def environments() -> set[threading.Thread]:
    """The threads of environments that this test has started."""
    return {one for one in threading.enumerate() if one.name.startswith("environment ")} - _before


@pytest.fixture(autouse=True)
def _count_anew() -> None:
    _before.update(environments())


Serve = Callable[..., JsonClient]


@pytest.fixture
def serve(registries: None) -> Iterator[Serve]:
    """Makes servers, which stop after the test; no thread of an environment outlives them."""
    clients: list[JsonClient] = []

    def started(*what: Any, **options: Any) -> JsonClient:
        clients.append(JsonClient(*what, **options))
        return clients[-1]

    yield started
    for one in clients:
        one.state.stop()
    until(lambda: not environments())


@pytest.fixture
def client(request: pytest.FixtureRequest, serve: Serve) -> JsonClient:
    """A server with the environment: by ID, as a factory, or by a card."""
    if request.param == "card":
        register_card(
            EnvCard(id=ENV_ID, doc=".", gym="bound_envs:Bound", thread_affine=True), package="tests"
        )
    elif request.param == "id":
        gym.register(ENV_ID, "bound_envs:Bound")
    else:
        return serve(offer_of_factory(bound_envs.Bound, name=ENV_ID))
    return serve(ENV_ID)


def picture(client: JsonClient, path: str) -> Any:
    """What the environment of a session draws, which the JSON API does not send."""
    ask = Ask(-2, "render")
    frame, _ = client.state.sessions.get(path.rpartition("/")[2]).peek(ask, encode(ask))
    reply: Any = read_reply(frame)
    return reply.value


@pytest.mark.parametrize("client", ["id", "factory", "card"], indirect=True)
def test_requests_of_any_thread_reach_the_environment_in_its_own(client: JsonClient):
    session = elsewhere(lambda: client.open(ENV_ID, kwargs={"render_mode": "rgb_array"}))
    assert elsewhere(lambda: client.post(f"{session}/reset"))["observation"] == 1
    assert client.post(f"{session}/step", {"action": 0})["observation"] == 1
    assert elsewhere(lambda: client.post(f"{session}/step", {"action": 0}))["observation"] == 1
    assert elsewhere(lambda: picture(client, session)).min() == 255
    bound_envs.Bound.closed_in.clear()
    client.ask("DELETE", session)
    assert bound_envs.Bound.closed_in == [True]
    until(lambda: not environments())


@pytest.mark.parametrize("client", ["id"], indirect=True)
def test_its_exceptions_are_raised_as_before(client: JsonClient):
    session = client.open(ENV_ID)
    client.post(f"{session}/reset")
    assert "I do not like this action" in str(client.ask("POST", f"{session}/step", {"action": 1}).json)
    reported = client.post("/v1/sessions", {"id": ENV_ID, "kwargs": {"max_steps": 0}}, 422)
    assert "max_steps=0" in sentence(reported)
    until(lambda: len(environments()) == 1)  # the one that could not be made leaves none


def test_games_and_vectors_have_one_thread_too(serve: Serve):
    client = serve(offer_of_factory(bound_envs.BoundGame), offer_of_factory(bound_envs.Bound))
    for api in ("aec", "parallel"):
        session = elsewhere(lambda api=api: client.open("BoundGame", api=api))
        client.post(f"{session}/reset")
    rows = elsewhere(lambda: client.open("Bound", api="vector", kwargs={"num_envs": 2}))
    assert client.post(f"{rows}/reset")["observation"] == [1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="process isolation needs Linux")
def test_a_process_of_its_own_plays_in_one_thread_anyway(serve: Serve):
    client = serve(offer_of_factory(bound_envs.Bound), isolation="process")
    session = elsewhere(lambda: client.open("Bound"))
    assert elsewhere(lambda: client.post(f"{session}/reset"))["observation"] == 1
    assert client.post(f"{session}/step", {"action": 0})["observation"] == 1


def test_our_own_environments_have_no_thread_to_wait_for(serve: Serve):
    client = serve("envweave/Counter-v0")
    client.post(f"{client.open('envweave/Counter-v0')}/reset")
    assert not environments()


def test_it_gives_and_raises_what_the_call_does():
    own = OwnThread("of a test")
    assert own.run(threading.get_ident) == own.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(SystemExit):
        own.run(sys.exit, 3)
    assert own.run(int, "7") == 7
    own.close()
    until(lambda: not environments())


def test_a_call_after_the_end_is_refused_and_those_before_it_are_done():
    thread, began, may_end = OwnThread("of a test"), threading.Event(), threading.Event()

    def wait() -> bool:
        began.set()
        return may_end.wait(10)

    with ThreadPoolExecutor(2) as callers:
        first = callers.submit(thread.run, wait)
        assert began.wait(10)
        second = callers.submit(thread.run, int)
        until(lambda: thread._calls.qsize() == 1, 10)
        thread.close()
        with pytest.raises(RuntimeError, match="has ended"):
            thread.run(int)
        may_end.set()
        assert (first.result(10), second.result(10)) == (True, 0)
