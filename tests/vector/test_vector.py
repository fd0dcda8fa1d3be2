"""Native vector environments are the single ones, row for row, and keep what they have handed out."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList
from native_vectors import FIX, LINE, actions_of, expect_equal, native, sync

import envweave_gym
from envweave_gym import stream_of
from envweave_gym.vector.native import NativeVectorEnv

# As SyncVectorEnv


@pytest.mark.parametrize("env_id", [LINE, FIX])
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("rows", [1, 5])
def test_everything_equals_the_single_environments(env_id: str, mode: AutoresetMode, rows: int) -> None:
    mine, theirs = native(env_id, rows, mode), sync(env_id, rows, mode)
    assert mine.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"] == mode
    for name in ("num_envs", "single_observation_space", "single_action_space", "observation_space"):
        assert getattr(mine, name) == getattr(theirs, name)
    expect_equal(mine.reset(seed=3), theirs.reset(seed=3))
    for number in range(25):
        result = mine.step(actions_of(mine, number))
        expect_equal(result, theirs.step(actions_of(mine, number)), f"step {number}")
        over = result[2] | result[3]
        if mode is AutoresetMode.DISABLED and over.any():
            again = [env.reset(options={"reset_mask": over.copy()}) for env in (mine, theirs)]
            expect_equal(*again, f"reset after step {number}")
        expect_equal(mine.state(), theirs.call("state"), f"state after step {number}")


@pytest.mark.parametrize("mode", AutoresetMode)
def test_without_a_step_limit_nothing_is_truncated(mode: AutoresetMode) -> None:
    mine, theirs = native(mode=mode, max_steps=-1, length=300), sync(mode=mode, max_steps=-1, length=300)
    expect_equal(mine.reset(seed=3), theirs.reset(seed=3))
    for _ in range(60):
        result = mine.step(np.zeros(5, np.int64))
        expect_equal(result, theirs.step(np.zeros(5, np.int64)))
        assert not result[3].any()
        if mode is AutoresetMode.DISABLED and result[2].any():
            break


@pytest.mark.parametrize(
    "seed", [None, 0, 41, [7, None, 9, None, 2**64 - 1], (1, 2, 3, 4, 5), np.arange(5), 2**64 - 5]
)
def test_seeds_are_taken_as_the_single_environments_take_them(seed: Any) -> None:
    mine, theirs = native(), sync()
    for env in (mine, theirs):
        env.reset(seed=11)
        env.reset()
    same = list(seed) if isinstance(seed, np.ndarray) else seed
    expect_equal(mine.reset(seed=seed), theirs.reset(seed=same))
    expect_equal(mine.reset(), theirs.reset())


@pytest.mark.parametrize("mode", AutoresetMode)
def test_partial_resets_equal_those_of_the_single_environments(mode: AutoresetMode) -> None:
    mine, theirs = native(mode=mode), sync(mode=mode)
    mask = np.array([True, False, False, True, False])
    for env in (mine, theirs):
        env.reset(seed=1)
        env.step(np.zeros(5, np.int64))
    for seed in (None, 50, [None, 1, 2, 3, None]):
        results = [env.reset(seed=seed, options={"reset_mask": mask.copy()}) for env in (mine, theirs)]
        expect_equal(*results)
        expect_equal(mine.step(np.ones(5, np.int64)), theirs.step(np.ones(5, np.int64)))
    assert mask.tolist() == [True, False, False, True, False]


def test_options_are_recorded_and_not_changed() -> None:
    options = {"reset_mask": np.ones(5, bool), "index": np.int64(3)}
    env = native()
    env.metadata["reset_options"] = ("index",)
    _, infos = env.reset(seed=0, options=options)
    assert stream_of(infos)[2].events[0].data == {"seed": 2, "options": {"index": 3}}
    assert set(options) == {"reset_mask", "index"}


def test_unseeded_first_resets_differ_between_rows_and_runs() -> None:
    seeds = [
        stream.events[0].data["seed"] for _ in range(2) for stream in stream_of(native(rows=20).reset()[1])
    ]
    assert len(set(seeds)) == 40


def test_final_observations_and_infos_are_shaped_as_gymnasiums() -> None:
    env = native(mode=AutoresetMode.SAME_STEP, length=2, slip=0.0)
    env.reset(seed=0)
    _, _, terminated, _, infos = env.step(np.array([0, 0, 0, 1, 1]))
    assert terminated.any()
    assert not terminated.all()
    for row, over in enumerate(terminated):
        assert (infos["final_obs"][row] is not None) == over
        assert (infos["final_info"]["stream"][row] is not None) == over
        if over:
            place, goal = infos["final_obs"][row]
            assert place == goal
    for key in ("_final_obs", "_final_info"):
        assert infos[key].tolist() == terminated.tolist()


# What was handed out stays


def arrays_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [array for item in value.values() for array in arrays_in(item)]
    if isinstance(value, tuple):
        return [array for item in value for array in arrays_in(item)]
    return [value]


@pytest.mark.parametrize("env_id", [LINE, FIX])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_nothing_handed_out_changes_later(env_id: str, mode: AutoresetMode) -> None:
    env, twin = native(env_id, mode=mode), native(env_id, mode=mode)
    late, early = [env.reset(seed=3)], [copy.deepcopy(twin.reset(seed=3))]
    for number in range(20):
        late.append(env.step(actions_of(env, number)))
        early.append(copy.deepcopy(twin.step(actions_of(env, number))))
        over = late[-1][2] | late[-1][3]
        if mode is AutoresetMode.DISABLED and over.any():
            late.append(env.reset(options={"reset_mask": over.copy()}))
            early.append(copy.deepcopy(twin.reset(options={"reset_mask": over.copy()})))
    for one, other in zip(late, early, strict=True):
        expect_equal(one, other)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_changes_of_callers_to_arrays_do_not_come_back(mode: AutoresetMode) -> None:
    env, twin = native(mode=mode), native(mode=mode)
    vandalise(env.reset(seed=3))
    twin.reset(seed=3)
    for number in range(20):
        chosen = actions_of(env, number)
        result = env.step(chosen)
        chosen[:] = 1
        kept = copy.deepcopy(result[:4])
        lazy = result[4]["stream"]
        vandalise(result)
        expected = twin.step(actions_of(env, number))
        expect_equal(kept, expected[:4])
        expect_equal(np.asarray(lazy), np.asarray(expected[4]["stream"]))
        over = kept[2] | kept[3]
        if mode is AutoresetMode.DISABLED and over.any():
            mask = over.copy()
            vandalise(env.reset(options={"reset_mask": mask}))
            mask[:] = True
            twin.reset(options={"reset_mask": over})


def vandalise(result: tuple[Any, ...]) -> None:
    for array in arrays_in(result):
        if array.dtype != object and array.flags.writeable:
            array[...] = 1


# Copies and wrappers


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_in_mid_episode(mode: AutoresetMode, duplicate: Any) -> None:
    env = native(mode=mode, length=50 if mode is AutoresetMode.DISABLED else 11)
    env.reset(seed=3)
    env.step(np.ones(5, np.int64))
    other = duplicate(env)
    for number in range(3):
        expect_equal(env.step(actions_of(env, number)), other.step(actions_of(env, number)))
    expect_equal(env.reset(), other.reset())
    assert other.spec == env.spec


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_infos_become_lists(mode: AutoresetMode) -> None:
    mine, theirs = DictInfoToList(native(mode=mode)), DictInfoToList(sync(mode=mode))
    assert mine.reset(seed=3)[1] == theirs.reset(seed=3)[1]
    for number in range(12):
        rows = [env.step(actions_of(mine, number))[-1] for env in (mine, theirs)]
        for row in rows:
            for one in row:
                one.pop("final_obs", None)  # arrays, compared above
        assert rows[0] == rows[1]


def test_state_is_each_rows_own() -> None:
    env = native(rows=2)
    assert [state["episode"] for state in env.state()] == [-1, -1]
    env.reset(seed=0)
    env.step([0, 0])
    env.reset(options={"reset_mask": np.array([True, False])})
    assert [(state["episode"], state["step_count"]) for state in env.state()] == [(1, 0), (0, 1)]
    assert set(env.state()[0]) == {"episode", "step_count", "place", "goal", "length"}


def test_closing_twice_is_allowed() -> None:
    env = native()
    env.close()
    env.close()
    assert env.closed


def test_vectors_are_made_by_every_way_in() -> None:
    for env in (
        gym.make_vec(LINE, num_envs=2),
        gym.make_vec(LINE, num_envs=2, vectorization_mode="vector_entry_point"),
        envweave_gym.make(LINE, num_envs=2),
    ):
        assert isinstance(env, NativeVectorEnv)
        assert env.unwrapped.spec.id == LINE
