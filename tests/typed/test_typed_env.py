"""Typed environments: objects inside, Gymnasium outside."""

from __future__ import annotations

import copy
import functools
import pickle
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AsyncVectorEnv
from typed_envs import (
    Guess,
    GuessNumber,
    Hint,
    Move,
    Place,
    Walk,
    make_guess,
)

import envweave_gym
from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.core.spaces import Unicode
from envweave_gym.typed import TypedEnv, space_of


def test_the_environment_of_the_class_documentation_plays() -> None:
    env = TypedEnv(GuessNumber, limit=3)
    assert env.action_space == space_of(Guess)
    assert env.observation_space == Dict({"text": Unicode(4096), "tries": Discrete(101)})
    observation, info = env.reset(seed=1)
    assert (observation, info) == ({"text": "guess!", "tries": 0}, {})
    outcomes = {}
    for guess in range(4):
        observation, reward, terminated, truncated, info = env.step({"number": guess, "note": "?"})
        assert observation in env.observation_space
        outcomes[observation["text"]] = (reward, terminated, truncated, info)
        assert {type(reward), type(terminated), type(truncated)} == {float, bool}
        if terminated:
            break
    assert outcomes["yes"] == (1.0, True, False, {})


def test_an_instance_and_a_class_make_the_same_environment() -> None:
    first, second = TypedEnv(GuessNumber(limit=7)), TypedEnv(GuessNumber, limit=7)
    assert first.core.limit == second.core.limit == 7
    with pytest.raises(InvalidArgument, match="is built already and takes no limit"):
        TypedEnv(GuessNumber(), limit=7)
    with pytest.raises(TypeError, match="size"):
        TypedEnv(GuessNumber, size=7)


def test_five_values_options_generator_and_info() -> None:
    env = TypedEnv(Walk())
    observation, info = env.reset(seed=0, options={"at": -1})
    assert observation["at"] == -1
    assert data_equivalence(observation["view"], np.array([-1, 1], np.float32))
    assert info == {"home": False}
    assert env.core.np_random is env.np_random
    _, reward, terminated, truncated, info = env.step({"to": 1})
    assert (reward, terminated, truncated, info) == (-1.0, True, False, {"home": True})


def test_an_info_is_a_new_one_each_time() -> None:
    class SameInfo(Walk):
        info: dict[str, Any] = {}

        def reset(self, *, options: dict[str, Any] | None) -> tuple[Place, dict[str, Any]]:
            return super().reset(options=options)[0], self.info

        def step(self, action: Move) -> tuple[Place, float, bool, bool, dict[str, Any]]:
            return *super().step(action)[:4], self.info

    env = TypedEnv(SameInfo())
    for info in (env.reset(seed=0)[1], env.step({"to": 0})[4]):
        info["written"] = "by a wrapper"
    assert SameInfo.info == {}


def test_render_state_and_close_reach_the_class() -> None:
    env = TypedEnv(Walk, render_mode="ansi")
    env.reset(seed=0, options={"at": 2})
    assert env.metadata == {"render_modes": ["ansi"]}
    assert env.render() == "at 2"
    assert TypedEnv(Walk).render() is None
    assert env.episode_state() == {"at": 2}
    env.close()
    assert env.core.closed
    TypedEnv(GuessNumber()).close()
    with pytest.raises(InvalidArgument, match="render_mode='human' is unknown; there are ansi"):
        TypedEnv(Walk, render_mode="human")
    with pytest.raises(InvalidArgument, match="there are none"):
        TypedEnv(GuessNumber, render_mode="ansi")


def test_metadata_may_leave_the_render_modes_out() -> None:
    class Fast(Walk):
        metadata = {"render_fps": 30}

    env = TypedEnv(Fast, render_mode="ansi")
    assert env.metadata == {"render_modes": ["ansi"], "render_fps": 30}
    with pytest.raises(InvalidArgument, match="render_mode='human' is unknown; there are ansi"):
        TypedEnv(Fast, render_mode="human")


def test_an_error_survives_a_class_that_cannot_be_shown() -> None:
    class Shy(GuessNumber):
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(InvalidArgument, match=r"TypedEnv\(<Shy>\) is built already and takes no limit"):
        TypedEnv(Shy(), limit=3)


@pytest.mark.parametrize("core", [GuessNumber, Walk])
def test_resets_without_a_seed_follow_from_the_last_seed(core: type) -> None:
    def starts() -> list[Any]:
        env = TypedEnv(core)
        env.reset(seed=5)
        found = []
        for _ in range(5):
            observation, _ = env.reset()
            found.append((repr(observation), getattr(env.core, "_secret", None)))
        return found

    assert starts() == starts()
    assert len(set(starts())) > 1


def test_seeds_reach_the_class_as_plain_ints() -> None:
    class Seeded(GuessNumber):
        seeds: list[Any] = []

        def reset(self, seed: int) -> Hint:
            self.seeds.append(seed)
            return super().reset(seed)

    env = TypedEnv(Seeded())
    env.reset(seed=3)
    env.reset()
    assert Seeded.seeds[0] == 3
    assert [type(seed) for seed in Seeded.seeds] == [int, int]


@pytest.mark.parametrize("core", [GuessNumber, Walk])
def test_check_env_is_content(core: type) -> None:
    check_env(TypedEnv(core), skip_render_check=True)


