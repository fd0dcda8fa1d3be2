"""An environment of a server plays as one of this process does."""

from __future__ import annotations

import builtins
import copy
import os
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from every_id import TRIAL, any_gym_id
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.utils.env_match import check_environments_match
from gymnasium.vector import AsyncVectorEnv
from remote_worlds import KEEPER_GAME, TROUBLE, UNMADE, kill, mortal, transport, url
from servers import running_server

import envweave_gym as ew
from envweave_gym.core.faults import MAX_FAULTS_IN_A_ROW, EnvironmentCrashed, FaultStorm
from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.env import RemoteEnv
from envweave_gym.remote.errors import crash
from envweave_gym.remote.vector import RemoteVectorEnv

__all__ = ["mortal", "transport", "url"]
LINE, COUNTER, ECHO, CODEFIX = (f"envweave/{name}-v0" for name in ("LineWorld", "Counter", "Echo", "CodeFix"))
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def pair(env_id: str, url: str) -> tuple[Any, Any]:
    """The same environment here and there."""
    here, there = (gym.make(env_id, backend=where, **TRIAL[env_id]) for where in ("inproc", url))
    return here, there


def play(env: Any, actions: list[Any], seed: int = 5) -> list[Any]:
    """Everything an environment says, with resets where episodes end."""
    reported = [env.reset(seed=seed)]
    for action in actions:
        reported.append(env.step(action))
        if reported[-1][2] or reported[-1][3]:
            reported.append(env.reset())
    return reported


def sampled(env: Any, count: int) -> list[Any]:
    env.action_space.seed(1)
    return [env.action_space.sample() for _ in range(count)]


# Equality


@any_gym_id
def test_it_says_what_the_same_environment_says_here(env_id: str, transport: str, url: str):
    here, there = pair(env_id, url)
    assert there.observation_space == here.observation_space
    assert there.action_space == here.action_space
    # sync vectors of Gymnasium before 1.3 write their autoreset mode into the metadata of the class
    assert there.metadata == {key: here.metadata[key] for key in here.metadata if key != "autoreset_mode"}
    actions = sampled(here, 60)
    assert data_equivalence(play(here, actions), play(there, actions))
    assert ew.state_of(there) == ew.state_of(here)
    there.close()


@any_gym_id
def test_gymnasiums_own_tests_find_no_difference(env_id: str, url: str):
    here, there = pair(env_id, url)
    check_environments_match(here, there, num_steps=50, skip_render=True)
    check_env(pair(env_id, url)[1].unwrapped, skip_render_check=True)


# What Gymnasium's own environments have beside their steps


@pytest.mark.parametrize("backend", ["subprocess", "url"])
def test_has_the_spec_of_the_environment_which_makes_it_there_again(backend: str, url: str):
    here = gym.spec("CartPole-v1")
    name = f"{url}#CartPole-v1" if backend == "url" else "CartPole-v1"
    where = {} if backend == "url" else {"backend": backend}
    for env in (ew.make(name, **where), ew.make(name, num_envs=2, **where)):
        spec = env.unwrapped.spec
        assert (spec.id, spec.reward_threshold) == (here.id, here.reward_threshold)
        assert (spec.max_episode_steps, spec.nondeterministic) == (500, False)
        single = isinstance(env, gym.Env)
        again = gym.make(env.spec) if single else gym.make_vec(EnvSpec.from_json(spec.to_json()))
        assert type(again.unwrapped) is type(env.unwrapped)
        assert np.array_equal(again.reset(seed=3)[0], env.reset(seed=3)[0])
        for one in (env, again):
            one.close()


def test_public_attributes_are_read_where_the_environment_is(url: str):
    env = ew.make(f"{url}#CartPole-v1")
    assert (env.get_wrapper_attr("gravity"), env.get_wrapper_attr("kinematics_integrator")) == (9.8, "euler")
    for name in ("nowhere", "_nowhere", "no where"):
        with pytest.raises(AttributeError):
            env.get_wrapper_attr(name)
        assert not env.has_wrapper_attr(name)
    assert env.has_wrapper_attr("gravity")
    env.close()
    one, two = ([url] * count for count in (1, 2))
    for rows in (RemoteVectorEnv("CartPole-v1", urls, num_envs=3) for urls in (one, two)):
        assert rows.get_attr("gravity") == rows.call("gravity") == (9.8,) * 3
        with pytest.raises(ew.InvalidArgument, match=r"CartPole-v1.* no public attribute 'gravitas'"):
            rows.get_attr("gravitas")
        with pytest.raises(ew.InvalidArgument, match="'_seed' is no name of a public attribute"):
            rows.get_attr("_seed")
        with pytest.raises(ew.InvalidArgument, match="render is of type function"):
            rows.call("render")
        with pytest.raises(ew.InvalidArgument, match="methods"):
            rows.call("step", 1)
        rows.close()
    native = ew.make("envweave/LineWorld-v0", num_envs=3, backend=url, length=7)
    assert native.get_attr("num_envs") == (3, 3, 3)
    native.close()


