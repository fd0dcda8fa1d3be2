"""What RequestStream adds to one environment: numbers, seeds, an order of calls."""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.wrappers import RecordEpisodeStatistics, TransformReward
from scripted_envs import Reused, Scripted
from scripted_streams import NAME, faulty, kinds, scripted, seed_of

from envweave_gym import (
    Event,
    EventKind,
    InvalidAction,
    InvalidArgument,
    Request,
    ResetNeeded,
    Stream,
    message,
    state_of,
    stream_of,
)
from envweave_gym.core.faults import MissingExtra
from envweave_gym.core.seeding import draw_seed
from envweave_gym.episode.stream import RequestKind
from envweave_gym.wrappers import RequestStream

# The stream


def test_an_episode_is_numbered_from_its_start_to_its_end() -> None:
    env = scripted([0.5, message("user", "well?"), "end"])
    _, info = env.reset(seed=7, options={"index": np.int64(3)})
    start = Event(0, EventKind.EPISODE_START, None, None, {"seed": 7, "options": {"index": 3}})
    assert info["stream"] == Stream((Request(0, RequestKind.ACT, "agent", 0),), (start,))
    _, _, _, _, info = env.step(np.int64(2))
    acted = Event(1, EventKind.ACT, "agent", None, {"action": 2})
    earned = Event(2, EventKind.REWARD, "agent", None, {"reward": 0.5})
    assert info["stream"] == Stream((Request(2, RequestKind.ACT, "agent", 1),), (acted, earned))
    _, _, _, _, info = env.step(0)
    assert [(event.seq, event.kind) for event in info["stream"].events] == [(3, "act"), (4, "message")]
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (True, False)
    ended = Event(6, EventKind.EPISODE_END, None, None, {"terminated": True, "truncated": False})
    assert info["stream"].events[-1] == ended
    assert info["stream"].requests == (Request(6, RequestKind.RESET, None, 3),)
    assert type(info["seq"]) is int
    assert info["seq"] == 6
    _, info = env.reset()
    assert info["seq"] == 0


def test_the_step_limit_truncates_and_the_stream_says_so() -> None:
    env = scripted(["end", 0.0, 0.0], max_steps=2)
    env.reset(seed=0)
    *_, terminated, truncated, _ = env.step(0)
    assert (terminated, truncated) == (True, False)
    env.reset()
    assert env.step(0)[2:4] == (False, False)
    *_, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (False, True)
    assert stream_of(info).events[-1].data == {"terminated": False, "truncated": True}
    assert stream_of(info).requests[0].kind == RequestKind.RESET


def test_events_between_episodes_belong_to_neither() -> None:
    env = scripted()
    env.reset(seed=0)
    env.unwrapped.emit(message("user", "late"))
    _, info = env.reset()
    assert kinds(info) == ["episode_start"]


def test_the_environments_own_info_stays_as_it_is() -> None:
    env = RequestStream(Reused())
    _, first = env.reset(seed=0)
    *_, second = env.step(0)
    *_, third = env.step(0)
    assert env.unwrapped.info == {"taken": 2}
    assert [info["taken"] for info in (first, second, third)] == [0, 1, 2]
    assert [info["seq"] for info in (first, second, third)] == [0, 1, 2]


def test_the_keys_of_the_stream_are_its_own() -> None:
    env = scripted([{"stream": "mine", "seq": "mine", "other": "mine"}])
    env.reset(seed=0)
    *_, info = env.step(0)
    assert isinstance(info["stream"], Stream)
    assert (info["seq"], info["other"]) == (1, "mine")


@pytest.mark.parametrize(
    ("reward", "reported"),
    [
        (1.5, [1.5]),
        (np.float32(0.5), [0.5]),
        (np.float64(-2), [-2.0]),
        (True, [1.0]),
        (0, []),
        (-0.0, []),
        (np.float32(0), []),
        (np.array(3), [3.0]),
    ],
)
def test_rewards_are_unchanged_and_recorded_as_json(reward: Any, reported: list[Any]) -> None:
    env = scripted([reward])
    env.reset(seed=0)
    _, given, _, _, info = env.step(0)
    assert given is reward
    assert [event.data["reward"] for event in stream_of(info).of_kind(EventKind.REWARD)] == reported
    json.dumps([event.data for event in stream_of(info).events], allow_nan=False)


# Seeds


def test_every_reset_has_a_seed_and_tells_it() -> None:
    env = scripted()
    reported = [seed_of(env.reset(seed=seed)[1]) for seed in (5, None, None, 6, None, 5, None)]
    assert reported == env.unwrapped.seeds
    assert reported == [5, draw_seed(5, 1), draw_seed(5, 2), 6, draw_seed(6, 1), 5, draw_seed(5, 1)]
    assert len(set(reported)) == 5


def test_the_draw_depends_on_resets_alone() -> None:
    quiet, busy = scripted(), scripted([0.0, "end"] * 9)
    quiet.reset(seed=1)
    busy.reset(seed=1)
    for _ in range(4):
        busy.step(0)
        busy.step(0)
        assert seed_of(quiet.reset()[1]) == seed_of(busy.reset()[1])


def test_unseeded_first_resets_differ() -> None:
    assert seed_of(scripted().reset()[1]) != seed_of(scripted().reset()[1])


def test_wrappers_do_not_change_the_seeds() -> None:
    outside = RecordEpisodeStatistics(TransformReward(scripted(), lambda reward: reward))
    inside = RequestStream(RecordEpisodeStatistics(Scripted()))
    for seed in (3, None, None):
        assert seed_of(outside.reset(seed=seed)[1]) == seed_of(inside.reset(seed=seed)[1])