@pytest.mark.parametrize("core", [GuessNumber, Walk])
def test_pickles_and_copies_go_on_in_mid_episode(core: type) -> None:
    env = TypedEnv(core)
    env.reset(seed=2)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(4)]
    env.step(actions[0])
    for twin in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        original = copy.deepcopy(env)
        for action in actions[1:]:
            assert data_equivalence(twin.step(action), original.step(action))
        assert twin.episode_state() == original.episode_state()
        assert data_equivalence(twin.reset(), original.reset())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_async_vector_with_default_arguments() -> None:
    envs = AsyncVectorEnv([make_guess, functools.partial(make_guess, limit=100)])
    try:
        observations, _ = envs.reset(seed=0)
        assert observations["text"] == ("guess!", "guess!")
        observations, *_ = envs.step({"number": np.array([1, 2]), "note": ("a", "b")})
        assert observations in envs.observation_space
        assert observations["text"] == ("no", "no")
        assert list(observations["tries"]) == [1, 1]
    finally:
        envs.close()


def test_a_wrong_action_is_refused_and_the_episode_goes_on() -> None:
    env = TypedEnv(GuessNumber())
    env.reset(seed=0)
    for stranger in (None, 3, {"number": 5}, {"number": 101, "note": ""}, Guess(5)):
        with pytest.raises(InvalidAction, match=r"GuessNumber: action .* is not in Dict"):
            env.step(stranger)
    assert env.step({"number": 0, "note": ""})[0]["tries"] == 1


def test_an_observation_that_does_not_fit_is_a_plain_error_of_the_environment() -> None:
    class Wordy(GuessNumber):
        def step(self, action: Guess) -> Hint:
            return Hint("x" * 5000, 0) if action.number == 1 else None

    env = TypedEnv(Wordy())
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"Hint.text: 'x+.* is not in Unicode\(4096\)") as caught:
        env.step({"number": 1, "note": ""})
    assert not isinstance(caught.value, envweave_gym.EnvweaveError)
    with pytest.raises(ValueError, match="None is no Hint"):
        env.step({"number": 2, "note": ""})


def test_a_step_with_a_wrong_number_of_values_says_so() -> None:
    class Four(GuessNumber):
        def step(self, action: Guess) -> Hint:
            return Hint("", 0), 0.0, False, {}

    env = TypedEnv(Four())
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"Four.step gave 4 values; it gives an observation, or"):
        env.step({"number": 1, "note": ""})


@dataclass
class Ended:
    at: Annotated[int, msgspec.Meta(ge=0, le=9)]
    terminated: bool = False
    truncated: bool = False
    reward: float = 0.0


@pytest.mark.parametrize(
    ("observation", "outcome"),
    [
        (Ended(1, True, False, 2), (2.0, True, False)),
        (Ended(1, False, True, -1), (-1.0, False, True)),
        (Ended(1), (0.0, False, False)),
    ],
)
def test_terminated_and_truncated_may_be_given_separately(
    observation: Ended, outcome: tuple[Any, ...]
) -> None:
    class Fixed:
        def reset(self) -> Ended:
            return Ended(0)

        def step(self, action: Move) -> Ended:
            return observation

    env = TypedEnv(Fixed())
    assert env.observation_space == Dict({"at": Discrete(10)})
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step({"to": 0})
    assert (reward, terminated, truncated) == outcome


def test_an_outcome_that_is_no_bool_is_an_error() -> None:
    class Strange(GuessNumber):
        def step(self, action: Guess) -> Hint:
            return Hint("", 0), 0.0, "yes", False, {}  # type: ignore[return-value]

    env = TypedEnv(Strange())
    env.reset(seed=0)
    with pytest.raises(TypeError, match="terminated='yes' is no bool; give True or False"):
        env.step({"number": 1, "note": ""})


def test_observations_without_an_outcome_earn_nothing_and_go_on() -> None:
    class Silent:
        action_model = Move
        observation_model = Place

        def reset(self):
            return Place(0, np.zeros(2, np.float32))

        def step(self, action):
            return Place(1, np.ones(2, np.float32))

    env = TypedEnv(Silent)
    env.reset(seed=0)
    observation, *outcome = env.step({"to": 0})
    assert observation["at"] == 1
    assert outcome == [0.0, False, False, {}]


def test_missing_models_are_an_error_that_asks_for_them() -> None:
    class Untyped:
        def reset(self):
            return None

        def step(self, action):
            return None

    class HalfTyped(Untyped):
        action_model = Move

    class WrongTyped(Untyped):
        def step(self, action: int) -> Hint:
            return Hint("", 0)

    with pytest.raises(
        InvalidArgument, match=r"Untyped.*: its action is not declared; write def step.*action_model = "
    ):
        TypedEnv(Untyped())
    with pytest.raises(InvalidArgument, match=r"its observation is not declared; .*observation_model = "):
        TypedEnv(HalfTyped())
    with pytest.raises(InvalidArgument, match=r"its action is int, which is no dataclass or msgspec.Struct"):
        TypedEnv(WrongTyped())
    with pytest.raises(InvalidArgument, match="it has no method reset"):
        TypedEnv(object())
    with pytest.raises(InvalidArgument, match="name 'Local' is not defined; define its models beside it"):
        TypedEnv(_with_local_model())


def _with_local_model() -> Any:
    class Local(msgspec.Struct):
        number: int

    class Core:
        def reset(self) -> Local:
            return Local(0)

        def step(self, action: Local) -> Local:
            return action

    return Core()
