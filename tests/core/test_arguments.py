"""Wrong arguments of every ID: one sentence that names the ID, what was given and what is allowed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from every_id import GAME_IDS, GYM_IDS, any_game_id, any_gym_id

import envweave_gym as ew
from envweave_gym import InvalidArgument, ResetNeeded
from envweave_gym.core.arguments import call, check_options, check_render_mode
from envweave_gym.envs.games import code_review, kuhn_poker, line_race

LINE = "envweave/LineWorld-v0"


@any_gym_id
@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        (
            {"reset_deadlin": 3},
            "takes no argument 'reset_deadlin' (did you mean 'reset_deadline'?); it takes ",
        ),
        ({"max_steps": 0}, "max_steps=0 is not a step limit; give an int >= 1, or -1 for none"),
        ({"max_steps": float("nan")}, "max_steps=nan is not"),
        ({"max_steps": "9"}, "max_steps='9' is not"),
        ({"max_steps": True}, "max_steps=True is not"),
        ({"autoreset": "SameStep"}, "autoreset='SameStep' is not True or False"),
        ({"autoreset_mode": "SameStep"}, "autoreset_mode= is for vectors; give num_envs= too"),
        ({"on_fault": "ignore"}, "on_fault='ignore' is not 'raise' or 'truncate'"),
        ({"reset_deadline": -1}, "reset_deadline=-1 is not a number of seconds"),
        ({"backend": "moon"}, "backend='moon' is unknown; there are 'inproc'"),
        ({"backend": 3}, "backend=3 is unknown"),
        ({"call_deadline": 1}, "call_deadline= is for environments on servers; give backend= too"),
        ({"replicas": 2}, "replicas= is for environments on servers; give backend= too"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_sentence(env_id: str, kwargs: dict[str, Any], reason: str):
    for make in (gym.make, ew.make):
        with pytest.raises(InvalidArgument) as caught:
            make(env_id, **kwargs)
        assert str(caught.value).startswith(env_id)
        assert reason in str(caught.value)
        assert "got an unexpected" not in str(caught.value)


@pytest.mark.parametrize("env_id", [*GYM_IDS, *GAME_IDS, "CartPole-v1"])
def test_a_render_mode_that_is_no_text_and_vector_arguments_that_are_no_dict(env_id: str):
    with pytest.raises(InvalidArgument, match=f"^{env_id}: render_mode=3 is not a text, like 'ansi'$"):
        ew.make(env_id, render_mode=3)
    if env_id not in GAME_IDS:
        with pytest.raises(InvalidArgument, match=f"^{env_id}: vector_kwargs=3 is no dict of arguments$"):
            ew.make(env_id, num_envs=2, vector_kwargs=3)
        with pytest.raises(InvalidArgument, match=f"^{env_id}: vector_kwargs= go to Gymnasium's own vectors"):
            ew.make(env_id, num_envs=2, vector_kwargs={"context": "spawn"})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("docker://", "names no image; give one: docker://envweave-core#ID"),
        ("http://", "names no server; give one: http://host:port#ID"),
        ("https://#envweave/Echo-v0", "names no server"),
        ("envweave/Fix-v0", "'envweave list' shows what this package has"),
        ("local://nothing", "give it to envweave_gym.register(name, factory=…) first"),
    ],
)
def test_a_name_that_says_too_little_is_answered_with_the_next_step(name: str, reason: str):
    with pytest.raises((InvalidArgument, ew.UnknownEnvironment)) as caught:
        ew.make(name)
    assert reason in str(caught.value)


@pytest.mark.parametrize("module", [kuhn_poker, code_review, line_race])
@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"nosuch": 1}, "takes no argument 'nosuch'"),
        ({"max_cycles": 0}, "max_cycles=0 is not a number of cycles"),
        ({"render_mode": "zz"}, "render_mode='zz' is unknown"),
    ],
)
def test_the_functions_of_a_game_refuse_in_one_sentence_too(module: Any, kwargs: dict[str, Any], reason: str):
    for build in (module.env, module.parallel_env):
        with pytest.raises(InvalidArgument) as caught:
            build(**kwargs)
        assert str(caught.value).startswith("envweave/")
        assert reason in str(caught.value)


def test_the_backend_in_process_is_the_default():
    here, default = gym.make(LINE, backend="inproc"), gym.make(LINE)
    assert type(here) is type(default)
    np.testing.assert_array_equal(here.reset(seed=1)[0], default.reset(seed=1)[0])
    assert pettingzoo.make("aec", GAME_IDS[0], backend="inproc").possible_agents


@pytest.mark.parametrize(
    ("env_id", "kwargs", "reason"),
    [
        ("envweave/Counter-v0", {"target": "ten"}, "target='ten' is not a count"),
        (LINE, {"length": 1}, "length=1 is not a line; give an int "),
        (LINE, {"slip": float("nan")}, "slip=nan is not a probability"),
        (LINE, {"slip": 2}, "slip=2 is not a probability"),
    ],
)
def test_a_wrong_value_names_the_id(env_id: str, kwargs: dict[str, Any], reason: str):
    with pytest.raises(InvalidArgument) as caught:
        gym.make(env_id, **kwargs)
    assert str(caught.value).startswith(f"{env_id}: {reason}")
    with pytest.raises(InvalidArgument, match=f"{env_id}: "):
        gym.make_vec(env_id, num_envs=2, **kwargs)
    gym.make(env_id).reset(seed=0)


@pytest.mark.filterwarnings("ignore:.*render_mode")
@any_gym_id
def test_a_wrong_render_mode_names_the_right_ones(env_id: str):
    with pytest.raises(InvalidArgument, match=f"{env_id}: render_mode='holo' is unknown; there are .*ansi"):
        gym.make(env_id, render_mode="holo")


@pytest.mark.parametrize("env_id", ["envweave/Counter-v0", LINE])
@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"num_envs": 0}, "num_envs=0 is not a number of environments; give an int >= 1"),
        ({"num_envs": True}, "num_envs=True is not"),
        ({"num_envs": 2.0}, "num_envs=2.0 is not"),
        ({"num_envs": float("nan")}, "num_envs=nan is not"),
        ({"autoreset_mode": "Later"}, "'Later' is unknown; there are 'NextStep', 'SameStep', 'Disabled'"),
        ({"max_episode_steps": 0}, "max_steps=0 is not a step limit"),
        ({"autoreset": True}, "a vector resets by autoreset_mode="),
        ({"lenght": 3}, "takes no argument 'lenght'"),
        ({"on_fault": "ignore"}, "on_fault='ignore' is not 'raise' or 'truncate'"),
        ({"on_fault": ["raise"]}, "on_fault=['raise'] is not"),
        ({"reset_deadline": float("nan")}, "reset_deadline=nan is not a number of seconds"),
        ({"reset_deadline": float("inf")}, "reset_deadline=inf is not a number of seconds"),
        ({"reset_deadline": True}, "reset_deadline=True is not"),
        ({"backend": "moon"}, "backend='moon' is unknown"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_a_vector_is_one_sentence(env_id: str, kwargs: dict[str, Any], reason: str):
    with pytest.raises(InvalidArgument) as caught:
        gym.make_vec(env_id, **{"num_envs": 2, **kwargs})
    assert str(caught.value).startswith(env_id)
    assert reason in str(caught.value)


def test_a_value_is_shown_short_whatever_it_is():
    for kwargs in ({"max_steps": "x" * 9999}, {"on_fault": "x" * 9999}, {"backend": "x" * 9999}):
        with pytest.raises(InvalidArgument) as caught:
            gym.make(LINE, **kwargs)
        assert len(str(caught.value)) < 250


@any_game_id
@pytest.mark.parametrize("api", ["aec", "parallel"])
def test_a_wrong_argument_of_a_game_is_one_sentence(env_id: str, api: Any):
    for kwargs, reason in [
        ({"runer": 3}, "takes no argument 'runer'"),
        ({"render_mode": "holo"}, "render_mode='holo' is unknown"),
        ({"backend": "moon"}, "backend='moon' is unknown"),
    ]:
        with pytest.raises(InvalidArgument) as caught:
            pettingzoo.make(api, env_id, **kwargs)
        assert str(caught.value).startswith(env_id)
        assert reason in str(caught.value)


# call


def walk(length: int = 3, *, slip: float = 0.0, **_: object) -> tuple[int, float]:
    if length > 9:
        raise ValueError("too long")
    return length, slip


def strict(length: int, slip: float = 0.0) -> tuple[int, float]:
    return length, slip


def test_call_gives_what_the_constructor_gives():
    assert call("X", walk, {"length": 4, "anything": 1}) == (4, 0.0)
    assert call("X", strict, {"length": 4}, fixed={"slip": 0.5}) == (4, 0.5)
    assert call("X", dict, {"a": 1}) == {"a": 1}


def test_call_says_what_is_wrong():
    with pytest.raises(
        InvalidArgument, match=r"^X takes no argument 'lengt' \(did you mean 'length'\?\); it "
    ):
        call("X", strict, {"lengt": 4})
    with pytest.raises(InvalidArgument, match=r"^X takes no argument 'slip'; it takes length, backend$"):
        call("X", strict, {"length": 4, "slip": 1}, fixed={"slip": 0.5}, also=("backend",))
    with pytest.raises(InvalidArgument, match=r"^X takes no argument 'a'; it takes none$"):
        call("X", lambda: None, {"a": 1})
    with pytest.raises(InvalidArgument, match=r"^X: .* missing 1 required positional argument: 'length'$"):
        call("X", strict, {})
    with pytest.raises(InvalidArgument, match=r"^X: too long$") as caught:
        call("X", walk, {"length": 10})
    assert isinstance(caught.value.__cause__, ValueError)


def test_call_leaves_other_errors_as_they_are():
    def fails(error: Exception) -> None:
        raise error

    for error in (InvalidArgument("said already"), ResetNeeded("said already"), OSError("disk")):
        with pytest.raises(type(error)) as caught:
            call("X", fails, {"error": error})
        assert caught.value is error


def test_render_modes_are_checked_where_they_are_declared():
    class Silent:
        pass

    check_render_mode("X", Silent, "holo")
    check_render_mode("X", gym.Wrapper, "holo")
    check_render_mode("X", gym.make(LINE), None)
    check_render_mode("X", gym.make(LINE), "ansi")
    with pytest.raises(InvalidArgument, match=r"^X: render_mode='holo' is unknown; there are none$"):
        check_render_mode("X", gym.make_vec(LINE), "holo")


class TestResetOptions:
    @pytest.mark.parametrize("options", [3, "index", [("index", 1)], ("index",)], ids=repr)
    @pytest.mark.parametrize(
        ("env_id", "api"),
        [
            ("envweave/LineWorld-v0", "gym"),
            ("CartPole-v1", "gym"),
            ("envweave/KuhnPoker-v0", "aec"),
            ("envweave/KuhnPoker-v0", "parallel"),
            ("envweave/LineRace-v0", "parallel"),
        ],
    )
    def test_that_are_no_dict_are_refused(self, env_id: str, api: Any, options: Any) -> None:
        env = ew.make(env_id, api=api)
        with pytest.raises(InvalidArgument, match=rf"{env_id}: reset\(options=.* is neither a dict nor None"):
            env.reset(seed=0, options=options)
        env.reset(seed=0, options={})

    @pytest.mark.parametrize("name", ["Counter", "Echo", "LineWorld", "CodeFix"])
    def test_that_an_environment_does_not_know_are_refused(self, name: str) -> None:
        env = gym.make(f"envweave/{name}-v0")
        with pytest.raises(InvalidArgument, match=f"{name}-v0: reset takes no option 'index'; it takes none"):
            env.reset(seed=0, options={"index": 3})
        env.reset(seed=0)

    def test_are_handed_on_where_the_environment_names_none(self) -> None:
        env = ew.make("CartPole-v1")
        observation, _ = env.reset(seed=0, options={"low": 0.2, "high": 0.2})
        assert observation == pytest.approx([0.2] * 4)

    def test_are_named_with_the_nearest(self) -> None:
        with pytest.raises(
            InvalidArgument, match=r"no option 'indx' \(did you mean 'index'\?\); it takes 'ind"
        ):
            check_options("x/Y-v0", {"indx": 1}, {"reset_options": ("index",)})


def test_an_image_in_a_name_is_not_overridden():
    with pytest.raises(InvalidArgument, match="the name says which image; leave image= out"):
        ew.make("docker://envweave-core#envweave/Echo-v0", image="envweave-echo")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"check_every": 0}, "check_every=0 is not a number of seconds from"),
        ({"check_every": "x"}, "check_every='x' is not a number of seconds"),
        ({"misses": 0}, "misses=0 is no number of checks from 1 on"),
        ({"ids": 5}, "ids=5 is no list of IDs"),
        ({"token": 5}, "token= is a text, or None"),
    ],
)
def test_a_fleet_refuses_what_it_cannot_be_looked_after_with(given: dict[str, Any], reason: str):
    with pytest.raises(InvalidArgument, match=rf"^Fleet\('subprocess'\): {reason}"):
        ew.Fleet("subprocess", **given)
