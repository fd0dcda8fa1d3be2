"""Spaces of unknown classes: rebuilt where the server is this process's own, else answered by the server."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import odd_spaces
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.utils.env_checker import data_equivalence
from odd_spaces import Even, Fixed, UnitVectors, Words, find, spaces
from servers import TOKEN, RunningServer, running_server

import envweave_gym as ew
from envweave_gym.remote.started_servers import Upkeep, keep_up
from envweave_gym.wire.foreign_spaces import rebuilt
from envweave_gym.wire.spaces import space_from_data, space_to_data
from envweave_gym.wire.values import dumps, loads

ID = "odd_spaces:odd/Spaces-v0"
SPACES = spaces()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(ID) as server:
        yield server


@pytest.fixture
def far(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The environment on a server that this process has not started."""
    monkeypatch.setenv("ENVWEAVE_TOKEN", TOKEN)
    env = ew.make(ID, backend=server.url)
    yield env
    env.close()


def sent(space: Any) -> dict[str, Any]:
    return loads(dumps(space_to_data(space)))


def made(data: dict[str, Any]) -> Any:
    def unknown(part: dict[str, Any], _: Any) -> Any:
        return rebuilt(part, made)

    return space_from_data(data, unknown)


@pytest.mark.parametrize("name", SPACES)
def test_a_trusted_space_arrives_as_it_is_and_draws_the_same(name: str):
    space, arrived = SPACES[name], made(sent(SPACES[name]))
    assert type(arrived) is type(space)
    assert arrived == space
    space.seed(5)
    arrived.seed(5)
    for _ in range(5):
        one = space.sample()
        assert data_equivalence(arrived.sample(), one)
        assert arrived.contains(one)


def test_a_private_server_gives_the_spaces_themselves():
    here, there = ew.make(ID), ew.make(ID, backend="subprocess")
    assert there.observation_space == here.observation_space
    assert [type(one) for one in there.observation_space.values()] == [
        type(one) for one in here.observation_space.values()
    ]
    assert type(there.action_space) is UnitVectors
    there.action_space.seed(1)
    here.action_space.seed(1)
    assert data_equivalence(there.reset(seed=3)[0], here.reset(seed=3)[0])
    assert data_equivalence(
        there.step(there.action_space.sample())[:4], here.step(here.action_space.sample())[:4]
    )
    there.close()


@pytest.mark.parametrize("trusted", [True, False])
def test_a_server_that_is_kept_up_is_believed_only_if_it_is_trusted(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, trusted: bool
):
    monkeypatch.setenv("ENVWEAVE_TOKEN", TOKEN)
    keep_up(server.url, Upkeep(lambda: None, trusted=trusted))
    env = ew.make(ID, backend=server.url)
    assert (type(env.action_space) is UnitVectors) is trusted
    env.close()
    keep_up(server.url, None)


def test_another_server_answers_for_its_spaces(far: Any):
    space = far.observation_space
    assert repr(space["words"]) == repr(SPACES["words"])
    assert not isinstance(space["words"], Words)
    members: dict[str, tuple[Any, Any]] = {
        "even": (4, 5),
        "unit": (np.array([0, 1], np.float32), np.array([1, 1], np.float32)),
        "loud": ("AB", "Ab"),
        "fixed": ("go to bed", "go"),
    }
    for name, (member, stranger) in members.items():
        assert space[name].contains(member)
        assert not space[name].contains(stranger)
    assert not space["words"].contains(object())
    assert space["deep"].contains({"one": (2, 1)})
    assert not space["deep"].contains({"one": (3, 1)})
    assert space.contains(far.reset(seed=1)[0])


def test_samples_of_another_servers_spaces_follow_the_seed(far: Any):
    space, drawn = far.observation_space["words"], []
    for seed in (1, 2, 1):
        space.seed(seed)
        drawn.append([space.sample() for _ in range(12)])
    assert drawn[0] == drawn[2] != drawn[1]
    assert set(drawn[0]) == {"find the ball", "find the key"}
    action = far.action_space.sample()
    assert np.isclose(np.linalg.norm(action), 1)
    assert action.dtype == np.float32