def test_a_server_lets_strangers_read_attributes_of_its_own_ids_only():
    with running_server("CartPole-v1", "envweave/LineWorld-v0") as server:
        remember_token(server.url, server.token or "")
        ours, foreign = (ew.make(f"{server.url}#{one}") for one in ("envweave/LineWorld-v0", "CartPole-v1"))
        assert ours.get_wrapper_attr("length") == 11
        with pytest.raises(AttributeError, match=r"CartPole-v1.* may not read"):
            foreign.get_wrapper_attr("gravity")
        for env in (ours, foreign):
            env.close()


# Constructors that raise


def test_every_builtin_exception_can_be_raised_by_its_name():
    for name, kind in vars(builtins).items():
        if isinstance(kind, type) and issubclass(kind, BaseException):
            made = pickle.loads(pickle.dumps(crash(name, "the hub is down")))
            assert isinstance(made, EnvironmentCrashed)
            assert (str(made), made.cause) == ("the hub is down", name)


@pytest.mark.parametrize("name", ["KeyError", "FileNotFoundError", "NotImplementedError"])
def test_an_exception_of_a_remote_constructor_keeps_its_type(name: str, url: str):
    raising = {"error": name, "on_fault": "raise", "reset_deadline": 0.0}
    for make in (
        lambda: ew.make(UNMADE, backend=url, **raising),
        lambda: RemoteEnv(UNMADE, url, **raising).reset(),
    ):
        with pytest.raises(
            getattr(builtins, name), match=f"cannot be made: {name}: '?no such card"
        ) as reported:
            make()
        assert isinstance(reported.value, EnvironmentCrashed)
        copied = pickle.loads(pickle.dumps(reported.value))
        assert (type(copied), str(copied), copied.cause) == (type(reported.value), str(reported.value), name)


def test_an_exception_of_another_package_is_named(url: str):
    with pytest.raises(EnvironmentCrashed, match="cannot be made: Empty: no such") as reported:
        ew.make(UNMADE, backend=url, error="Empty")
    assert reported.value.cause == "Empty"


def test_a_value_that_a_constructor_refuses_is_an_invalid_argument_as_here(url: str):
    for backend in ("inproc", url):
        with pytest.raises(ew.InvalidArgument, match="no such card"):
            ew.make(UNMADE, backend=backend, error="ValueError")


CLIFF = "CliffWalking-v1" if "CliffWalking-v1" in gym.registry else "CliffWalking-v0"  # at the floor


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1", CLIFF])
def test_foreign_environments_play_there_too(env_id: str, url: str):
    here, there = ew.make(env_id), ew.make(env_id, backend=url)
    actions = sampled(here, 40)
    assert data_equivalence(play(here, actions), play(there, actions))


def test_every_name_means_the_same_environment(url: str):
    made = [
        gym.make(LINE, backend=url, length=5),
        ew.make(LINE, backend=[url], length=5),
        ew.make(f"{url}#{LINE}", length=5),
        ew.make(LINE, backend="subprocess", length=5),
        gym.make("envweave/Remote-v0", url=url, env_id=LINE, length=5),
    ]
    assert {type(env.unwrapped) for env in made} == {RemoteEnv}
    assert len({tuple(env.reset(seed=2)[0].tolist()) for env in made}) == 1


def test_the_module_of_an_id_is_named_to_the_server(url: str):
    for name, kwargs in ((TROUBLE, {}), (TROUBLE.removesuffix("-v0"), {}), (TROUBLE, {"num_envs": 2})):
        env = ew.make(name, backend=url, **kwargs)
        env.reset(seed=1)
        with pytest.raises(ew.InvalidAction, match=r"^tests/Trouble-v0: "):
            env.step("junk")
        env.close()
    game = ew.make(KEEPER_GAME, backend=url)
    assert game.possible_agents == ["only"]


