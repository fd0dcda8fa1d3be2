"""Vectors and games in suites."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.test import parallel_api_test

import envweave_gym
from envweave_gym.core.faults import FaultKind, InvalidAction, InvalidArgument


def test_rows_are_the_single_environments(toy: dict[str, Any]):
    vector = envweave_gym.make("toy/Walk-v0", num_envs=3, processes=2, **toy)
    single = envweave_gym.make("toy/Walk-v0", **toy)
    seen, infos = vector.reset(seed=[1, 2, 3])
    assert len(set(infos["pid"].tolist())) == 2
    rows = [seen]
    for step in range(8):
        rows.append(vector.step(np.array([1, step % 2, 0]))[0])
    for row, seed in enumerate((1, 2, 3)):
        expected = [single.reset(seed=seed)[0]]
        for step in range(4):
            expected.append(single.step([1, step % 2, 0][row])[0])
        assert data_equivalence(np.array(expected), np.array(rows)[:5, row])
    with pytest.raises(InvalidAction):
        vector.step(np.array([0, 0, 2]))
    vector.close()
    single.close()


def test_groups_play_the_same_episodes_and_a_lost_row_is_a_fault_of_its_group(toy: dict[str, Any]):
    vector = envweave_gym.make("toy/Walk-v0", num_envs=4, group=2, **toy)
    seen, _ = vector.reset(seed=0)
    assert (seen[0] == seen[1]).all()
    assert (seen[2] == seen[3]).all()
    assert not (seen[1] == seen[2]).all()
    vector.close()


def test_rows_that_share_a_process_share_its_loss_with_its_cause(toy: dict[str, Any]):
    vector = envweave_gym.make(
        "toy/Fails-v0",
        how="say",
        num_envs=2,
        processes=1,
        reset_deadline=30,
        autoreset_mode="SameStep",
        **toy,
    )
    vector.reset(seed=0)
    vector.step(np.array([1, 1]))
    *_, truncated, infos = vector.step(np.array([1, 1]))
    assert truncated.tolist() == [True, True]
    faults = infos["final_info"]["fault"]
    assert [fault.kind for fault in faults] == [FaultKind.CRASH] * 2
    assert all("exit code 7" in fault.message for fault in faults)
    vector.step(np.array([1, 1]))
    vector.close()


def test_an_observation_of_the_wrong_shape_is_a_fault_of_its_row(toy: dict[str, Any]):
    vector = envweave_gym.make("toy/Fails-v0", how="shape", num_envs=2, processes=1, **toy)
    vector.reset(seed=0)
    vector.step(np.array([1, 1]))
    vector.reset(options={"reset_mask": np.array([False, True])})
    seen, rewards, _, truncated, infos = vector.step(np.array([1, 1]))
    assert truncated.tolist() == [True, False]
    assert (seen[:, 0].tolist(), rewards.tolist()) == ([1, 1], [0.0, 0.0])
    assert re.search(r"toy/Fails-v0: step\(\) returned an array of shape \(3,\)", infos["fault"][0].message)
    assert vector.step(np.array([1, 0]))[3].tolist() == [False, True]
    vector.close()


def test_a_row_that_is_not_stepped_after_another_has_raised_begins_its_next_episode_whole(
    toy: dict[str, Any],
):
    vector = envweave_gym.make("toy/Fails-v0", num_envs=2, on_fault="raise", **toy)
    vector.reset(seed=0)
    vector.step(np.array([1, 1]))
    with pytest.raises(ZeroDivisionError):
        vector.step(np.array([1, 1]))
    seen, _ = vector.reset(seed=0)
    assert seen[:, 0].tolist() == [0, 0]
    assert vector.step(np.array([1, 0]))[0][:, 0].tolist() == [1, -1]
    vector.close()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


def test_all_rows_are_closed_if_the_close_of_one_raises(toy: dict[str, Any]):
    before = children()
    vector = envweave_gym.make("toy/Closes-v0", num_envs=3, processes=3, **toy)
    vector.reset(seed=0)
    assert len(children() - before) >= 3
    with pytest.raises(RuntimeError, match="cannot close"):
        vector.close()
    assert children() <= before
    vector.close()
    wrong = {"vectorization_mode": "sync", "vector_kwargs": {"no_such_argument": 1}}
    with pytest.raises(InvalidArgument, match="no_such_argument") as raised:
        envweave_gym.make("toy/Closes-v0", num_envs=2, processes=2, **wrong, **toy)
    assert "cannot close" in raised.value.__notes__[0]
    assert children() <= before


# Games


def test_a_game_plays_as_parallel_environment(toy: dict[str, Any]):
    game = envweave_gym.make("toy_suite/duel_v1", **toy)
    parallel_api_test(game, num_cycles=20)
    observations, infos = game.reset(seed=3)
    assert observations == game.reset(seed=3)[0]
    assert infos["a"]["stream"].requests[0].kind == "act"
    with pytest.raises(InvalidAction):
        game.step({"a": 5, "b": 0})
    rewards = game.step({"a": 2, "b": 1})[1]
    assert rewards == {"a": 2.0, "b": 1.0}
    game.close()


def test_a_game_in_turns_plays_in_both_apis(toy: dict[str, Any]):
    game = envweave_gym.make("toy_suite/duel-v1", api="aec", **toy)
    game.reset(seed=3)
    turns = 0
    for agent in game.agent_iter():
        _, _, terminated, truncated, info = game.last()
        assert info["active"] or terminated
        game.step(None if terminated or truncated else 1)
        turns += not terminated
        assert agent in ("a", "b")
    assert turns == 6
    game.close()


def test_a_game_that_fails_or_loses_its_process_is_truncated_with_the_fault(toy: dict[str, Any]):
    game = envweave_gym.make("toy_suite/duel_v1", fails_at=2, reset_deadline=30, **toy)
    game.reset(seed=3)
    game.step({"a": 1, "b": 1})
    _, rewards, _, truncations, infos = game.step({"a": 1, "b": 1})
    assert truncations == {"a": True, "b": True}
    assert rewards == {"a": 0.0, "b": 0.0}
    assert "at last" in infos["a"]["fault"].message
    game.reset(seed=3)
    game._served.session.kill()
    assert game.step({"a": 1, "b": 1})[4]["b"]["fault"].kind is FaultKind.LOST
    assert game.reset(seed=3)[0].keys() == {"a", "b"}
    game.close()


def test_a_game_takes_no_arguments_of_single_environments(toy: dict[str, Any]):
    for given in ({"num_envs": 2}, {"max_steps": 3}, {"autoreset": True}):
        with pytest.raises(InvalidArgument, match="multi-agent"):
            envweave_gym.make("toy_suite/duel_v1", **given, **toy)
    with pytest.raises(InvalidArgument, match="it has no api='gym'"):
        envweave_gym.make("toy_suite/duel_v1", api="gym", **toy)
