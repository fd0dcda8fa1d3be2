"""Text, JSON and chat spaces in vector environments and under wrappers, with texts that are not ASCII."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Dict, Tuple
from gymnasium.spaces.utils import unflatten
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from text_envs import LENGTH, TEXTS, WORDS, BoundedEnv, RepeatEnv, same, text_space, value, values
from text_kinds import each_kind, each_leaf

from envweave_gym.core.spaces import Chat, Json, Unicode, placeholder

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


# Shared memory


@each_leaf
def test_shared_memory_is_read_live_and_copied_as_plain_texts(leaf: str) -> None:
    space, members = text_space(leaf), values(leaf)
    memory = create_shared_memory(space, n=len(members))
    live = read_from_shared_memory(space, memory, n=len(members))
    assert live in batch_space(space, len(members))
    for i, member in enumerate(members):
        write_to_shared_memory(space, i, member, memory)
    assert list(live) == members
    assert live == tuple(members)
    assert not live != tuple(members)  # noqa: SIM202
    assert live == live
    assert live[0] == members[0]
    assert live[1:3] == tuple(members[1:3])
    assert members[2] in live
    assert live.index(members[0]) == 0
    assert repr(live) == repr(tuple(live))
    assert live.__add__(("more",)) == (*members, "more")
    assert len(live) == len(members)
    for copied in (copy.deepcopy(live), copy.copy(live), pickle.loads(pickle.dumps(live)), tuple(live)):
        assert type(copied) is tuple
        assert copied == tuple(members)


def test_a_text_too_long_for_its_slot_is_refused_and_its_neighbour_kept() -> None:
    space = Unicode(4)
    memory = create_shared_memory(space, n=2)
    write_to_shared_memory(space, 1, "next", memory)
    with pytest.raises(ValueError, match="17 characters is longer than its space allows"):
        write_to_shared_memory(space, 0, "x" * 17, memory)
    assert list(read_from_shared_memory(space, memory, n=2)) == ["", "next"]


@pytest.mark.parametrize("space", [Unicode(None), Json(None), Chat(None), Dict({"a": Unicode(None)})])
def test_unbounded_spaces_say_that_they_have_a_dynamic_shape(space: gym.Space[Any]) -> None:
    with pytest.raises(TypeError, match="has a dynamic shape"):
        create_shared_memory(space)


# Vector environments


def make(kind: str) -> Callable[[], RepeatEnv]:
    return functools.partial(RepeatEnv, kind)


def play(envs: VectorEnv[Any, Any, Any], kind: str, mode: AutoresetMode) -> Iterator[tuple[Any, Any]]:
    """Two episodes of three steps: pairs of what two environments observe and should observe."""
    observations, _ = envs.reset(seed=0)
    yield observations, [value(kind, 0), value(kind, 1)]
    for step in range(1, 6):
        sent = [value(kind, step), value(kind, step + 1)]
        actions = concatenate(envs.single_action_space, sent, create_empty_array(envs.single_action_space, 2))
        observations, _, terminated, _, infos = envs.step(actions)
        again = [value(kind, 1), value(kind, 2)]
        if mode == AutoresetMode.SAME_STEP and step == 3:
            assert same(list(infos["final_obs"]), sent)
            yield observations, again
        elif mode == AutoresetMode.NEXT_STEP and step == 4:
            yield observations, again
        else:
            yield observations, sent
        if mode == AutoresetMode.DISABLED and terminated.any():
            observations, _ = envs.reset(options={"reset_mask": np.array([True, True])})
            yield observations, again


def check_vector(envs: VectorEnv[Any, Any, Any], kind: str, mode: AutoresetMode) -> None:
    batch = envs.observation_space
    pairs = list(play(envs, kind, mode))
    assert len(pairs) == (7 if mode == AutoresetMode.DISABLED else 6)
    for observed, expected in pairs:
        assert observed in batch
        assert same(list(iterate(batch, observed)), expected)


@each_kind
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_sync_vector(kind: str, mode: AutoresetMode) -> None:
    with closing(SyncVectorEnv([make(kind)] * 2, autoreset_mode=mode)) as envs:
        check_vector(envs, kind, mode)


@each_kind
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_async_vector_through_shared_memory(kind: str, mode: AutoresetMode) -> None:
    with closing(AsyncVectorEnv([make(kind)] * 2, autoreset_mode=mode)) as envs:
        check_vector(envs, kind, mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_async_vector_through_pipes(mode: AutoresetMode) -> None:
    with closing(AsyncVectorEnv([make("nested")] * 2, shared_memory=False, autoreset_mode=mode)) as envs:
        check_vector(envs, "nested", mode)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_async_vector_in_freshly_started_processes(context: str) -> None:
    with closing(AsyncVectorEnv([make("nested")] * 2, context=context)) as envs:
        check_vector(envs, "nested", AutoresetMode.NEXT_STEP)


def test_async_vector_without_arguments_shows_every_new_text() -> None:
    with closing(AsyncVectorEnv([RepeatEnv, RepeatEnv])) as envs:
        first, _ = envs.reset(seed=0)
        second, *_ = envs.step(("a", "b"))
        third, *_ = envs.step(("c", WORDS))
        assert (first, second, third) == ((TEXTS[0], TEXTS[1]), ("a", "b"), ("c", WORDS))
        assert type(first) is tuple


def test_async_vector_without_copies_hands_out_a_live_view() -> None:
    with closing(AsyncVectorEnv([RepeatEnv, RepeatEnv], copy=False)) as envs:
        first, _ = envs.reset(seed=0)
        kept = copy.deepcopy(first)
        second, *_ = envs.step(("a", "b"))
        assert second in envs.observation_space
        assert list(first) == list(second) == ["a", "b"]
        assert kept == (TEXTS[0], TEXTS[1])


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_of_environments_whose_bounds_differ(vector: Any) -> None:
    makers = [functools.partial(BoundedEnv, shortest) for shortest in (0, 2)]
    with closing(vector(makers, observation_mode="different")) as envs:
        assert envs.observation_space == Tuple([Unicode(LENGTH), Unicode(LENGTH, min_length=2)])
        envs.reset(seed=0)
        observed, *_ = envs.step(("", WORDS))
        assert observed in envs.observation_space
        assert observed == ("", WORDS)


def test_unbounded_text_goes_through_pipes_when_asked_to() -> None:
    with pytest.raises(TypeError, match="has a dynamic shape"):
        AsyncVectorEnv([Unbounded])
    with closing(AsyncVectorEnv([Unbounded], shared_memory=False)) as envs:
        envs.reset(seed=0)
        assert envs.step(("y" * 200_000,))[0] == ("y" * 200_000,)


class Unbounded(RepeatEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = self.action_space = Unicode(None)


class closing:
    """Ends the processes of a vector whatever happened to them."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs

    def __enter__(self) -> Any:
        return self.envs

    def __exit__(self, error: Any, *details: Any) -> None:
        self.envs.close(**({"terminate": True} if error and isinstance(self.envs, AsyncVectorEnv) else {}))


