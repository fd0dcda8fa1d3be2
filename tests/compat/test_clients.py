"""Typed clients: Echo, Coding and one of a user's own, in this process, on a server and in a container."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from command_env import CARD, MY, MyAction, MyEnv, MyObservation, MyState
from engines import client, ours
from remote_worlds import kill, mortal
from servers import running_server

import envweave_gym as ew
from envweave_gym.compat.clients import (
    CodeAction,
    CodeObservation,
    CodeState,
    CodingEnv,
    EchoAction,
    EchoEnv,
    EchoObservation,
    State,
    StepResult,
    TypedClient,
)
from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.registry.catalog import register_card

__all__ = ["client", "mortal"]
ECHO = "envweave/Echo-v0"


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    """The ID of a user's own is known here, too, for as long as a test runs."""
    register_card(CARD, package="tests")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that lets everybody in and has several environments."""
    with running_server(ECHO, "envweave/Coding-v0", f"command_card:{MY}", token=None) as running:
        yield running.url


@pytest.fixture(params=["here", "there"])
def base_url(request: pytest.FixtureRequest) -> str | None:
    """No server, or one."""
    return None if request.param == "here" else request.getfixturevalue("server")


# Echo


def play_echo(env: EchoEnv) -> None:
    """The example that its users know."""
    result = env.reset()
    assert result.observation == EchoObservation("Echo environment ready!", 0)
    assert (result.reward, result.done) == (None, False)
    result = env.step(EchoAction(message="Hello, World!"))
    assert result.observation.echoed_message == "Hello, World!"
    assert result.observation.message_length == 13
    assert result.reward == pytest.approx(1.3)
    assert result.done is False
    state = env.state()
    assert (type(state), state.step_count) == (State, 1)


def test_echo_plays_here_and_on_a_server(base_url: str | None) -> None:
    with EchoEnv(base_url) as env:
        play_echo(env)


def test_echo_plays_in_a_container_that_is_gone_when_it_is_closed(client: Any) -> None:
    before = {container.id for container in ours(client)}
    env = EchoEnv.from_docker_image("envweave-echo:latest", memory="256m")
    try:
        assert len({container.id for container in ours(client)} - before) == 1
        play_echo(env)
    finally:
        env.close()
    assert {container.id for container in ours(client)} == before


# Coding


def play_coding(env: CodingEnv) -> None:
    """Programs that do well, that fail, and that reach for what they should not."""
    assert env.reset().observation == CodeObservation("", "", 0)
    result = env.step(CodeAction(code="print('Hello')\n40 + 2"))
    assert result.observation == CodeObservation("Hello\n42", "", 0)
    assert result.reward == pytest.approx(0.1)
    assert result.info["last_code"] == "print('Hello')\n40 + 2"
    result = env.step(CodeAction(code="1 / 0"))
    assert result.observation.exit_code == 1
    assert result.observation.stderr.endswith("ZeroDivisionError: division by zero")
    result = env.step(CodeAction(code="import os"))
    assert result.info["safety_violation"] == "os"
    state = env.state()
    assert isinstance(state, CodeState)
    assert (state.step_count, state.last_exit_code) == (3, 0)


def test_coding_plays_here_and_on_a_server(base_url: str | None) -> None:
    with CodingEnv(base_url) as env:
        play_coding(env)


def test_coding_plays_in_a_container(client: Any) -> None:
    with CodingEnv.from_docker_image("envweave-coding") as env:
        play_coding(env)


# A user's own


def test_a_client_of_ones_own_plays_here_and_on_a_server(base_url: str | None) -> None:
    with MyEnv(base_url=base_url) as env:
        assert env.reset().observation == MyObservation(result="Ready", success=True)
        result = env.step(MyAction(command="say", parameters={"what": 1, "to": "you"}, times=2, loud=True))
        assert result.observation == MyObservation("SAY 1 YOU SAY 1 YOU", True, 19)
        assert (result.reward, result.done) == (0.0, False)
        assert ew.stream_of(result.info).agents() == ("agent",)
        assert env.step(MyAction("fail")).observation.success == False  # noqa: E712 - it is 0
        assert env.step(MyAction("say")).done is True
        state = env.state()
        assert (state.step_count, state.custom_field) == (3, 3)
        assert isinstance(state, MyState)


def test_every_episode_has_an_id_of_its_own() -> None:
    with MyEnv() as one, MyEnv() as other:
        ids = [one.state().episode_id]
        for env in (one, one, other):
            env.reset()
            ids.append(env.state().episode_id)
        assert ids[0] is None
        assert len(set(ids)) == 4
        one.step(MyAction("say"))
        assert one.state().episode_id == ids[2]


@dataclass
class Move:
    """An action whose JSON is its fields."""

    delta: int


def test_without_hooks_types_are_their_fields_and_observations_json() -> None:
    with TypedClient[Move, Any](env_id="envweave/Counter-v0", target=3) as env:
        assert env.reset(seed=1).observation == {"count": 0}
        result = env.step(Move(delta=3))
        assert (result.observation, result.reward, result.done) == ({"count": 3}, 1.0, True)
        assert env.state()["target"] == 3


def test_options_and_seeds_go_to_the_environment() -> None:
    with TypedClient[str, dict[str, Any]](env_id="envweave/CodeAct-v0") as env:
        result = env.reset(seed=7, task="Add 1 and 2.")
        assert ew.messages_of(result.info)[0]["content"].startswith("Add 1 and 2.\n")
        assert ew.stream_of(result.info).events[0].data["seed"] == 7
        assert env.step("1 + 2").observation["value"] == "3"
        with pytest.raises(InvalidArgument, match="reset takes no option 'tsk'"):
            env.reset(tsk="x")


def test_the_only_environment_of_a_server_need_not_be_named() -> None:
    with running_server(ECHO, token=None) as running, TypedClient[str, str](running.url) as env:
        env.reset()
        assert env.step("word").observation == "word"


# What goes wrong


def test_a_client_without_an_environment_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="TypedClient needs base_url= of a server, or env_id="):
        TypedClient[Any, Any]()


@pytest.mark.parametrize("base_url", ["localhost:8000", "", 8000])
def test_an_invalid_url_is_refused(base_url: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"EchoEnv: base_url={base_url!r} is not a URL like"):
        EchoEnv(base_url)


def test_a_server_that_is_not_there_is_said_so() -> None:
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:9 does not answer"):
        EchoEnv(base_url="http://127.0.0.1:9", call_deadline=0.5)


@pytest.mark.parametrize("message", ["x" * 5000, "\ud800", 5, None])
def test_an_invalid_action_is_refused_by_name_and_the_episode_goes_on(
    base_url: str | None, message: Any
) -> None:
    with EchoEnv(base_url) as env:
        env.reset()
        with pytest.raises(InvalidAction, match=f"{ECHO}: "):
            env.step(EchoAction(message))
        assert env.step(EchoAction("on")).observation.echoed_message == "on"


def test_fields_that_do_not_fit_are_refused_by_name() -> None:
    with MyEnv() as env:
        env.reset()
        for wrong in (MyAction("x", times="many"), MyAction("x", parameters={"set": {1}})):  # type: ignore[arg-type]
            with pytest.raises(InvalidAction, match=f"{MY}: "):
                env.step(wrong)


def test_a_step_before_the_reset_is_refused() -> None:
    with EchoEnv() as env, pytest.raises(ew.ResetNeeded):
        env.step(EchoAction("early"))


def test_a_lost_episode_raises_and_the_next_reset_begins_another(mortal: PrivateServer) -> None:
    mortal.ensure()
    with EchoEnv(mortal.url) as env:
        env.reset()
        kill(mortal)
        with pytest.raises(ew.SessionLost):
            env.step(EchoAction("lost"))
        env.reset()
        assert env.step(EchoAction("found")).observation.echoed_message == "found"


def test_a_loss_is_data_where_that_is_wanted(mortal: PrivateServer) -> None:
    mortal.ensure()
    with EchoEnv(mortal.url, on_fault="truncate") as env:
        env.reset()
        kill(mortal)
        result = env.step(EchoAction("lost"))
        assert (result.reward, result.done) == (0.0, True)
        assert not ew.trainable(result.info)


def test_a_result_cannot_be_changed() -> None:
    result = StepResult(observation="x")
    assert (result.reward, result.done, result.info) == (None, False, {})
    with pytest.raises(AttributeError, match="immutable"):
        result.reward = 1.0  # type: ignore[misc]
    assert msgspec.structs.replace(result, done=True).done


@pytest.mark.parametrize("action", ["1 + 1", None, 5])
def test_an_invalid_action_of_a_client_is_refused_and_the_episode_goes_on(action: Any) -> None:
    with CodingEnv() as env:
        env.reset()
        with pytest.raises(InvalidAction, match=rf"{action!r} is no action of CodingEnv".replace("+", "[+]")):
            env.step(action)
        assert env.step(CodeAction(code="1 + 1")).observation.stdout == "2"
