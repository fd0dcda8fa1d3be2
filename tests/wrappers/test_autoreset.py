"""A single environment that resets itself: what its boundary looks like, and that it hides nothing."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from scripted_envs import Scripted

import envweave_gym
from envweave_gym import EventKind, InvalidAction, ResetNeeded, state_of, stream_of, trainable
from envweave_gym.episode.stream import RequestKind
from envweave_gym.wrappers import Autoreset, RequestStream

LINE = "envweave/LineWorld-v0"


def made(**kwargs: Any) -> Any:
    return gym.make(LINE, autoreset=True, max_steps=3, **kwargs)


def test_the_step_after_the_end_is_a_reset() -> None:
    env = Autoreset(RequestStream(Scripted([0.5, "end"])))
    env.reset(seed=4)
    env.step(0)
    *_, terminated, _, info = env.step(0)
    assert terminated
    assert stream_of(info).requests[0].kind == RequestKind.RESET
    observation, reward, terminated, truncated, info = env.step(2)
    assert (observation, reward, terminated, truncated) == (0, 0.0, False, False)
    assert [event.kind for event in stream_of(info).events] == [EventKind.EPISODE_START]
    assert stream_of(info).requests[0].kind == RequestKind.ACT
    assert info["seq"] == 0
    assert trainable(info) is False
    *_, info = env.step(2)
    assert trainable(info) is True
    assert state_of(env) == env.state() == {"episode": 1, "step_count": 1, "taken": 1}


def test_episodes_are_those_of_resets_by_hand() -> None:
    env, other = made(), gym.make(LINE, max_steps=3)
    reported = [env.reset(seed=3)[1]["stream"]]
    expected = [other.reset(seed=3)[1]["stream"]]
    over = False
    for _ in range(12):
        reported.append(env.step(1)[-1]["stream"])
        if over:
            expected.append(other.reset()[1]["stream"])
            over = False
            continue
        *_, terminated, truncated, info = other.step(1)
        expected.append(info["stream"])
        over = terminated or truncated
    assert reported == expected


def test_it_is_next_step_mode_for_one() -> None:
    env, envs = made(), SyncVectorEnv([lambda: gym.make(LINE, max_steps=3)])
    env.reset(seed=3)
    envs.reset(seed=3)
    for _ in range(12):
        observation, reward, terminated, truncated, info = env.step(1)
        rows = envs.step([1])
        assert observation.tolist() == rows[0][0].tolist()
        assert (reward, terminated, truncated) == tuple(part[0] for part in rows[1:4])
        assert info["stream"] == rows[4]["stream"][0]


def test_a_reset_by_hand_at_the_boundary_is_not_done_twice() -> None:
    env = made()
    env.reset(seed=3)
    while not any(env.step(0)[2:4]):
        pass
    env.reset()
    assert state_of(env)["episode"] == 1
    env.step(0)
    assert state_of(env) == {"episode": 1, "step_count": 1, **env.unwrapped.episode_state()}


def test_a_lost_episode_shows_its_fault_and_the_next_begins() -> None:
    env = Autoreset(RequestStream(Scripted([RuntimeError("boom"), 1.0]), on_fault="truncate"))
    env.reset(seed=0)
    *_, truncated, info = env.step(0)
    assert truncated
    assert "fault" in info
    *_, info = env.step(0)
    assert "fault" not in info
    assert env.step(0)[1] == 1.0


def test_a_reset_that_fails_at_the_boundary_is_tried_again_by_the_next_step() -> None:
    env = Autoreset(RequestStream(Scripted(["end"], [None, OSError("busy")])))
    env.reset(seed=0)
    env.step(0)
    with pytest.raises(OSError, match="busy"):
        env.step(0)
    assert env.step(0)[4]["stream"].events[0].kind == EventKind.EPISODE_START


def test_misuse_is_refused_as_without_it() -> None:
    env = made()
    with pytest.raises(ResetNeeded, match=LINE):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=LINE):
        env.step(7)


def test_a_copy_goes_on_over_the_boundary() -> None:
    env = made()
    env.reset(seed=3)
    env.step(0)
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        mine = copy.deepcopy(env)
        assert [str(mine.step(1)) for _ in range(8)] == [str(other.step(1)) for _ in range(8)]


def test_the_spec_of_an_id_makes_it_again() -> None:
    env = made()
    assert env.spec.id == LINE
    assert env.spec.kwargs == {"autoreset": True, "max_steps": 3}
    assert isinstance(gym.make(env.spec), Autoreset)
    assert isinstance(envweave_gym.make(LINE, autoreset=True), Autoreset)
    by_hand = Autoreset(gym.make("CartPole-v1"))
    assert [wrapper.name for wrapper in by_hand.spec.additional_wrappers] == ["Autoreset"]


def test_the_step_that_resets_refuses_what_is_no_action_too() -> None:
    env = envweave_gym.make("envweave/LineWorld-v0", autoreset=True, max_steps=1)
    env.reset(seed=0)
    env.step(1)
    with pytest.raises(InvalidAction, match="envweave/LineWorld-v0: action 99 is not in"):
        env.step(99)
    assert env.step(1)[1] == 0.0


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (gym.spaces.MultiDiscrete([2, 2]), [[0], [1, 2]]),
        (gym.spaces.MultiBinary(2), [[0], [1, 2]]),
        (gym.spaces.Tuple([gym.spaces.Discrete(2)]), np.array(0)),
        (gym.spaces.Sequence(gym.spaces.Discrete(2), stack=True), None),
    ],
)
def test_the_step_that_resets_refuses_what_is_of_quite_another_kind(space: Any, action: Any) -> None:
    core = Scripted(["end"])
    core.action_space = space
    core.step = lambda _: (0, 0.0, True, False, {})
    env = Autoreset(RequestStream(core))
    env.reset(seed=0)
    env.step(space.sample())
    with pytest.raises(InvalidAction, match=r"^Scripted: action "):
        env.step(action)
