"""Every ID through every door of Gymnasium and PettingZoo."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from every_id import GYM_IDS, GYM_TRIALS_JSON, SELF_CONTAINED, TRIAL, any_game_id, any_gym_id
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from scripted_envs import Scripted

import envweave_gym as ew
from envweave_gym import InvalidArgument, stream_of
from envweave_gym.registry import entry_points, foreign
from envweave_gym.registry.catalog import card_of, register_card
from envweave_gym.vector.native import NativeVectorEnv

LINE = "envweave/LineWorld-v0"


def trace(env: gym.Env[Any, Any], steps: int = 12) -> list[Any]:
    """What comes of the same seeds and actions."""
    env.action_space.seed(1)
    rows: list[Any] = [env.reset(seed=3)[0]]
    for _ in range(steps):
        rows.append(env.step(env.action_space.sample())[:4])
        if rows[-1][2] or rows[-1][3]:
            rows.append(env.reset()[0])
    env.close()
    return rows


def vector_trace(env: VectorEnv[Any, Any, Any], steps: int = 12) -> list[Any]:
    """The same of a vector, which resets by itself."""
    env.action_space.seed(1)
    rows: list[Any] = [env.reset(seed=3)[0]]
    rows += [env.step(env.action_space.sample())[:4] for _ in range(steps)]
    env.close()
    return rows


def game_trace(env: Any, steps: int = 12) -> list[Any]:
    """The same of a parallel game, with legal actions."""
    observations, infos = env.reset(seed=3)
    rows: list[Any] = [observations]
    for agent in env.possible_agents:
        env.action_space(agent).seed(1)
    for _ in range(steps):
        if not env.agents:
            break
        active = [agent for agent in env.agents if infos[agent]["active"]]
        actions = {agent: legal(env.action_space(agent), observations[agent]) for agent in active}
        observations, *rest, infos = env.step(actions)
        rows.append([observations, *rest])
    env.close()
    return rows


def legal(space: gym.Space[Any], observation: Any) -> Any:
    mask = observation.get("action_mask") if isinstance(observation, dict) else None
    return space.sample() if mask is None else space.sample(np.asarray(mask, np.int8))


def last_request(info: dict[str, Any]) -> str:
    return stream_of(info).requests[0].kind


# One environment


@any_gym_id
def test_gym_make_plays(env_id: str):
    env = gym.make(env_id, **TRIAL[env_id])
    assert env.spec is not None
    assert env.spec.id == env_id
    observation, info = env.reset(seed=0)
    assert observation in env.observation_space
    assert last_request(info) == "act"
    observation, reward, _, _, _ = env.step(env.action_space.sample())
    assert observation in env.observation_space
    assert isinstance(reward, float)
    assert env.get_wrapper_attr("state")()["step_count"] == 1


def test_the_module_prefix_needs_no_import():
    code = """
import json, os, sys, gymnasium
for env_id, kwargs in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        assert "envweave_gym" not in sys.modules
        env = gymnasium.make(f"envweave_gym:{env_id}", **kwargs)
        env.reset(seed=0)
        env.step(env.action_space.sample())
        vector = gymnasium.make_vec(f"envweave_gym:{env_id}", num_envs=2, **kwargs)
        vector.reset(seed=0)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0, env_id
    print(env_id)
