"""Serving environments of one's own: classes, factories, typed objects, and names on a command line."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
from json_clients import JsonClient, sentence
from served_envs import Awkward, Coin, Nap

from envweave_gym.core.faults import InvalidArgument, UnknownEnvironment
from envweave_gym.core.protocols import layers
from envweave_gym.envs.games import kuhn_poker, line_race
from envweave_gym.wire.messages import Create
from envweave_gym_server import create_app, offer_of_factory
from envweave_gym_server.offers import offers
from envweave_gym_server.offers.offers import Everything, Offer, Offers, offers_of

pytestmark = pytest.mark.usefixtures("registries")


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
    reported = client.post(f"{session}/step", {"action": {"word": "blue"}})
    assert (reported["observation"], reported["reward"], reported["terminated"]) == (
        {"text": "yes"},
        1.0,
        True,
    )


@pytest.mark.parametrize(("game", "api"), [(kuhn_poker.raw_env, "parallel"), (line_race.raw_env, "parallel")])
def test_a_factory_of_a_game_need_not_say_that_it_makes_one(game: Any, api: str):
    client = JsonClient(offer_of_factory(lambda: game(), name="game"))
    reported = client.post("/v1/sessions", {"id": "game"}, 201)
    assert reported["api"] == api
    client.post(f"/v1/sessions/{reported['session']}/reset", {"seed": 1})


def test_names_of_a_command_line_may_be_classes():
    client = JsonClient("served_envs:Nap", "served_envs:served/Shapes-v0")
    assert [one["id"] for one in client.get("/v1/envs")["environments"]] == ["Nap", "served/Shapes-v0"]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (("nope",), "no registered environment has that name"),
        (("json:nope",), "has no attribute 'nope'"),
        (("json:__name__",), "it is no environment and no factory of one"),
        (("json:loads",), "'json:loads' cannot be served: it is no environment and no factory of one"),
        (("json:JSONDecoder",), "it is no environment and no factory of one"),
        (("math:sqrt",), "it is no environment and no factory of one"),
        ((f"{__name__}:sentence",), "it is no environment and no factory of one"),
        (("nosuch:a/B-v0",), "'nosuch:a/B-v0' cannot be served: there is no module 'nosuch'"),
        (("json.nosuch:a/B-v0",), "there is no module 'json.nosuch'"),
        (("served_envs:served/Shape-v0",), "served_envs registers no environment 'served/Shape-v0' (did you"),
        (("http://127.0.0.1:1",), "cannot be served"),
        ((3,), "3 cannot be served; give an ID, an environment class or a factory"),
        ((lambda: Coin(),), "offer_of_factory(factory, name=…)"),
        ((Coin, offer_of_factory(Nap, name="Coin")), "two environments are called Coin"),
    ],
)
def test_ids_that_cannot_be_served_are_an_error_at_the_start(what: tuple[Any, ...], says: str):
    with pytest.raises((InvalidArgument, UnknownEnvironment)) as caught:
        create_app(*what)
    assert says in str(caught.value)


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/envs/Awkward"])
def test_an_environment_that_cannot_be_made_is_one_sentence(path: str):
    offer = offer_of_factory(lambda: Awkward("made"), name="Awkward")
    client = JsonClient(offer)
    reported = (
        client.post(path, {"id": "Awkward"}, 422) if path.endswith("sessions") else client.get(path, 422)
    )
    assert sentence(reported) == "Awkward cannot be made: RuntimeError: made badly"
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


# What clients may say


def test_an_app_is_made_of_offers_too():
    class Fixed(Offers):
        def find(self, name: Any) -> Offer:
            return self["Coin"]

    client = JsonClient(Fixed({"Coin": offer_of_factory(Coin)}))
    assert client.post("/v1/sessions", {"id": "anything"}, 201)["id"] == "Coin"


def test_an_id_from_elsewhere_takes_what_the_operator_allows_and_nothing_else():
    name = "CartPole-v1"
    closed = JsonClient(name)
    reported = closed.post("/v1/sessions", {"id": name, "kwargs": {"sutton_barto_reward": True}}, 422)
    assert "CartPole-v1 takes no argument 'sutton_barto_reward' from a client" in sentence(reported)
    session = closed.open(name)
    reported = closed.post(f"{session}/reset", {"options": {"low": 0.0}}, 422)
    assert "CartPole-v1: this server lets no client give the reset option 'low'" in sentence(reported)
    assert closed.get(session)["call"] == 0

    client = JsonClient(name, wire_kwargs={name: ("sutton_barto_reward", "low", "high")})
    assert client.get(f"/v1/envs/{name}")["kwargs"][:3] == ["sutton_barto_reward", "low", "high"]
    session = client.open(name, kwargs={"sutton_barto_reward": True})
    began = client.post(f"{session}/reset", {"options": {"low": 0.0, "high": 0.0}})
    assert began["observation"] == [0.0] * 4
    assert client.post(f"{session}/step", {"action": 1})["reward"] == 0.0
    assert "takes no argument 'backend'" in sentence(
        client.post("/v1/sessions", {"id": name, "kwargs": {"backend": "subprocess"}}, 422)
    )


def test_permissions_of_one_server_do_not_hold_for_another():
    offers = offers_of(["CartPole-v1"])
    for _ in range(2):
        reported = JsonClient(offers, wire_kwargs={"CartPole-v1": ["low"]}).get("/v1/envs/CartPole-v1")
        assert reported["kwargs"][:2] == ["low", "max_steps"]
        assert "low" not in JsonClient(offers).get("/v1/envs/CartPole-v1")["kwargs"]
    assert offers["CartPole-v1"].kwargs == ()


def test_arguments_that_an_operator_allows_add_to_those_of_the_card():
    client = JsonClient("envweave/Counter-v0", wire_kwargs={"envweave/Counter": ["more"]})
    assert client.get("/v1/envs/envweave/Counter-v0")["kwargs"][:2] == ["target", "more"]


def test_a_card_may_let_clients_give_one_value_of_an_argument():
    offers = offers_of(["envweave/Counter-v0"])
    client = JsonClient(replace(offers["envweave/Counter-v0"], kwargs=("target=5",)))
    assert client.open("envweave/Counter-v0", kwargs={"target": 5})
    reported = client.post("/v1/sessions", {"id": "envweave/Counter-v0", "kwargs": {"target": 6}}, 422)
    assert "takes no argument 'target' from a client (did you mean 'target=5'?)" in sentence(reported)


@pytest.mark.parametrize(
    ("allowed", "says"),
    [
        ({"Nope-v0": ("x",)}, "'Nope-v0' is not served here"),
        ({"Coin": "sides"}, "'sides' are no names of arguments of Coin; give some, as in ('length',)"),
        ({"Coin": ["not a name"]}, "are no names of arguments of Coin"),
        ({"Coin": ()}, "are no names of arguments of Coin"),
    ],
)
def test_invalid_permissions_are_an_error_at_the_start(allowed: dict[str, Any], says: str):
    with pytest.raises((InvalidArgument, UnknownEnvironment)) as caught:
        create_app(Coin, wire_kwargs=allowed)
    assert says in str(caught.value)


@pytest.mark.parametrize("path", ["id", "kwargs"])
def test_a_name_longer_than_any_other_is_refused_at_once(path: str):
    name = "envweave/Counter-v0 " * 10**5
    body = {"id": name} if path == "id" else {"id": "envweave/Counter-v0", "kwargs": {name: 1}}
    client = JsonClient("envweave/Counter-v0")
    began = time.monotonic()
    reported = client.post("/v1/sessions", body, 404 if path == "id" else 422)
    assert time.monotonic() - began < 0.5
    assert len(sentence(reported)) < 400


# What keeps a thread, or opens a window


@pytest.mark.parametrize("fields", [{}, {"num_envs": 2}])
def test_a_reset_that_fails_keeps_a_thread_for_a_while_only(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(offers, "_LONGEST_RESET_S", 0.2)
    client = JsonClient(offer_of_factory(lambda: Awkward("reset"), name="Awkward"))
    session = client.open("Awkward", kwargs={"reset_deadline": 604_800}, **fields)
    started = time.monotonic()
    reported = client.post(f"{session}/reset", {"seed": 0})
    assert "fault" in reported["info"]
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("api", ["gym", "vector"])
def test_a_reset_deadline_is_at_most_a_minute_but_on_ones_own_server(api: str):
    def deadline(offer: Offer, given: float) -> float:
        rows = {"num_envs": 1} if api == "vector" else {}
        env = offer.make(Create("CartPole-v1", api, {"reset_deadline": given, **rows}))
        single = env.envs[0] if rows else env
        found = [vars(layer).get("_reset_deadline") for layer in layers(single)]
        return next(seconds for seconds in found if seconds is not None)

    public, private = offers_of(["CartPole-v1"]).find("CartPole-v1"), Everything().find("CartPole-v1")
    assert [deadline(public, given) for given in (0.5, 60, 61, 604_800)] == [0.5, 60, 60, 60]
    assert deadline(private, 604_800) == 604_800
    with pytest.raises(InvalidArgument, match=r"reset_deadline=1000000000000\.0 is not a number of seconds"):
        deadline(public, 1e12)


def test_a_client_may_not_have_windows_opened():
    names = ("CartPole-v1", "envweave/LineWorld-v0", "envweave/KuhnPoker-v0")
    client = JsonClient(*names, Coin)
    drawn = ("'rgb_array'", "'ansi', 'rgb_array'", "'ansi'", "none")
    for name, modes in zip((*names, "Coin"), drawn, strict=True):
        reported = client.post("/v1/sessions", {"id": name, "kwargs": {"render_mode": "human"}}, 422)
        said = f"{name}: render_mode='human' would open a window on the server; a client may ask for {modes}"
        assert sentence(reported) == said
    vector = {"id": "CartPole-v1", "num_envs": 3, "kwargs": {"render_mode": "human"}}
    assert "'rgb_array'" in sentence(client.post("/v1/sessions", vector, 422))
    assert client.open("CartPole-v1", kwargs={"render_mode": "rgb_array"})


# What is said of them


class Undocumented(Coin):
    def step(self, action: int) -> Any:
        return super().step(action)


def test_a_class_that_says_nothing_of_itself_is_called_by_its_name():
    client = JsonClient(Undocumented, offer_of_factory(lambda: Coin(), name="made"))
    assert [one["doc"] for one in client.get("/v1/envs")["environments"]] == ["Undocumented", "made"]


def test_where_there_are_several_one_is_to_be_chosen():
    client = JsonClient(Coin, Nap)
    reported = sentence(client.post("/v1/sessions", {"id": ""}, 404))
    assert "choose one, as in 'http://host:port#ID': there are Coin, Nap" in reported
    assert JsonClient(Coin).open("")