def test_a_question_about_a_space_leaves_the_episode_alone(far: Any):
    plain, asking = [], []
    for episode, asks in ((plain, False), (asking, True)):
        episode.append(far.reset(seed=4)[0])
        for _ in range(3):
            if asks:
                far.observation_space.sample()
            episode.append(far.step(np.array([0, 1], np.float32))[0])
    assert data_equivalence(plain, asking)


def test_opaque_spaces_are_of_the_class_that_theirs_extends(far: Any):
    assert isinstance(far.observation_space["even"], Discrete)
    assert isinstance(far.observation_space["loud"], Text)
    assert isinstance(far.action_space, Box)
    assert far.action_space.shape == (2,)
    assert not isinstance(far.observation_space["words"], Box | Discrete | Text)


def test_copies_ask_the_same_server_and_pickles_none(far: Any):
    space = far.observation_space["even"]
    twin = copy.deepcopy(space)
    assert twin == space != far.observation_space["words"]
    assert twin.contains(4)
    twin.seed(1)
    space.seed(1)
    assert twin.sample() == space.sample()
    alone = pickle.loads(pickle.dumps(space))
    assert (alone, repr(alone)) == (space, repr(space))
    with pytest.raises(ew.NotAvailable, match="space of a server"):
        alone.contains(4)
    far.reset(seed=1)
    far.close()
    with pytest.raises(ew.ResetNeeded, match=r"close\(\)"):
        space.contains(4)


@pytest.mark.parametrize("backend", ["subprocess", "far"])
def test_vectors_batch_them_as_in_this_process(
    server: RunningServer, backend: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ENVWEAVE_TOKEN", TOKEN)
    here = ew.make(ID, num_envs=2)
    there = ew.make(ID, num_envs=2, backend=server.url if backend == "far" else backend)
    seen = there.reset(seed=1)[0]
    assert data_equivalence(seen, here.reset(seed=1)[0])
    assert there.observation_space.contains(seen)
    assert [type(one) for one in there.observation_space.values()] == [
        type(one) for one in here.observation_space.values()
    ]
    there.close()


def test_types_that_cannot_be_rebuilt_arrive_from_a_private_server_too():
    env = ew.make(ID, backend="subprocess", nameless=True)
    space = env.observation_space["words"]
    assert not isinstance(space, Words)
    assert space.contains("BALL")
    assert not space.contains("ball")
    assert type(env.observation_space["even"]) is Even
    env.close()


def test_actions_come_as_json_in_the_form_of_the_class_that_is_extended(server: RunningServer):
    session = "/v1/sessions/" + server.post("/v1/sessions", {"id": "odd/Spaces-v0"})["session"]
    server.post(f"{session}/reset", {"seed": 1})
    assert server.post(f"{session}/step", {"action": [1.0, 0.0]})["reward"] == 1.0
    assert server.get("/v1/envs/odd/Spaces-v0")["action_space"]["class"] == "odd_spaces:UnitVectors"


def test_a_subclass_that_changes_nothing_travels_as_what_it_extends():
    class Small(Discrete):
        """Knows its size."""

        def __init__(self) -> None:
            super().__init__(3)

    assert type(made(sent(Small()))) is Discrete
    assert type(made(sent(Dict({"a": Small()})))["a"]) is Discrete


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("class", "os:getcwd"),
        ("class", "odd_spaces:Odd"),
        ("class", "no_such_module:Words"),
        ("recipe", ["state", {"make": ["function", "os:system"], "words": ["value", ["true"]]}]),
        ("recipe", ["state", {"make": ["function", "odd_spaces:nothing"], "words": ["value", ["a"]]}]),
        ("recipe", ["state", {}]),
        ("repr", "Words(['another'])"),
        ("recipe", None),
    ],
)
def test_names_of_other_classes_and_foreign_functions_are_not_rebuilt(part: str, value: Any):
    assert rebuilt({**sent(Words(find, ["ball"])), part: value}, made) is None


def test_a_function_of_another_package_does_not_travel():
    assert sent(Words(str.upper, ["a"]))["recipe"] is None
    assert sent(Words(copy.copy, ["a"]))["recipe"] is None
    assert sent(Words(find, ["a"]))["recipe"][0] == "state"
    assert sent(Fixed())["recipe"] == ["call"]
    assert odd_spaces.find.__name__ == "find"
