"""Numbers alone: what is left of the infos of every kind of environment, and that a fault is not lost."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from pettingzoo import AECEnv, ParallelEnv
from scripted_envs import Scripted

from envweave_gym import messages_of, state_of, stream_of, trainable
from envweave_gym.wrappers import NumericInfo, RequestStream

LINE, KUHN, RACE = "envweave/LineWorld-v0", "envweave/KuhnPoker-v0", "envweave/LineRace-v0"

MIXED = {
    "int": 1,
    "float": 0.5,
    "bool": True,
    "np": np.float32(2),
    "np bool": np.bool_(False),
    "array": np.zeros(2),
    "text": "x",
    "none": None,
    "dict": {"a": 1},
    "list": [1],
    "objects": np.array([None]),
    "words": np.array(["a"]),
}
NUMBERS = ["int", "float", "bool", "np", "np bool", "array"]


def test_numbers_stay_and_everything_else_goes() -> None:
    env = NumericInfo(RequestStream(Scripted([MIXED])))
    assert isinstance(env, NumericInfo)
    _, info = env.reset(seed=0)
    assert info == {"options": 0, "seq": 0, "trainable": False}
    *_, info = env.step(0)
    assert list(info) == [*NUMBERS, "seq", "trainable"]
    assert info["trainable"] is True


def test_a_fault_stays_visible_as_a_number() -> None:
    env = NumericInfo(RequestStream(Scripted([RuntimeError("boom")]), on_fault="truncate"))
    env.reset(seed=0)
    *_, info = env.step(0)
    assert info == {"seq": 3, "trainable": False}
    assert trainable(info) is False


def test_keys_and_types_are_constant() -> None:
    env = NumericInfo(gym.make(LINE, max_steps=3))
    infos = [env.reset(seed=0)[1], *(env.step(0)[-1] for _ in range(3)), env.reset()[1]]
    assert {tuple((key, type(value)) for key, value in info.items()) for info in infos} == {
        (("seq", int), ("trainable", bool))
    }


def test_it_goes_into_the_spec_and_through_pickle() -> None:
    env = NumericInfo(gym.make("CartPole-v1"))
    assert isinstance(gym.make(EnvSpec.from_json(env.spec.to_json())), NumericInfo)
    env.reset(seed=0)
    env.step(0)
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert isinstance(other, NumericInfo)
        assert other.step(1)[0].tolist() == copy.deepcopy(env).step(1)[0].tolist()
    assert state_of(NumericInfo(gym.make(LINE)))["episode"] == -1


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_vectors_keep_numbers_masks_and_last_observations(native: bool, mode: AutoresetMode) -> None:
    def build() -> Any:
        if native:
            return gym.make_vec(LINE, num_envs=3, max_steps=4, autoreset_mode=mode.value)
        return SyncVectorEnv([lambda: gym.make(LINE, max_steps=4)] * 3, autoreset_mode=mode)

    plain, envs = RecordEpisodeStatistics(build()), NumericInfo(RecordEpisodeStatistics(build()))
    assert isinstance(envs, gym.vector.VectorEnv)
    _, full = plain.reset(seed=0)
    _, infos = envs.reset(seed=0)
    assert set(infos) == {"seq", "_seq", "trainable", "_trainable"}
    for _ in range(9):
        _, _, terminated, truncated, full = plain.step(np.zeros(3, np.int64))
        infos = envs.step(np.zeros(3, np.int64))[-1]
        assert infos["seq"].tolist() == full["seq"].tolist()
        assert trainable(infos).tolist() == infos["trainable"].tolist() == trainable(full).tolist()
        assert infos["_trainable"].all()
        over = terminated | truncated
        if over.any():
            assert set(infos["episode"]) == {"r", "l", "t"}
            assert infos["_episode"].tolist() == over.tolist()
        if over.any() and mode is AutoresetMode.SAME_STEP:
            assert set(infos["final_info"]) == {"seq", "_seq"}
            assert [obs is not None for obs in infos["final_obs"]] == infos["_final_obs"].tolist()
        assert "stream" not in infos
        assert "_stream" not in infos
        if over.any() and mode is AutoresetMode.DISABLED:
            plain.reset(options={"reset_mask": over.copy()})
            envs.reset(options={"reset_mask": over.copy()})


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_vector_form_says_how_its_rows_are_reset(mode: AutoresetMode) -> None:
    native = gym.make_vec(LINE, num_envs=2, autoreset_mode=mode.value)
    turns = SyncVectorEnv([lambda: gym.make(LINE)], autoreset_mode=mode)
    for envs in (native, turns):
        assert NumericInfo(envs).autoreset_mode is mode
        assert NumericInfo(envs).metadata["autoreset_mode"] is mode


def test_vector_infos_become_lists_of_numbers() -> None:
    rows = DictInfoToList(NumericInfo(gym.make_vec(LINE, num_envs=2))).reset(seed=0)[1]
    assert rows == [{"seq": 0, "trainable": False}] * 2
    assert trainable(rows).tolist() == [False, False]


def test_a_foreign_vector_trains_every_row() -> None:
    envs = NumericInfo(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2))
    _, infos = envs.reset(seed=0)
    assert infos["trainable"].tolist() == [True, True]


def test_games_agent_by_agent() -> None:
    env = NumericInfo(pettingzoo.make("aec", KUHN))
    assert isinstance(env, AECEnv)
    env.reset(seed=0)
    agent = env.agent_selection
    assert env.infos[agent] == {"seq": 5, "active": True, "trainable": False}
    assert env.last()[-1] == env.infos[agent]
    env.step(0)
    assert env.last()[-1]["active"] is True

    game = NumericInfo(pettingzoo.make("parallel", RACE))
    assert isinstance(game, ParallelEnv)
    _, infos = game.reset(seed=0)
    assert {tuple(info) for info in infos.values()} == {("seq", "active", "trainable")}
    *_, infos = game.step(dict.fromkeys(game.agents, 0))
    assert trainable(infos) == dict.fromkeys(infos, True)
    assert not any(stream.events for stream in stream_of(infos).values())
    assert list(messages_of(infos).values()) == [[]] * len(infos)