"""
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        code,
        GYM_TRIALS_JSON,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == GYM_IDS, done.stderr


@any_gym_id
def test_a_spec_makes_the_same_environment(env_id: str):
    expected = trace(gym.make(env_id, **TRIAL[env_id]))
    assert data_equivalence(trace(gym.spec(env_id).make(**TRIAL[env_id])), expected)
    assert data_equivalence(trace(gym.make(gym.spec(env_id), **TRIAL[env_id])), expected)


@any_gym_id
def test_specs_go_through_json(env_id: str):
    spec = gym.spec(env_id)
    assert EnvSpec.from_json(spec.to_json()) == spec
    made = gym.make(env_id, max_steps=2, on_fault="truncate", **TRIAL[env_id])
    assert made.spec is not None
    again = EnvSpec.from_json(made.spec.to_json())
    assert again == made.spec
    assert again.kwargs["max_steps"] == 2
    copy = gym.make(again)
    assert copy.spec == made.spec
    assert type(copy) is type(made)
    assert data_equivalence(trace(copy), trace(made))


@any_gym_id
def test_a_spec_with_autoreset_gives_autoreset(env_id: str):
    made = gym.make(env_id, max_steps=1, autoreset=True, **TRIAL[env_id])
    assert made.spec is not None
    copy = gym.make(made.spec)
    assert type(copy) is type(made)
    copy.reset(seed=0)
    assert copy.step(copy.action_space.sample())[2:4] != (False, False)
    info = copy.step(copy.action_space.sample())[4]
    assert next(iter(stream_of(info).events)).kind == "episode_start"


@any_gym_id
def test_the_step_limit_is_the_streams_own(env_id: str):
    env = gym.make(env_id, max_steps=1, **TRIAL[env_id])
    env.reset(seed=0)
    *_, truncated, info = env.step(env.action_space.sample())
    assert truncated
    assert last_request(info) == "reset"
    unlimited = gym.make(env_id, max_steps=-1, **TRIAL[env_id])
    assert unlimited.reset(seed=0)[0] in env.observation_space
    assert not isinstance(env, TimeLimit)


def test_a_time_limit_of_gymnasiums_own_is_around_the_stream():
    env = gym.make("envweave/Echo-v0", max_episode_steps=2)
    assert isinstance(env, TimeLimit)
    env.reset(seed=0)
    env.step("one")
    *_, truncated, info = env.step("two")
    assert truncated
    assert last_request(info) == "act"
    assert env.reset()[0] == "Echo environment ready!"
    assert env.spec is not None
    assert EnvSpec.from_json(env.spec.to_json()).max_episode_steps == 2


# Vectors


@any_gym_id
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vectors_of_every_kind_play_the_same_episodes(env_id: str, mode: str):
    kwargs = {"max_steps": 4, **TRIAL[env_id]}
    default = vector_trace(gym.make_vec(env_id, num_envs=3, autoreset_mode=mode, **kwargs))
    modes = {"autoreset_mode": mode}
    sync = gym.make_vec(env_id, num_envs=3, vectorization_mode="sync", vector_kwargs=modes, **kwargs)
    assert data_equivalence(vector_trace(sync), default)
    of_specs = SyncVectorEnv([gym.make(env_id, **kwargs).spec.make] * 3, autoreset_mode=mode)
    assert data_equivalence(vector_trace(of_specs), default)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_find_every_id_under_every_start_method(method: str):
    script = Path(__file__).parents[1] / "support" / "start_methods.py"
    # A worker of a forkserver has imported as little as a spawned one, so a few IDs show that it finds them.
    ids = GYM_IDS[:3] if method == "forkserver" else GYM_IDS
    command = [sys.executable, script, method, json.dumps({env_id: TRIAL[env_id] for env_id in ids})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    made = [f"{ids[0]} {form}" for form in ("make_vec", "prefix", "spec")]
    assert done.stdout.splitlines() == [*made, *(f"{env_id} make_vec" for env_id in ids[1:])]


@any_gym_id
@pytest.mark.parametrize("way", [None, "sync", "async"])
def test_specs_of_vectors_go_through_json(env_id: str, way: str | None):
    kwargs: dict[str, Any] = {"autoreset_mode": "SameStep"}
    if way is not None:
        kwargs = {"vectorization_mode": way, "vector_kwargs": kwargs}
    made = gym.make_vec(env_id, num_envs=2, max_steps=3, **kwargs, **TRIAL[env_id])
    assert made.spec is not None
    again = EnvSpec.from_json(made.spec.to_json())
    assert again == made.spec
    copy = gym.make_vec(again)
    assert copy.spec == made.spec
    assert type(copy) is type(made)
    assert copy.num_envs == 2
    assert copy.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert data_equivalence(vector_trace(copy), vector_trace(made))


def test_a_native_form_is_used_where_there_is_one():
    for card in SELF_CONTAINED:
        if not card.is_game:
            env = gym.make_vec(card.id, num_envs=2, **card.trial)
            assert isinstance(env, NativeVectorEnv if card.vector else SyncVectorEnv)


@pytest.mark.parametrize("env_id", ["envweave/Counter-v0", LINE])
@pytest.mark.parametrize("name", ["max_steps", "max_episode_steps"])
def test_make_vec_takes_the_step_limit_by_either_name(env_id: str, name: str):
    env = gym.make_vec(env_id, num_envs=2, **{name: 1})
    env.reset(seed=0)
    _, _, _, truncated, infos = env.step(env.action_space.sample())
    assert truncated.all()
    assert last_request({"stream": infos["stream"][0]}) == "reset"
    with pytest.raises(InvalidArgument, match="max_steps and max_episode_steps are the same limit"):
        gym.make_vec(env_id, num_envs=2, max_steps=3, max_episode_steps=4)


# Faults


@pytest.mark.usefixtures("registries")
def test_a_reset_is_retried_until_its_deadline_over_every_transport():
    path = "scripted_envs:Scripted"
    register_card({"id": "tests/Card-v0", "doc": "Follows a script.", "gym": path})
    gym.register("tests/Foreign-v0", entry_point=path)
    ew.register("local://scripted", factory=Scripted)
    doors = [partial(gym.make, "tests/Card-v0")]
    doors += [partial(ew.make, name) for name in ("tests/Card-v0", "tests/Foreign-v0", "local://scripted")]
    for make in doors:
        for deadline, lost in [(0, True), (5.0, False)]:
            env = make(resets=[OSError("busy")], on_fault="truncate", reset_deadline=deadline)
            assert ("fault" in env.reset(seed=0)[1]) is lost
    for make in (gym.make_vec, ew.make):
        envs = make(
            "tests/Card-v0", num_envs=2, resets=[OSError("busy")], on_fault="truncate", reset_deadline=0
        )
        _, infos = envs.reset(seed=0)
        assert [fault.message for fault in infos["fault"]] == ["OSError: busy"] * 2


def test_a_native_vector_takes_what_is_said_of_faults_and_plays_on_as_before():
    expected = vector_trace(gym.make_vec(LINE, num_envs=2))
    for make in (gym.make_vec, ew.make):
        for kwargs in ({"on_fault": "truncate"}, {"reset_deadline": 1}):
            env = make(LINE, num_envs=2, **kwargs)
            assert isinstance(env, NativeVectorEnv)
            assert data_equivalence(vector_trace(env), expected)
    with pytest.raises(InvalidArgument, match=r"it takes .*, on_fault, reset_deadline$"):
        gym.make_vec(LINE, num_envs=2, on_falt="raise")


# Games


@any_game_id
@pytest.mark.parametrize("api", ["aec", "parallel"])
def test_specs_of_games_can_be_pickled(env_id: str, api: Any):
    spec = pettingzoo.spec(api, env_id)
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    env, copy = pettingzoo.make(api, env_id), pettingzoo.make(api, again)
    assert type(env) is type(copy) is type(spec.make())
    assert env.possible_agents == copy.possible_agents
    assert env.metadata["name"] == copy.metadata["name"]


@any_game_id
def test_pettingzoo_makes_a_parallel_game(env_id: str):
    env = pettingzoo.make("parallel", env_id)
    assert isinstance(env, pettingzoo.ParallelEnv)
    rows = game_trace(env)
    assert len(rows) > 1
    assert data_equivalence(rows, game_trace(pettingzoo.make("parallel", env_id)))


@any_game_id
def test_pettingzoo_makes_an_aec_game(env_id: str):
    env = pettingzoo.make("aec", env_id)
    assert isinstance(env, pettingzoo.AECEnv)
    env.reset(seed=3)
    turns = 0
    for agent in env.agent_iter(40):
        observation, _, terminated, truncated, info = env.last()
        over = terminated or truncated
        assert info["active"] is not over
        env.step(None if over else legal(env.action_space(agent), observation))
        turns += not over
    assert turns >= 2


# Rendering


def test_human_rendering_falls_back_to_pictures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with pytest.warns(UserWarning, match="'human' rendering"):
        env = gym.make(LINE, render_mode="human")
    assert isinstance(env, gym.wrappers.HumanRendering)
    if find_spec("pygame") is None:
        with pytest.raises(gym.error.DependencyNotInstalled, match="pygame is not installed"):
            env.reset(seed=0)
    else:
        env.reset(seed=0)
        env.close()


def test_rendered_frames_are_collected():
    env = gym.make(LINE, render_mode="rgb_array_list")
    env.reset(seed=0)
    env.step(0)
    frames: Any = env.render()
    assert len(frames) == 2
    assert frames[0].shape == (24, 24 * 11, 3)


@pytest.mark.parametrize(
    ("given", "deadline"), [({}, 700.0), ({"call_deadline": 3.0}, 3.0)], ids=["the card's", "the caller's"]
)
def test_a_game_on_a_server_waits_as_long_as_its_card_says(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], deadline: float
):
    for module in (entry_points, foreign):
        monkeypatch.setattr(module, "remote_game", lambda env_id, urls, api, kwargs: kwargs["call_deadline"])
    monkeypatch.setattr(foreign, "kind_of", lambda env_id, urls, kwargs: f"not {kwargs['call_deadline']}")
    where = {"hub_id": "acme/pair", "backend": "http://127.0.0.1:1", **given}
    assert ew.make("envweave/HubTeam-v0", api="aec", **where) == deadline
    assert ew.make("envweave/HubTeam-v0", **where) == deadline
    assert entry_points.launch_game("parallel", card_of("envweave/HubTeam-v0"), **where) == deadline
