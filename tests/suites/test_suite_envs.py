"""Environments with ``backend="venv"``: the same spaces, episodes, infos and errors as in this process."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envweave_gym
from envweave_gym import FaultKind, NotAvailable, UnknownEnvironment
from envweave_gym.core.faults import InvalidAction, InvalidArgument, ResetNeeded
from envweave_gym.testing import checks_of, subject_of
from envweave_gym.testing.runs import name_of


@pytest.fixture
def walk(toy: dict[str, Any]) -> Iterator[Any]:
    env = envweave_gym.make("toy/Walk-v0", **toy)
    yield env
    env.close()


def played(env: Any, seed: int, steps: int = 12) -> list[Any]:
    trace: list[Any] = [env.reset(seed=seed)[0].tolist()]
    for step in range(steps):
        observation, reward, terminated, truncated, _ = env.step(step % 3 > 0)
        trace.append((observation.tolist(), reward, terminated, truncated))
        if terminated or truncated:
            trace.append(env.reset()[0].tolist())
    return trace


def test_spaces_episodes_and_infos_are_those_of_the_suite(walk: Any):
    assert walk.observation_space == gym.spaces.Box(-5, 5, (2,), np.float32)
    assert walk.action_space == gym.spaces.Discrete(2)
    assert walk.metadata["render_modes"] == ["ansi", "rgb_array"]
    observation, info = walk.reset(seed=7, options={"place": 3})
    assert observation[0] == 3
    assert info["seed"] == 7
    assert info["pair"] == (1, 2)
    assert info["stream"].events[0].data["seed"] == 7
    observation, reward, terminated, truncated, info = walk.step(np.int64(1))
    assert (observation[0], reward, terminated, truncated) == (4, 0.0, False, False)
    assert type(info["place"]) is np.int64
    assert played(walk, 5) == played(walk, 5)
    assert played(walk, 5) != played(walk, 6)


def test_wrong_calls_are_refused_as_in_this_process(walk: Any):
    with pytest.raises(ResetNeeded):
        walk.step(0)
    walk.reset(seed=0)
    with pytest.raises(InvalidAction, match="toy/Walk-v0: action 2 is not in Discrete"):
        walk.step(2)
    for _ in range(4):
        walk.step(1)
    assert walk.step(1)[2]
    with pytest.raises(ResetNeeded):
        walk.step(0)


def test_options_that_cannot_be_sent_are_refused_before_anything_happens(toy: dict[str, Any], walk: Any):
    walk.reset(seed=0)
    walk.step(1)
    cyclic: dict[str, Any] = {}
    cyclic["place"] = cyclic
    game = envweave_gym.make("toy_suite/duel_v1", **toy)
    for options in (
        {"place": object()},
        {"place": Path("/a")},
        {"place": [object]},
        {"day": date(2026, 1, 2)},
        cyclic,
    ):
        for env in (walk, game):
            with pytest.raises(InvalidArgument, match=r"reset\(options=…\) cannot be sent to its suite"):
                env.reset(options=options)
    assert walk.step(1)[0][0] == 2  # the episode goes on
    assert walk.reset(options={"place": np.int64(2)})[0][0] == 2
    assert game.reset(seed=1, options={"any": (1, {2})})[0].keys() == {"a", "b"}
    game.close()


def test_step_limits_are_those_of_the_suite_unless_given(toy: dict[str, Any]):
    for name, given, expected in (
        ("Walk", {}, 20),
        ("Walk", {"max_steps": 3}, 3),
        ("Free", {"max_steps": 3}, 3),
    ):
        env = envweave_gym.make(f"toy/{name}-v0", **toy, **given)
        env.reset(seed=0)
        steps, over = 0, False
        while not over:
            steps += 1
            _, _, _, over, info = env.step(steps % 2)
        assert (steps, info["stream"].requests[0].kind) == (expected, "reset")
        env.close()


def test_pictures_and_large_observations_arrive_whole(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Images-v0", render_mode="rgb_array", **toy)
    kept = [env.reset(seed=0)[0]]
    kept += [env.step(1)[0] for _ in range(4)]
    assert [frame.shape for frame in kept] == [(210, 160, 3)] * 5
    assert [int(frame.max()) for frame in kept] == [0, 1, 2, 3, 4]  # values, which later steps do not change
    assert env.render().tolist() == np.full((4, 4, 3), 4, np.uint8).tolist()
    env.close()
    env = envweave_gym.make("toy/Walk-v0", render_mode="ansi", **toy)
    env.reset(seed=0)
    assert env.render() == "at 0"
    assert env.get_wrapper_attr("length") == 5
    assert not env.has_wrapper_attr("nothing_of_this_name")
    env.close()


def test_infos_with_foreign_objects_arrive_as_texts_and_cycles_end(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Odd-v0", on_fault="raise", call_deadline=30, **toy)
    env.reset(seed=0)
    info = env.step(1)[4]
    assert info["tensor"] == "Tensor(1, 2)"
    assert (info["lone"], info["big"], info["plain"]) == ("\ud800", 1 << 100, {1: {"a"}})
    assert isinstance(info["cycle"], dict)
    env.close()


def test_a_space_of_an_unknown_class_asks_the_suite(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Spaces-v0", **toy)
    env.reset(seed=0)
    word = env.action_space["word"]
    assert isinstance(word, gym.spaces.Text)
    assert word.sample() == "ab"
    assert ("abba" in word, "abc" in word) == (True, False)
    env.step({"word": "ab", "number": np.array([1, 2])})
    with pytest.raises(InvalidAction):
        env.step({"word": "c", "number": np.array([1, 2])})
    env.reset(options={"more": True})
    assert env.action_space == gym.spaces.Discrete(9)
    env.close()


def test_names_without_versions_with_modules_and_of_functions(toy: dict[str, Any]):
    for name in ("toy/Walk", "toy_suite:toy/Walk-v0", "toy_suite.envs:Walk"):
        env = envweave_gym.make(name, **toy)
        assert env.reset(seed=0)[0].shape == (2,)
        env.close()


def test_a_bare_url_is_a_requirement_whose_package_registers_its_ids(toy: dict[str, Any], wheels: Path):
    [wheel] = wheels.glob("toy_suite-*.whl")
    renamed = wheels.parent / "at a url" / wheel.name
    renamed.parent.mkdir(exist_ok=True)
    shutil.copy(wheel, renamed)
    env = envweave_gym.make("toy/Walk-v0", **{**toy, "requirements": [renamed.as_uri()]})
    assert env.unwrapped.session.launch.distributions == ("toy-suite",)
    assert env.reset(seed=0)[0].shape == (2,)
    env.close()


def test_unknown_names_and_arguments_are_one_sentence(toy: dict[str, Any]):
    with pytest.raises(UnknownEnvironment, match=r"toy/Wolk-v0: no environment is called.*toy/Walk-v0"):
        envweave_gym.make("toy/Wolk-v0", **toy)
    with pytest.raises(InvalidArgument, match=r"toy/Walk-v0: .*unexpected keyword argument 'lenght'"):
        envweave_gym.make("toy/Walk-v0", lenght=3, **toy)
    with pytest.raises(InvalidArgument, match="length must be at least 1"):
        envweave_gym.make("toy/Walk-v0", length=0, **toy)
    for given in (object(), date(2026, 1, 2), FaultKind.CRASH):
        with pytest.raises(InvalidArgument, match=r"toy/Walk-v0: length=.* cannot be sent to its suite"):
            envweave_gym.make("toy/Walk-v0", length=given, **toy)
    with pytest.raises(InvalidArgument, match="on_fault"):
        envweave_gym.make("toy/Walk-v0", on_fault="never", **toy)
    with pytest.raises(InvalidArgument, match="processes"):
        envweave_gym.make("toy/Walk-v0", processes=2, **toy)
    with pytest.raises(InvalidArgument, match="install"):
        envweave_gym.make("toy/Walk-v0", **{**toy, "install": "yes"})
    with pytest.raises(InvalidArgument, match="api"):
        envweave_gym.make("toy/Walk-v0", api="aec", **toy)


def test_without_consent_make_says_which_command_to_run(toy: dict[str, Any]):
    toy.pop("install")
    with pytest.raises(NotAvailable, match=r"envweave suites add pinned pinned==1\.0 --ids toy/Walk-v0$"):
        envweave_gym.make("toy/Walk-v0", backend="venv", requirements=["pinned==1.0"])
    with pytest.raises(
        NotAvailable, match=r"suites add secret 'git\+https://\*\*\*@host/secret' --ids"
    ) as refused:
        envweave_gym.make("toy/Walk-v0", backend="venv", requirements=["git+https://u:hunter2@host/secret"])
    assert "hunter2" not in str(refused.value)
    with pytest.raises(UnknownEnvironment, match="requirements="):
        envweave_gym.make("toy/Walk-v0", backend="venv")


@pytest.mark.parametrize("name", ["envweave/Echo-v0", "envweave/Echo", "envweave/LineRace-v0"])
def test_our_own_ids_have_no_suite(offline: Any, name: str):
    with pytest.raises(InvalidArgument, match="backend='venv' makes environments of other packages"):
        envweave_gym.make(name, backend="venv")


def test_copies_and_pickles_are_made_again(walk: Any):
    walk.reset(seed=3)
    for again in (copy.deepcopy(walk), pickle.loads(pickle.dumps(walk)), gym.make(walk.spec)):
        assert "install" not in again.spec.kwargs  # a spec may go to other machines
        assert played(again, 5) == played(walk, 5)
        assert again.reset(seed=0)[1]["pid"] != walk.reset(seed=0)[1]["pid"]
        again.close()


def test_a_closed_environment_is_made_again_by_reset(walk: Any):
    first = walk.reset(seed=3)[1]["pid"]
    walk.close()
    walk.close()
    assert walk.reset(seed=3)[1]["pid"] != first


def test_autoreset_and_unseeded_resets_go_on_with_the_generator(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Walk-v0", autoreset=True, **toy)
    env.reset(seed=0)
    while not env.step(1)[2]:
        pass
    info = env.step(1)[4]
    assert (info["seed"], info["stream"].events[0].data["seed"]) == (None, None)
    env.close()
    env = envweave_gym.make("toy/Walk-v0", reproducible=True, **toy)
    env.reset(seed=0)
    assert isinstance(env.reset()[1]["seed"], int)
    env.close()


@pytest.mark.parametrize("rule", ["gymnasium_api", "stream_is_well_formed"])
def test_an_environment_in_a_suite_keeps_rules_of_the_kit(toy: dict[str, Any], rule: str):
    subject = subject_of("toy/Walk-v2", start_methods=(), **toy)
    [check] = [one for one in checks_of(subject) if name_of(one) == rule]
    check(subject)
