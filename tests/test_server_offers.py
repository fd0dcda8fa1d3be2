"""Serving environments of one's own: classes, factories, typed objects, and names on a command line."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.spaces import Discrete
from json_clients import JsonClient, sentence
from served_envs import Awkward, Nap

from envweave_gym.faults import InvalidArgument, UnknownEnvironment
from envweave_gym.multiagent import kuhn_poker, line_race
from envweave_gym_server import create_app, offer_of_factory

pytestmark = pytest.mark.usefixtures("registries")


class Coin(gym.Env[int, int]):
    """Guess the side of a coin."""

    def __init__(self, sides: int = 2):
        self.observation_space = self.action_space = Discrete(sides)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> Any:
        return action, 1.0, True, False, {}


@dataclass
class Guess:
    word: str


@dataclass
class Hint:
    text: str
    reward: float = 0.0
    done: bool = False


class Words:
    """A word game without hints."""

    def reset(self, *, seed=None, options=None):
        return Hint("a colour")

    def step(self, action):
        return Hint("yes", reward=1.0, done=True) if action.word == "blue" else Hint("no")


def test_a_class_is_served_in_one_line():
    client = JsonClient(Coin)
    assert client.get("/v1/envs")["environments"] == [
        {"id": "Coin", "doc": "Guess the side of a coin.", "apis": ["gym", "vector"], "kwargs": []}
    ]
    session = client.open("Coin")
    client.post(f"{session}/reset", {"seed": 1})
    assert client.post(f"{session}/step", {"action": 1})["terminated"]
    assert "Coin takes no argument 'sides' from a client" in sentence(
        client.post("/v1/sessions", {"id": "Coin", "kwargs": {"sides": 3}}, 422)
    )


def test_an_offer_has_a_name_and_the_arguments_that_clients_may_give():
    client = JsonClient(offer_of_factory(Coin, name="mine/Coin-v0", kwargs=("sides",)), Nap)
    assert client.get("/v1/envs/mine/Coin-v0")["kwargs"][0] == "sides"
    session = client.open("mine/Coin-v0", kwargs={"sides": 7}, num_envs=2)
    client.post(f"{session}/reset")
    assert client.post(f"{session}/step", {"action": [6, 0]})["observation"] == [6, 0]


def test_objects_without_hints_are_served_with_models():
    client = JsonClient(offer_of_factory(Words, action=Guess, observation=Hint))
    session = client.open("Words")
    assert client.post(f"{session}/reset")["observation"] == {"text": "a colour"}
    told = client.post(f"{session}/step", {"action": {"word": "blue"}})
    assert (told["observation"], told["reward"], told["terminated"]) == ({"text": "yes"}, 1.0, True)


@pytest.mark.parametrize(("game", "api"), [(kuhn_poker.raw_env, "parallel"), (line_race.raw_env, "parallel")])
def test_a_factory_of_a_game_need_not_say_that_it_makes_one(game: Any, api: str):
    client = JsonClient(offer_of_factory(lambda: game(), name="game"))
    told = client.post("/v1/sessions", {"id": "game"}, 201)
    assert told["api"] == api
    client.post(f"/v1/sessions/{told['session']}/reset", {"seed": 1})


def test_names_of_a_command_line_may_be_classes():
    client = JsonClient("served_envs:Nap", "served_envs:served/Shapes-v0")
    assert [one["id"] for one in client.get("/v1/envs")["environments"]] == ["Nap", "served/Shapes-v0"]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (("nope",), "no registered environment has that name"),
        (("json:nope",), "has no attribute 'nope'"),
        (("json:__name__",), "no registered environment has that name"),
        (("http://127.0.0.1:1",), "cannot be served"),
        ((3,), "3 cannot be served; give an ID, an environment class or a factory"),
        ((lambda: Coin(),), "offer_of_factory(factory, name=…)"),
        ((Coin, offer_of_factory(Nap, name="Coin")), "two environments are called Coin"),
    ],
)
def test_what_cannot_be_served_is_said_at_the_start(what: tuple[Any, ...], says: str):
    with pytest.raises((InvalidArgument, UnknownEnvironment)) as caught:
        create_app(*what)
    assert says in str(caught.value)


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/envs/Awkward"])
def test_an_environment_that_cannot_be_made_is_one_sentence(path: str):
    offer = offer_of_factory(lambda: Awkward("made"), name="Awkward")
    client = JsonClient(offer)
    told = client.post(path, {"id": "Awkward"}, 422) if path.endswith("sessions") else client.get(path, 422)
    assert sentence(told) == "Awkward cannot be made: RuntimeError: made badly"
    assert len(client.state.sessions) == 0


def test_an_environment_that_does_not_close_is_closed_all_the_same(caplog: pytest.LogCaptureFixture):
    client = JsonClient(offer_of_factory(lambda: Awkward("close"), name="Awkward"), idle_timeout=0.05)
    session = client.open("Awkward")
    assert client.ask("DELETE", session).status_code == 204
    client.get(session, 404)
    deadline = time.monotonic() + 10
    for _ in range(2):  # the reaper goes on, too
        client.open("Awkward")
        while len(client.state.sessions) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(client.state.sessions) == 0
    assert "environment did not close" in caplog.text