def test_a_server_that_has_an_id_without_its_module_knows_it_with_it():
    with running_server(TROUBLE) as server:
        remember_token(server.url, server.token or "")
        env = ew.make(TROUBLE, backend=server.url)
        assert env.reset(seed=1)[0] == 0
        env.close()
        with pytest.raises(ew.UnknownEnvironment, match="'os:tests/Nope-v0' is not served here"):
            ew.make(f"{server.url}#os:tests/Nope-v0")


def test_a_spec_makes_it_again(url: str):
    env = gym.make(LINE, backend=url, length=5)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert data_equivalence(env.reset(seed=1), again.reset(seed=1))


def test_autoreset_and_the_step_limit_work(url: str):
    here, there = (ew.make(LINE, backend=where, autoreset=True, max_steps=3) for where in (None, url))
    for env in (here, there):
        env.reset(seed=1)
    for _ in range(9):
        assert data_equivalence(here.step(1), there.step(1))


def test_render_and_parse_action_are_asked_there(url: str):
    here, there = (gym.make(LINE, backend=where, render_mode="ansi") for where in (None, url))
    for env in (here, there):
        env.reset(seed=1)
    assert there.render() == here.render()
    assert there.render_mode == "ansi"
    for env_id, text in ((LINE, "right"), (CODEFIX, "<="), (COUNTER, '{"delta": 3}'), (ECHO, "hello")):
        here, there = gym.make(env_id), gym.make(env_id, backend=url)
        assert ew.parse_action(there, text) == ew.parse_action(here, text)
        with pytest.raises(ValueError, match=r"surrogate|not in|names no|is no"):
            ew.parse_action(there, "\ud800")


def test_async_vectors_of_remote_environments_play_as_local_ones(url: str):
    here = ew.make(LINE, num_envs=8, vectorization_mode="sync")
    there = AsyncVectorEnv([lambda: gym.make(LINE, backend=url)] * 8)
    for env in (here, there):
        env.reset(seed=3)
    for _ in range(30):
        mine, theirs = here.step(np.ones(8, int)), there.step(np.ones(8, int))
        assert data_equivalence(mine[:4], theirs[:4])
        assert list(mine[4]["stream"]) == list(theirs[4]["stream"])
    there.close()


# Misuse


@any_gym_id
def test_misuse_is_refused_in_the_same_words(env_id: str, url: str):
    here, there = pair(env_id, url)
    good = sampled(here, 1)[0]

    def calls(env: Any) -> list[str]:
        reported = []
        for call in (
            lambda: env.step(good),
            lambda: env.reset(seed=-1),
            lambda: env.reset(options=3),
            lambda: env.reset(options={"no_such_option": 1}),
            lambda: env.reset(seed=1) and env.step(-99),
            lambda: env.step({"nothing": {1, 2}}),
            lambda: env.step(None),
        ):
            with pytest.raises(ew.EnvweaveError) as caught:
                call()
            reported.append(f"{type(caught.value).__name__}: {caught.value}")
        return reported

    assert calls(there) == calls(here)
    there.step(good)
    assert ew.state_of(there)["step_count"] == 1 or env_id == CODEFIX


def test_wrong_arguments_are_refused_when_it_is_made(url: str):
    for kwargs, words in (
        ({"lenght": 3}, "did you mean 'length'"),
        ({"length": 1}, "length=1 is not a line"),
        ({"max_steps": 0}, "max_steps=0 is not a step limit"),
        ({"token": "secret"}, "token= is a reference"),
        ({"token": "env:NOT_THERE"}, "there is no token in env:NOT_THERE"),
    ):
        with pytest.raises(ew.InvalidArgument, match=words):
            ew.make(LINE, backend=url, **kwargs)


def test_an_id_that_is_not_served_is_unknown_there(url: str):
    with pytest.raises(ew.UnknownEnvironment, match="Nope"):
        ew.make(f"{url}#envweave/Nope-v0")


def test_an_address_without_a_listener_is_an_error_at_once():
    with pytest.raises(ConnectionError, match=r"http://127.0.0.1:9.*refused"):
        ew.make("http://127.0.0.1:9#x")


# Copies and processes


def test_pickles_and_copies_hold_the_address_not_the_session(url: str):
    env = RemoteEnv(LINE, url, length=7)
    env.reset(seed=1)
    env.step(1)
    for copied in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        with pytest.raises(ew.ResetNeeded):
            copied.step(1)
        assert data_equivalence(copied.reset(seed=1)[0], RemoteEnv(LINE, url, length=7).reset(seed=1)[0])
    assert ew.state_of(env)["step_count"] == 1