@pytest.mark.parametrize(
    "seed",
    [-1, 1.5, "a", True, [1], 2**64, np.int64(-1), np.bool_(True), pytest.param(10**5000, id="5000 digits")],
)
def test_a_bad_seed_is_refused_and_the_episode_goes_on(seed: Any) -> None:
    env = scripted()
    env.reset(seed=4)
    env.step(0)
    with pytest.raises(InvalidArgument, match=rf"{NAME}: reset\(seed=.*is not a seed; give None or an int"):
        env.reset(seed=seed)
    *_, info = env.step(0)
    assert info["seq"] == 2
    assert seed_of(env.reset()[1]) == draw_seed(4, 1)


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1, 2**63, 2**64 - 1, np.int64(7), np.uint64(2**64 - 1)])
def test_seeds_of_64_bits_are_taken_as_python_ints(seed: Any) -> None:
    _, info = scripted().reset(seed=seed)
    assert type(seed_of(info)) is int
    assert seed_of(info) == int(seed)


# Misuse


def test_calls_out_of_order_are_refused_in_one_sentence() -> None:
    env = scripted(["end"])
    with pytest.raises(ResetNeeded, match=rf"^{NAME}: step\(\) was called before reset\(\); call reset\(\)$"):
        env.step(0)
    env.reset(seed=0)
    env.step(0)
    for _ in range(2):
        with pytest.raises(
            ResetNeeded, match=r"step\(\) was called after the episode ended; call reset\(\)$"
        ):
            env.step(0)
    env.reset()
    assert env.step(0)[0] == 1


@pytest.mark.parametrize(
    "action", [3, -1, 0.5, "x", None, np.float32(1), [0], {"a": 1}, pytest.param(10**5000, id="5000 digits")]
)
def test_an_invalid_action_names_the_environment_and_changes_nothing(action: Any) -> None:
    env = scripted()
    with pytest.raises(ResetNeeded):
        env.step(action)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=rf"^{NAME}: action .* is not in Discrete\(3\)$") as caught:
        env.step(action)
    assert isinstance(caught.value, gym.error.InvalidAction)
    assert len(str(caught.value)) < 150
    observation, *_, info = env.step(0)
    assert (observation, info["seq"]) == (1, 1)
    assert state_of(env)["step_count"] == 1


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("max_steps", 0),
        ("max_steps", -1),
        ("max_steps", 2.0),
        ("max_steps", True),
        ("on_fault", "ignore"),
        ("on_fault", None),
        ("reset_deadline", -1),
        ("reset_deadline", "soon"),
        ("reset_deadline", float("nan")),
    ],
)
def test_wrong_arguments_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"{NAME}: {argument}="):
        RequestStream(Scripted(), name=NAME, **{argument: value})


def test_a_second_stream_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has its stream already"):
        RequestStream(RecordEpisodeStatistics(gym.make("envweave/Echo-v0")))


def test_a_refusal_of_the_environments_own_is_no_fault() -> None:
    for refusal in (InvalidAction("full"), gym.error.InvalidAction("full"), MissingExtra("pip install")):
        env = faulty([refusal, 1.0])
        env.reset(seed=0)
        with pytest.raises(type(refusal), match=re.escape(str(refusal))):
            env.step(0)
        assert env.step(0)[1] == 1.0
    env = faulty(resets=[InvalidArgument("no such index")])
    with pytest.raises(InvalidArgument, match="no such index"):
        env.reset(seed=0)
    env.reset()


# Copies


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_in_mid_episode(duplicate: Any) -> None:
    env = scripted([0.5, message("user", "x"), 1.0, "end"])
    env.reset(seed=3)
    env.step(0)
    env.unwrapped.emit(message("user", "on my mind"))
    other = duplicate(env)
    for _ in range(3):
        assert str(env.step(1)) == str(other.step(1))
    assert str(env.reset()) == str(other.reset())
    assert state_of(env) == state_of(other)


def test_a_copy_before_the_first_reset_draws_its_own_seed() -> None:
    env = scripted()
    other = copy.deepcopy(env)
    assert seed_of(env.reset()[1]) != seed_of(other.reset()[1])


class Choosy(Scripted):
    """Has other actions in each episode, tells of every action, and refuses the last of them."""

    def reset(self, **kwargs: Any) -> Any:
        self.action_space = Discrete(5 if kwargs["seed"] == 5 else 2)
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        self.emit(message("user", str(action)))
        if action == self.action_space.n - 1:
            raise InvalidAction("not today")
        return super().step(action)


@pytest.mark.parametrize("seeds", [(5, 2), (2, 5)])
def test_actions_are_those_of_the_episode(seeds: tuple[int, int]) -> None:
    env = RequestStream(Choosy())
    for seed in seeds:
        env.reset(seed=seed)
        for action in range(seed - 1):
            env.step(action)
        with pytest.raises(InvalidAction, match=rf"action {seed} is not in Discrete\({seed}\)"):
            env.step(seed)


def test_events_of_a_refused_action_are_dropped() -> None:
    env = RequestStream(Choosy())
    env.reset(seed=5)
    with pytest.raises(InvalidAction, match="not today"):
        env.step(4)
    *_, info = env.step(1)
    assert [event.data for event in stream_of(info).events] == [
        {"action": 1},
        {"role": "user", "content": "1"},
    ]
