"""LineRace: the race and its two forms."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pettingzoo
import pytest
from pettingzoo.test import max_cycles_test, parallel_api_test, parallel_seed_test

from envweave_gym import state_of, trainable
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.envs.games import line_race
from envweave_gym.envs.games.line_race import env, parallel_env, raw_env
from envweave_gym.episode.stream import EventKind

ID = "envweave/LineRace-v0"
make_aec = partial(pettingzoo.make, "aec", ID)
make_parallel = partial(pettingzoo.make, "parallel", ID)


def ahead(race: Any) -> dict[str, int]:
    """Everybody towards the goal."""
    return dict.fromkeys(race.agents, int(state_of(race)["goal"] > 0))


def test_runners_start_in_the_half_away_from_the_goal_wherever_that_is() -> None:
    race = parallel_env(length=9)
    goals, distances = set(), set()
    for seed in range(100):
        race.reset(seed=seed)
        state = state_of(race)
        goals.add(state["goal"])
        distances.update(abs(position - state["goal"]) for position in state["positions"])
    assert goals == {0, 8}
    assert distances == {4, 5, 6, 7, 8}


def test_the_first_at_the_goal_take_the_reward_and_the_race_is_over() -> None:
    winners = set()
    for seed in range(40):
        race = parallel_env(slip=0.0)
        race.reset(seed=seed)
        state = state_of(race)
        distances = [abs(position - state["goal"]) for position in state["positions"]]
        for step in range(1, min(distances) + 1):
            _, rewards, terminations, truncations, infos = race.step(ahead(race))
            assert any(terminations.values()) is (step == min(distances))
        first = [
            agent for agent, d in zip(race.possible_agents, distances, strict=True) if d == min(distances)
        ]
        share = 1 / len(first)
        assert rewards == {agent: share if agent in first else 0.0 for agent in race.possible_agents}
        assert all(terminations.values())
        assert not any(truncations.values())
        assert race.agents == []
        assert all(info["stream"].of_kind(EventKind.EPISODE_END) for info in infos.values())
        winners.add(len(first))
    assert {1, 2} <= winners


def test_a_runner_observes_the_goal_itself_and_those_after_it() -> None:
    race = raw_env(slip=0.0)
    observations, _ = race.reset(seed=1)
    observations, *_ = race.step(dict.fromkeys(race.agents, 0))
    state = race.episode_state()
    a, b, c = state["positions"]
    expected = {"runner_0": [a, b, c], "runner_1": [b, c, a], "runner_2": [c, a, b]}
    for runner, positions in expected.items():
        cells = (np.array([state["goal"], *positions]) + 1) / 9
        assert np.allclose(observations[runner], cells)
        assert observations[runner] in race.observation_space(runner)
        assert observations[runner].min() > 0


def test_walls_stop_runners() -> None:
    race = raw_env(runners=1, length=5, slip=0.0)
    race.reset(seed=0)
    goal = race.episode_state()["goal"]
    for _ in range(6):
        race.step({"runner_0": int(goal == 0)})
    assert race.episode_state()["positions"] == [4 - goal]


def test_slips_come_as_often_as_said_and_by_the_seed() -> None:
    race = raw_env(runners=2, length=1001, slip=0.2, max_cycles=None)
    race.reset(seed=5)
    slips = 0
    for _ in range(400):
        before = race.episode_state()["positions"]
        race.step({"runner_0": 0, "runner_1": 0})
        slips += sum(now > was for now, was in zip(race.episode_state()["positions"], before, strict=True))
    assert 110 < slips < 210
    again = raw_env(runners=2, length=1001, slip=0.2, max_cycles=None)
    again.reset(seed=5)
    for _ in range(400):
        again.step({"runner_0": 0, "runner_1": 0})
    assert again.episode_state() == race.episode_state()


def test_max_cycles_truncates() -> None:
    race = make_parallel(max_cycles=3, length=50)
    race.reset(seed=0)
    for _ in range(3):
        assert race.agents
        _, rewards, terminations, truncations, _ = race.step(dict.fromkeys(race.agents, 0))
    assert all(truncations.values())
    assert not any(terminations.values())
    assert set(rewards.values()) == {0.0}
    assert state_of(race)["step_count"] == 3
    endless = parallel_env(max_cycles=None, length=50)
    endless.reset(seed=0)
    away = {agent: 1 - action for agent, action in ahead(endless).items()}
    for _ in range(200):
        endless.step(away)
    assert len(endless.agents) == 3


def test_both_forms_run_the_same_race() -> None:
    turns, rounds = make_aec(), make_parallel()
    turns.reset(seed=12)
    rounds.reset(seed=12)
    rng = np.random.default_rng(0)
    while rounds.agents:
        actions = {agent: int(rng.integers(2)) for agent in rounds.agents}
        _, rewards, terminations, _, _ = rounds.step(actions)
        for agent in rounds.possible_agents:
            assert turns.agent_selection == agent
            turns.step(actions[agent])
        assert turns.rewards == rewards
        assert turns.terminations == terminations
    assert turns.record.events == rounds.record.events
    assert state_of(turns) == state_of(rounds)


def test_one_at_a_time_nobody_sees_a_move_before_all_have_moved() -> None:
    race = env()
    race.reset(seed=0)
    race.step(1)
    race.step(0)
    assert [request.agent for request in race.requests()] == ["runner_2"]
    assert not [event for event in race.record.events if event.kind == EventKind.ACT]
    race.step(0)
    acts = [event.data["action"] for event in race.record.events if event.kind == EventKind.ACT]
    assert acts == [1, 0, 0]


def test_every_runners_step_is_its_own() -> None:
    race = make_parallel()
    _, infos = race.reset(seed=0)
    assert not any(trainable(infos).values())
    *_, infos = race.step(ahead(race))
    assert all(trainable(infos).values())
    assert all(info["active"] for info in infos.values())


def test_without_a_stream_it_passes_pettingzoos_tests_too(capsys: pytest.CaptureFixture[str]) -> None:
    parallel_api_test(raw_env(), num_cycles=200)
    parallel_seed_test(raw_env, num_cycles=50)
    assert "Passed Parallel API test" in capsys.readouterr().out


def test_pettingzoos_max_cycles_test_passes_whatever_is_drawn() -> None:
    for _ in range(30):
        max_cycles_test(line_race)


@pytest.mark.parametrize(
    ("kwargs", "complaint"),
    [
        ({"runners": 0}, "runners=0 is not a number of runners"),
        ({"runners": 2.0}, "runners=2.0 is not"),
        ({"runners": 101}, "runners=101 is not a number of runners; give an int from 1 to 100"),
        ({"length": 1}, "length=1 is not a line"),
        ({"length": 10**30}, f"length={10**30} is not a line; give an int from 2 to 10000"),
        ({"length": "9" * 1000}, r"length='9+\.\.\. is not a line"),
        ({"slip": 1}, "slip=1 is not a probability"),
        ({"slip": "often"}, "slip='often' is not"),
        ({"max_cycles": 0}, "max_cycles=0 is not a number of cycles"),
        ({"render_mode": "film"}, "render_mode='film' is unknown; there are human, ansi, rgb_array"),
    ],
)
def test_bad_arguments_are_refused(kwargs: dict[str, Any], complaint: str) -> None:
    for make in (make_aec, make_parallel):
        with pytest.raises(InvalidArgument, match=f"^{ID}: {complaint}"):
            make(**kwargs)
        with pytest.raises(InvalidArgument, match=f"^{ID} .*'runner'.*'runners'"):
            make(runner=2)


def test_pictures_show_the_runners(capsys: pytest.CaptureFixture[str]) -> None:
    race = raw_env(runners=2, length=5, slip=0.0, render_mode="ansi")
    race.reset(seed=0)
    state = race.episode_state()
    picture = race.render()
    lines = picture.splitlines()
    assert [line.index("@") for line in lines] == state["positions"]
    assert [line.index("G") for line in lines] == [state["goal"]] * 2
    race.render_mode = "human"
    assert race.render() is None
    assert capsys.readouterr().out == picture + "\n"
    for make in (make_aec, make_parallel):
        picture = make(runners=2, length=5, render_mode="rgb_array")
        picture.reset(seed=0)
        assert picture.render().shape == (48, 120, 3)