def test_a_forked_process_does_not_use_the_session_of_its_parent(url: str):
    env = RemoteEnv(LINE, url)
    env.reset(seed=1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _, _, _, truncated, info = env.step(1)
        env.reset(seed=1)
        reported = [truncated, info["fault"].kind, ew.state_of(env)["step_count"]]
        os.write(writer, repr(reported).encode())
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 1000).decode() == "[True, <FaultKind.LOST: 'lost'>, 0]"
    os.waitpid(child, 0)
    os.close(reader)
    env.step(1)
    assert ew.state_of(env)["step_count"] == 1


# Faults


def test_an_environment_that_raises_ends_its_own_episode(transport: str, url: str):
    env, other = RemoteEnv(TROUBLE, url), RemoteEnv(TROUBLE, url)
    for one in (env, other):
        one.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(1)
    assert (observation, reward, terminated, truncated) == (0, 0.0, False, True)
    assert info["fault"] == ew.Fault(ew.FaultKind.CRASH, "OSError: the disk is full", True)
    assert ew.trainable(info) is False
    assert other.step(0)[:4] == (1, 1.0, False, False)
    env.reset()
    assert env.step(0)[:4] == (1, 1.0, False, False)


def test_an_exception_is_recorded_with_on_fault_raise(url: str):
    env = RemoteEnv(TROUBLE, url, on_fault="raise")
    env.reset(seed=1)
    with pytest.raises(EnvironmentCrashed, match="OSError: the disk is full"):
        env.step(1)
    with pytest.raises(ew.ResetNeeded):
        env.step(0)
    env.reset()
    env.step(0)


def test_a_reset_that_fails_is_tried_again_there(url: str):
    env = RemoteEnv(TROUBLE, url, fails=2)
    assert "fault" not in env.reset(seed=1)[1]
    env = RemoteEnv(TROUBLE, url, fails=99, reset_deadline=0.05)
    observation, info = env.reset(seed=1)
    assert observation in env.observation_space
    assert info["fault"].message == "OSError: not yet"
    _, reward, _, truncated, info = env.step(0)
    assert (reward, truncated, info["fault"].message) == (0.0, True, "OSError: not yet")


def test_no_answer_before_the_deadline_is_a_fault_and_the_next_episode_another_session(
    transport: str, url: str
):
    env = RemoteEnv(TROUBLE, url, nap=1.5, call_deadline=0.4)
    env.reset(seed=1)
    assert env.step(0)[0] == 1
    observation, reward, _, truncated, info = env.step(2)
    assert (observation, reward, truncated) == (1, 0.0, True)
    assert info["fault"].kind is ew.FaultKind.TIMEOUT
    assert [event.kind for event in info["stream"].events] == ["act", "fault", "episode_end"]
    assert env.reset()[0] == 0
    assert env.step(0)[0] == 1


def test_a_slow_answer_is_asked_for_again_and_done_once(transport: str, url: str):
    env = RemoteEnv(TROUBLE, url, nap=0.6, call_deadline=2.0)
    env.reset(seed=1)
    assert env.step(2)[0] == 1
    assert env.step(0)[0] == 2


@pytest.mark.parametrize("on_fault", ["truncate", "raise"])
def test_a_session_that_is_gone_is_a_fault_or_an_exception(on_fault: str, mortal: PrivateServer):
    env = RemoteEnv(COUNTER, mortal.url, on_fault=on_fault)
    env.reset(seed=1)
    kill(mortal)
    if on_fault == "raise":
        with pytest.raises(ew.SessionLost, match=r"the server of this session has ended: exit code -9$"):
            env.step({"delta": 1})
    else:
        _, reward, _, truncated, info = env.step({"delta": 1})
        assert (reward, truncated, info["fault"].kind) == (0.0, True, ew.FaultKind.LOST)
        assert not ew.trainable(info)
    env.reset()
    env.step({"delta": 1})
    env.close()


def test_too_many_faults_in_a_row_are_a_storm(url: str):
    env = RemoteEnv(TROUBLE, url)
    for _ in range(MAX_FAULTS_IN_A_ROW - 1):
        env.reset()
        assert "fault" in env.step(1)[4]
    env.reset()
    with pytest.raises(FaultStorm, match=f"{MAX_FAULTS_IN_A_ROW} faults in a row"):
        env.step(1)
