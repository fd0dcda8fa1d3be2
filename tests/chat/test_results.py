"""Results of an environment that no trainer may learn from: they lose the episode, and are no rewards."""

from __future__ import annotations

import math
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from broken_games import Duel
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space, Tuple

import envweave_gym
from envweave_gym.chat import ChatGame, EpisodeLost
from envweave_gym.chat.results import check_observation, checked_flag, checked_reward, fault_from
from envweave_gym.core.faults import FaultKind, InvalidAction
from envweave_gym.core.protocols import AGENT
from envweave_gym.core.spaces import Chat, Json

VECTOR = Box(-1, 1, (2,), np.float32)


class Given(gym.Env[Any, Any]):
    """Ends after one step, with the given results."""

    observation_space: Space[Any] = envweave_gym.Unicode(16)
    action_space = envweave_gym.Unicode(16)

    def __init__(self, *, first: Any = "go", **step: Any) -> None:
        self.first = first
        self.results = {"observation": "done", "reward": 1.0, "terminated": True, "truncated": False, **step}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action: str) -> Any:
        if isinstance(self.results["reward"], Exception):
            raise self.results["reward"]
        return *self.results.values(), {}


def played(**results: Any) -> Any:
    game = ChatGame(Given(**results))
    game.reset()
    game.reply(AGENT, "hello")
    return game.take_turn(AGENT)


def test_the_results_of_a_step_are_a_turn():
    assert played().reward == 1.0


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"terminated": "yes"}, "terminated='yes', which is no bool"),
        ({"terminated": 1}, "terminated=1, which is no bool"),
        ({"truncated": None}, "truncated=None, which is no bool"),
        ({"observation": None}, "the observation None, whose type is not that of Unicode"),
        ({"observation": 3, "terminated": False}, "the observation 3, whose type"),
        ({"first": b"go"}, "the observation b'go', whose type"),
        ({"reward": math.nan}, "the reward nan"),
        ({"reward": "1"}, "the reward '1', which is no number"),
        ({"reward": None}, "the reward None, which is no number"),
    ],
)
def test_a_wrong_result_loses_the_episode(results: dict[str, Any], words: str):
    with pytest.raises(EpisodeLost, match="the episode was lost") as lost:
        played(**results)
    assert words in str(lost.value)
    assert fault_from(lost.value).kind is FaultKind.CRASH


def test_a_refusal_of_gymnasiums_own_kind_is_one_of_the_reply():
    turn = played(reward=gym.error.InvalidAction("not now"))
    assert (turn.refused, turn.actions, turn.reward) == (1, 0, 0.0)
    assert isinstance(InvalidAction(""), gym.error.InvalidAction)


@pytest.mark.parametrize("flag", [True, np.True_, np.array(True)])
def test_bools_of_libraries_are_bools(flag: Any):
    assert checked_flag("terminated", flag) is True


@pytest.mark.parametrize("reward", [1, 1.5, np.float32(1.5), True])
def test_numbers_of_any_type_are_rewards(reward: Any):
    assert checked_reward(reward) == float(reward)


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (Discrete(4), [3, np.int64(3), np.array(3)], ["3", 3.0, None, [3]]),
        (VECTOR, [np.zeros(2), [0, 1], np.zeros(2, np.int8)], ["zero", None, [None, 1], {}]),
        (MultiBinary(2), [np.ones(2, np.int8), [True, False]], ["10"]),
        (Dict(at=VECTOR, seen=Discrete(2)), [{"at": [0.5, 0.5], "seen": 1}], [{"at": [0, 0]}, [0, 1], None]),
        (Tuple([Discrete(2), Discrete(2)]), [(0, 1), [0, 1]], [(0,), 3, ("a", 0)]),
        (Json(64), [None, {"a": 1}], []),
        (Chat(64), [[{"role": "user", "content": "hi"}]], ["hi", None]),
        (gym.spaces.Sequence(Discrete(2)), [(0, 1), None], []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_types_of_observations_are_compared_with_their_space(
    space: Space[Any], good: list[Any], bad: list[Any]
):
    for observation in good:
        check_observation(space, observation)
    for observation in bad:
        with pytest.raises(EpisodeLost, match="whose type is not that of"):
            check_observation(space, observation)


def test_values_out_of_bounds_are_no_faults():
    check_observation(VECTOR, np.array([9.0, 9.0]))
    check_observation(Discrete(2), 7)


@pytest.mark.parametrize("api", ["aec", "parallel"])
def test_a_flag_of_a_turn_based_game_that_is_no_bool_loses_it(api: str):
    class Strange(Duel):
        def step(self, action: Any) -> None:
            super().step(action)
            self.terminations = {agent: "yes" if over else over for agent, over in self.terminations.items()}

    envweave_gym.register("local://strange-duel", factory=Strange)
    game = ChatGame(envweave_gym.make("local://strange-duel", api=api))
    game.reset(seed=0)

    def play() -> None:
        while roles := game.to_reply():
            game.reply(roles[0], "1")

    with pytest.raises(EpisodeLost, match="terminated='yes'"):
        play()


def test_a_game_that_waits_for_nobody_is_lost():
    class Stuck(Given):
        possible_agents = agents = ["one"]

        def reset(self, **settings: Any) -> Any:
            return {"one": "go"}, {"one": {"active": False}}

    with pytest.raises(EpisodeLost, match="no agent must act"):
        ChatGame(Stuck()).reset()


def test_an_environment_may_call_something_active():
    class Named(Given):
        def reset(self, **settings: Any) -> Any:
            return "go", {"active": False}

    game = ChatGame(Named())
    game.reset()
    assert game.to_reply() == [AGENT]


def test_after_a_loss_nobody_has_a_turn_until_the_next_reset():
    game = ChatGame(Given(reward=math.nan, terminated=False))
    game.reset()
    with pytest.raises(EpisodeLost):
        game.reply(AGENT, "hello")
    assert game.to_reply() == []
    game.reset()
    assert game.to_reply() == [AGENT]


def test_the_fault_survives_pickling():
    with pytest.raises(EpisodeLost) as lost:
        played(terminated="yes")
    again = pickle.loads(pickle.dumps(lost.value))
    assert (str(again), again.fault) == (str(lost.value), lost.value.fault)
    assert not again.fault.retryable