# Environments and wrappers


@each_kind
def test_check_env_is_content(kind: str) -> None:
    env = FromSeed(kind)
    check_env(env, skip_render_check=True)


class FromSeed(RepeatEnv):
    """Starts where its generator says, as ``check_env`` wants it."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.time = 0
        return value(self.kind, int(self.np_random.integers(1000))), {}


@each_kind
def test_flatten_observation_wrapper(kind: str) -> None:
    env = gym.wrappers.FlattenObservation(RepeatEnv(kind))
    space = text_space(kind)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    assert same(unflatten(space, observation), value(kind, 0))
    observation, *_ = env.step(value(kind, 3))
    assert same(unflatten(space, observation), value(kind, 3))


@each_kind
def test_frame_stack_wrapper(kind: str) -> None:
    env = gym.wrappers.FrameStackObservation(RepeatEnv(kind), 2, padding_type="zero")
    first, _ = env.reset(seed=0)
    assert first in env.observation_space
    second, *_ = env.step(value(kind, 3))
    assert second in env.observation_space
    frames = list(iterate(env.observation_space, second))
    assert same(frames, [value(kind, 0), value(kind, 3)])


@each_kind
def test_delay_wrapper(kind: str) -> None:
    env = gym.wrappers.DelayObservation(RepeatEnv(kind), 1)
    nothing, _ = env.reset(seed=0)
    assert nothing in env.observation_space
    assert same(nothing, placeholder(text_space(kind)))
    delayed, *_ = env.step(value(kind, 3))
    assert same(delayed, value(kind, 0))


@each_kind
def test_other_wrappers_leave_texts_alone(kind: str) -> None:
    env = gym.wrappers.RecordEpisodeStatistics(
        gym.wrappers.TimeLimit(gym.wrappers.Autoreset(RepeatEnv(kind)), 9)
    )
    env.reset(seed=0)
    for step in (1, 2, 3):
        observation, *_, info = env.step(value(kind, step))
        assert same(observation, value(kind, step))
    assert info["episode"]["l"] == 3


@each_kind
def test_vector_wrappers(kind: str) -> None:
    envs = gym.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([make(kind)] * 2))
    envs = gym.wrappers.vector.DictInfoToList(gym.wrappers.vector.FlattenObservation(envs))
    observations, _ = envs.reset(seed=0)
    assert observations in envs.observation_space
    space = text_space(kind)
    for i in range(2):
        assert same(unflatten(space, observations[i]), value(kind, i))
