"""Counter, Echo and LineWorld: exactly what they do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import envweave_gym
from envweave_gym import (
    EventKind,
    InvalidAction,
    InvalidArgument,
    NotAvailable,
    messages_of,
    state_of,
    stream_of,
)
from envweave_gym.envs.toy.lineworld import MAX_LENGTH, LineWorldVectorEnv
from envweave_gym.examples import CounterEnv, EchoEnv, LineWorldEnv

COUNTER, ECHO, LINE = "envweave/Counter-v0", "envweave/Echo-v0", "envweave/LineWorld-v0"


@pytest.mark.parametrize("core", [CounterEnv, EchoEnv, LineWorldEnv])
def test_the_plain_classes_pass_gymnasiums_checker(core: Any) -> None:
    check_env(core(), skip_render_check=True)


@pytest.mark.parametrize("env_id", [COUNTER, ECHO, LINE])
def test_rendering_as_text_needs_no_more_than_asking_for_it(env_id: str) -> None:
    env = gym.make(env_id, render_mode="ansi")
    env.reset(seed=0)
    assert isinstance(env.render(), str)
    plain = gym.make(env_id)
    plain.reset(seed=0)
    assert plain.unwrapped.render() is None


# Counter


def test_counter_is_an_example_to_copy() -> None:
    assert envweave_gym.examples.CounterEnv is CounterEnv
    assert isinstance(gym.make(COUNTER).unwrapped, CounterEnv)


def test_counter_adds_until_it_reaches_the_target() -> None:
    env = gym.make(COUNTER, target=12)
    observation, _ = env.reset(seed=3)
    assert int(observation["count"]) == 0
    observation, reward, terminated, truncated, _ = env.step({"delta": 3})
    assert (int(observation["count"]), reward, terminated, truncated) == (3, 0.0, False, False)
    observation, reward, terminated, truncated, info = env.step({"delta": np.int64(9)})
    assert (int(observation["count"]), reward, terminated, truncated) == (12, 1.0, True, False)
    assert stream_of(info).of_kind(EventKind.ACT)[0].data == {"action": {"delta": 9}}
    assert state_of(env)["count"] == state_of(env)["target"] == 12


@pytest.mark.parametrize(
    "action", [{"delta": 11}, {"delta": -11}, {}, {"delta": 1, "x": 1}, 3, {"delta": 0.5}]
)
def test_counter_refuses_other_actions(action: Any) -> None:
    env = gym.make(COUNTER)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=COUNTER):
        env.step(action)


@pytest.mark.parametrize("target", [0, 1.5, True, "ten", 10**7])
def test_counter_refuses_other_targets(target: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{COUNTER}: target=.* is not a count; give an int between"):
        envweave_gym.make(COUNTER, target=target)


def test_counter_shows_count_and_target() -> None:
    env = gym.make(COUNTER, render_mode="ansi", target=7)
    observation, _ = env.reset(seed=0)
    assert (int(observation["count"]), env.render()) == (0, "0 of 7")


# Echo


def test_echo_says_that_it_is_ready() -> None:
    observation, info = gym.make(ECHO).reset(seed=0)
    assert observation == "Echo environment ready!"
    assert messages_of(info) == [{"role": "user", "content": "Echo environment ready!"}]


@pytest.mark.parametrize(
    ("text", "reward"), [("Hello, World!", 1.3), ("", 0.0), ("x", 0.1), ("äé☃𝄞", 0.4), ("x" * 4096, 409.6)]
)
def test_echo_pays_a_tenth_for_each_character(text: str, reward: float) -> None:
    env = gym.make(ECHO, render_mode="ansi")
    env.reset(seed=0)
    observation, earned, terminated, truncated, info = env.step(text)
    assert observation == text
    assert earned == pytest.approx(reward)
    assert (terminated, truncated) == (False, False)
    assert messages_of(info) == [{"role": "user", "content": text}]
    assert env.render() == text
    assert state_of(env) == {"episode": 0, "step_count": 1, "last_message": text}


def test_echo_pays_exactly_what_its_users_expect() -> None:
    env = gym.make(ECHO)
    env.reset(seed=0)
    assert env.step("Hello, World!")[1] == 1.3


@pytest.mark.parametrize("action", ["x" * 4097, "\ud800", 3, None, b"x", ["x"]])
def test_echo_refuses_what_is_no_text(action: Any) -> None:
    env = gym.make(ECHO)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=ECHO):
        env.step(action)


def test_echo_ends_at_its_step_limit_alone() -> None:
    env = gym.make(ECHO)
    env.reset(seed=0)
    ends = [env.step("x")[2:4] for _ in range(100)]
    assert ends == [(False, False)] * 99 + [(False, True)]


# LineWorld


def line(**kwargs: Any) -> LineWorldEnv:
    return LineWorldEnv(**kwargs)


def test_lineworld_starts_off_its_goal_and_reaches_every_cell() -> None:
    env = line(length=5)
    pairs = []
    for seed in range(2000):
        env.reset(seed=seed)
        state = env.episode_state()
        pairs.append((state["place"], state["goal"]))
    assert all(place != goal for place, goal in pairs)
    counts = [pairs.count((place, goal)) for place in range(5) for goal in range(5) if place != goal]
    assert min(counts) > 60, "all pairs are about as likely"
    assert max(counts) < 145


def test_lineworld_observes_positions_as_fractions() -> None:
    env = line(length=11)
    observation, _ = env.reset(seed=0)
    assert observation.dtype == np.float32
    state = env.episode_state()
    expected = np.array([state["place"] / 10, state["goal"] / 10], np.float32)
    assert observation.tolist() == expected.tolist()


def test_lineworld_pays_at_the_goal_and_charges_for_every_other_step() -> None:
    env = line(slip=0.0)
    env.reset(seed=0)
    state = env.episode_state()
    distance = state["goal"] - state["place"]
    rewards = []
    terminated = False
    while not terminated:
        _, reward, terminated, truncated, _ = env.step(int(distance > 0))
        assert truncated is False
        rewards.append(reward)
    assert rewards == [-0.01] * (abs(distance) - 1) + [1.0]


def test_lineworld_has_walls() -> None:
    env = line(length=9, slip=0.0)
    seed = next(seed for seed in range(100) if env.reset(seed=seed) and env.episode_state()["goal"] == 8)
    env.reset(seed=seed)
    for _ in range(20):
        _, _, terminated, _, _ = env.step(0)
        assert not terminated
    assert env.episode_state()["place"] == 0


@pytest.mark.parametrize("slip", [0.0, 0.1, 0.6])
def test_lineworld_slips_as_often_as_it_says(slip: float) -> None:
    env = line(length=MAX_LENGTH, slip=slip)
    slipped, steps = 0, 4000
    env.reset(seed=1)
    place = env.episode_state()["place"]
    assert steps < place < MAX_LENGTH - steps, "the walls are far"
    for _ in range(steps):
        before = place
        env.step(1)
        place = env.episode_state()["place"]
        slipped += place < before
    assert slipped / steps == pytest.approx(slip, abs=0.025)


def test_lineworld_slips_differently_in_every_episode_and_row() -> None:
    env = LineWorldVectorEnv(64, length=1001, slip=0.5)
    env.reset(seed=0)
    starts = [state["place"] for state in env.state()]
    for _ in range(40):
        env.step(np.ones(64, np.int64))
    walks = {state["place"] - start for state, start in zip(env.state(), starts, strict=True)}
    assert len(walks) > 10


def test_lineworld_draws_by_its_episodes_seed() -> None:
    def walk(seed: int) -> list[list[float]]:
        env = gym.make(LINE, slip=0.5, length=1000)
        env.reset(seed=seed)
        return [env.step(1)[0].tolist() for _ in range(3)]

    assert walk(3) == walk(3)
    assert len({str(walk(seed)) for seed in range(20)}) > 10


def test_lineworld_has_forty_steps_by_default() -> None:
    for kwargs, limit in (({}, 40), ({"max_steps": 7}, 7)):
        env = gym.make(LINE, length=1000, **kwargs)
        env.reset(seed=0)
        ends = [env.step(0)[2:4] for _ in range(limit)]
        assert ends == [(False, False)] * (limit - 1) + [(False, True)]


@pytest.mark.parametrize("length", [2, 3, MAX_LENGTH])
def test_lineworld_of_any_length_observes_within_its_space(length: int) -> None:
    env, envs = line(length=length), LineWorldVectorEnv(8, length=length)
    assert env.reset(seed=0)[0] in env.observation_space
    assert envs.reset(seed=0)[0] in envs.observation_space
    assert envs.reset(seed=0)[0][0].tolist() == env.reset(seed=0)[0].tolist()


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"length": 1}, f"length=1 is not a line; give an int from 2 to {MAX_LENGTH}"),
        ({"length": MAX_LENGTH + 1}, "length=1000001 is not a line"),
        ({"length": 5.0}, "length=5.0 is not a line"),
        ({"length": True}, "length=True is not a line"),
        ({"slip": 1}, r"slip=1 is not a probability; give a number in \[0, 1\)"),
        ({"slip": -0.1}, "slip=-0.1 is not a probability"),
        ({"slip": float("nan")}, "slip=nan is not a probability"),
        ({"slip": "often"}, "slip='often' is not a probability"),
    ],
)
def test_lineworld_refuses_other_arguments(kwargs: dict[str, Any], said: str) -> None:
    for rows in (None, 3):
        with pytest.raises(InvalidArgument, match=f"^{LINE}: {said}"):
            envweave_gym.make(LINE, num_envs=rows, **kwargs)


def test_lineworld_draws_the_line() -> None:
    env = line(length=7, render_mode="ansi", slip=0.0)
    env.reset(seed=0)
    state = env.episode_state()
    place, goal = state["place"], state["goal"]
    drawn = env.render()
    assert len(drawn) == 7
    assert (drawn[place], drawn[goal]) == ("@", "G")
    assert drawn.count("·") == 5


def test_lineworld_paints_the_line() -> None:
    env = gym.make(LINE, length=7, render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert isinstance(frame, np.ndarray)
    assert (frame.shape, frame.dtype) == ((24, 168, 3), np.uint8)
    cells = frame[12, 12::24]
    state = state_of(env)
    colours = {tuple(cells[cell]) for cell in range(7) if cell not in (state["place"], state["goal"])}
    assert len(colours) == 1
    assert tuple(cells[state["place"]]) not in colours
    assert tuple(cells[state["goal"]]) not in colours | {tuple(cells[state["place"]])}


@pytest.mark.parametrize("name", ["GSM8K", "GSM8KMCQ", "SWEBenchLiteLocMCQ", "SWEBenchLitePatch"])
def test_a_data_set_that_is_not_there_is_refused_with_the_id(name: str) -> None:
    env_id = f"envweave/{name}-v0"
    with pytest.raises(
        NotAvailable, match=rf"^{env_id}: dataset='/no/data': there is no such file or folder; "
    ):
        envweave_gym.make(env_id, dataset="/no/data")
