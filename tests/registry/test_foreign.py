"""Environments from elsewhere, foreign IDs and factories, with our stack around them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import paying_envs
import pettingzoo
import pytest
from gymnasium.wrappers import TimeLimit
from pettingzoo import ParallelEnv

import envweave_gym as ew
from envweave_gym import InvalidArgument, stream_of
from envweave_gym.core.protocols import layers
from envweave_gym.envs.games import kuhn_poker, line_race
from envweave_gym.envs.toy.echo import EchoEnv
from envweave_gym.wrappers import Autoreset, RequestStream
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.parallel_stream import ParallelStream
from envweave_gym.wrappers.scalar_rewards import as_number

pytestmark = pytest.mark.usefixtures("registries")

ECHO, KUHN, RACE = "envweave/Echo-v0", "envweave/KuhnPoker-v0", "envweave/LineRace-v0"


def refusal(name: Any, **kwargs: Any) -> str:
    """The one sentence with which ``make`` refuses."""
    with pytest.raises(InvalidArgument) as caught:
        ew.make(name, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_foreign_gymnasium_id_keeps_its_own_limit_inside_the_stream():
    env = ew.make("CartPole-v1")
    assert isinstance(env, RequestStream)
    assert isinstance(env.env, TimeLimit)
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    copy = gym.make(env.spec)
    assert type(copy) is RequestStream
    assert copy.spec == env.spec
    assert ew.make("CartPole-v1", num_envs=2, vectorization_mode="async").num_envs == 2


def test_a_foreign_error_names_the_id():
    for kwargs in ({"lenght": 3}, {"lenght": 3, "num_envs": 2}):
        text = refusal("CartPole-v1", **kwargs)
        assert text.startswith("CartPole-v1: ")
        assert text.endswith("got an unexpected keyword argument 'lenght'")


@pytest.mark.parametrize(("native", "path"), [("aec", "kuhn_poker"), ("parallel", "line_race")])
def test_a_foreign_game_comes_with_both_apis(native: Any, path: str):
    pettingzoo.register(native, "tests/Game-v1", f"envweave_gym.envs.games.{path}:raw_env")
    for name in ("tests/Game-v1", "tests/Game", "tests/Game_v1"):
        parallel, aec = ew.make(name), ew.make(name, api="aec")
        assert isinstance(parallel, ParallelEnv)
        assert isinstance(aec, AECStream)
        _, infos = parallel.reset(seed=0)
        assert any(info["active"] for info in infos.values())
        aec.reset(seed=0)
        assert stream_of(aec.last()[4]).requests[0].agent == aec.agent_selection
    assert "has no api='gym'; it has 'parallel' and 'aec'" in refusal("tests/Game-v1", api="gym")
    assert "'ruonds'" in refusal("tests/Game-v1", ruonds=3)


def test_a_game_of_pettingzoos_own_examples():
    path = "pettingzoo.test.example_envs.generated_agents_parallel_v0:parallel_env"
    pettingzoo.register("parallel", "examples/Generated-v0", path)
    env = ew.make("examples/Generated-v0", max_cycles=5)
    assert isinstance(env, ParallelStream)
    _, infos = env.reset(seed=0)
    for _ in range(20):
        assert [one.agent for one in stream_of(infos[env.agents[0]]).requests] == env.agents
        infos = env.step({agent: env.action_space(agent).sample() for agent in env.agents})[4]
    env.close()


def test_a_local_name_may_stand_for_a_game():
    ew.register("local://kuhn", factory=kuhn_poker.raw_env)
    ew.register("local://race", factory=line_race.raw_env)
    for name in ("local://kuhn", "local://race"):
        assert isinstance(ew.make(name), ParallelEnv)
        assert isinstance(ew.make(name, api="parallel"), ParallelEnv)
        assert isinstance(ew.make(name, api="aec"), AECStream)
        assert "has no api='gym'" in refusal(name, api="gym")
        assert f"{name} is a multi-agent environment; it takes no num_envs" in refusal(name, num_envs=2)
    assert "takes no argument 'runers' (did you mean 'runners'?)" in refusal("local://race", runers=3)


def test_a_stream_that_is_there_already_is_not_doubled():
    ew.register("local://echo", factory=lambda **kwargs: ew.make(ECHO, **kwargs))
    ew.register("local://mine", factory=lambda: RequestStream(EchoEnv(), name="mine"))
    ew.register("local://kuhn", factory=lambda: ew.make(KUHN))
    ew.register("local://kuhn-aec", factory=lambda: ew.make(KUHN, api="aec"))
    ew.register("local://race", factory=lambda: ew.make(RACE))
    for name in ("local://echo", "local://mine"):
        streams = [layer for layer in layers(ew.make(name)) if isinstance(layer, RequestStream)]
        assert len(streams) == 1
        assert isinstance(ew.make(name, autoreset=True), Autoreset)
        assert f"{name} has a stream already; give max_steps" in refusal(name, max_steps=3)
        text = refusal(name, on_fault="truncate", reset_deadline=1, max_steps=3)
        assert "give max_steps and on_fault and reset_deadline" in text
    for name in ("local://kuhn", "local://kuhn-aec", "local://race"):
        streams = [layer for layer in layers(ew.make(name)) if isinstance(layer, AECStream | ParallelStream)]
        assert len(streams) == 1
    assert isinstance(ew.make("local://kuhn-aec", api="aec"), AECStream)
    assert "has a stream already" in refusal("local://race", api="aec")


@pytest.mark.parametrize("how", [{"autoreset_mode": "SameStep"}, {"vectorization_mode": "sync"}])
def test_a_vector_of_a_foreign_id_plays_elsewhere_as_it_does_here(how: dict[str, Any]) -> None:
    traces: list[Any] = []
    for backend in ("inproc", "subprocess"):
        env = ew.make("CartPole-v1", num_envs=2, backend=backend, **how)
        env.reset(seed=3)
        traces.append([env.step(np.array([1, 0]))[0].tolist() for _ in range(12)])
        env.close()
    assert traces[0] == traces[1]


@pytest.fixture
def objectives() -> str:
    paying_envs.register()
    return paying_envs.OBJECTIVES


def first_reward(name: str, **kwargs: Any) -> Any:
    env = ew.make(name, **kwargs)
    env.reset(seed=0)
    reward = env.step(env.action_space.sample())[1]
    env.close()
    return reward


@pytest.mark.parametrize("kind", ["list", "array", "dict"])
def test_rewards_that_are_no_number_are_refused_or_converted(objectives: str, kind: str):
    with pytest.raises(TypeError, match=r"tests/Objectives-v0: the reward .* reward='sum'") as caught:
        first_reward(objectives, kind=kind)
    assert "\n" not in str(caught.value)
    paid = [first_reward(objectives, kind=kind, reward=how) for how in ("sum", "first")]
    assert paid == [3.5, 1.0]
    assert all(type(one) is float for one in paid)
    own = first_reward(objectives, kind=kind, reward=lambda paid: len(paid) * 10)
    assert (own, type(own)) == (20.0, float)
    assert first_reward(objectives, kind=kind, reward="sum", num_envs=2).tolist() == [3.5, 3.5]


def test_rewards_are_made_numbers_on_a_server_too(objectives: str):
    assert first_reward(objectives, reward="sum", backend="subprocess") == 3.5
    assert first_reward(objectives, reward="first", num_envs=2, backend="subprocess").tolist() == [1, 1]
    env = ew.make(objectives, backend="subprocess")
    env.reset(seed=0)
    assert "reward='sum'" in env.step(0)[4]["fault"].message
    env.close()


def test_another_reward_argument_is_the_environments_own(objectives: str):
    assert ew.make(objectives, reward="dense").reset(seed=0)[1]["reward"] == "dense"
    with pytest.raises(InvalidArgument, match="reward=3 is not 'sum', 'first' or a function"):
        RequestStream(EchoEnv(), reward=3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("reward", ["1", b"1", 10**400, None, 1j])
def test_a_reward_that_float_cannot_hold_or_would_parse_is_no_number(reward: Any):
    with pytest.raises(TypeError, match=r"Odd: the reward .* is no number"):
        as_number("Odd", reward)
