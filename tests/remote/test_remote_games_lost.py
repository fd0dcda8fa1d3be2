"""Games that are lost: what agents are told, who is asked, and that the next episode is another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from remote_tables import (
    AUCTION,
    KUHN,
    MOODY,
    NAP,
    RACE,
    RELAY,
    REMOTE,
    WHISPER,
    talk,
)
from remote_worlds import kill, mortal, mortal_web, transport, url
from toy_games import CRASH
from web_replica import WebReplica

import envweave_gym as ew
from envweave_gym.core.faults import MAX_FAULTS_IN_A_ROW, EnvironmentCrashed, Fault, FaultKind, FaultStorm
from envweave_gym.episode.stream import EventKind, RequestKind
from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.remote.games import RemoteAEC, RemoteParallel

__all__ = ["mortal", "mortal_web", "transport", "url"]
any_api = pytest.mark.parametrize("api", ["aec", "parallel"])
CRASHED = Fault(FaultKind.CRASH, "RuntimeError: lost in step", retryable=True)


def reported(info: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The kinds of the events an agent reads, and whose they are."""
    return [(str(event.kind), event.agent) for event in info["stream"].events]


def expect_numbered(env: Any, infos: dict[str, Any], before: int) -> None:
    """The lost round is numbered on, every agent is told the same, and a reset is asked for."""
    for info in infos.values():
        numbers = [event.seq for event in info["stream"].events if event.seq > before]
        assert numbers == list(range(before + 1, info["seq"] + 1))
        (request,) = info["stream"].requests
        assert (request.kind, request.agent, request.seq) == (RequestKind.RESET, None, info["seq"])
        assert info["active"] is False
    assert len({info["seq"] for info in infos.values()}) == 1


def test_a_crash_truncates_everybody_who_lives(transport: str, url: str) -> None:
    env = RemoteAEC(WHISPER, url)
    env.reset(seed=5)
    talk(env, [1])
    seen, before = env.last()[0], env.infos["player_0"]["seq"]
    env.step(CRASH)

    assert env.agents == ["player_0", "player_1", "player_2"]
    assert env.terminations == dict.fromkeys(env.agents, False)
    assert env.truncations == dict.fromkeys(env.agents, True)
    assert env.rewards == dict.fromkeys(env.agents, 0.0) == env._cumulative_rewards
    assert {agent: info["fault"] for agent, info in env.infos.items()} == dict.fromkeys(env.agents, CRASHED)
    assert ew.trainable(env.infos) == dict.fromkeys(env.agents, False)
    expect_numbered(env, env.infos, before)
    ends = [("episode_end", agent) for agent in env.agents]
    assert reported(env.infos["player_1"]) == [("act", "player_1"), ("fault", None), *ends]
    assert reported(env.infos["player_2"])[-5:] == reported(env.infos["player_1"])
    assert env.infos["player_1"]["stream"].events[0].data == {"action": CRASH}
    np.testing.assert_equal(env.observe("player_1"), seen)

    for agent in ("player_0", "player_1", "player_2"):
        assert env.agent_selection == agent
        assert env.last()[1:4] == (0.0, False, True)
        with pytest.raises(ew.InvalidAction, match=f"{agent} is done and takes no action but None"):
            env.step(0)
        env.step(None)
    assert (env.agents, env.infos, env.rewards) == ([], {}, {})
    with pytest.raises(ew.ResetNeeded):
        env.step(0)

    env.reset(seed=5)
    assert not any("fault" in info for info in env.infos.values())
    talk(env, [1])
    assert ew.state_of(env) == {"episode": 1, "step_count": 1, "said": 1}


def test_a_crash_of_a_round_truncates_everybody_who_lives(transport: str, url: str) -> None:
    env = RemoteParallel(WHISPER, url)
    seen, before = env.reset(seed=5)
    actions = {"player_0": CRASH, "player_2": 1}
    observations, rewards, terminations, truncations, infos = env.step(actions)

    everybody = env.possible_agents
    np.testing.assert_equal(observations, seen)
    assert rewards == dict.fromkeys(everybody, 0.0)
    assert terminations == dict.fromkeys(everybody, False)
    assert truncations == dict.fromkeys(everybody, True)
    assert {agent: info["fault"] for agent, info in infos.items()} == dict.fromkeys(everybody, CRASHED)
    assert ew.trainable(infos) == dict.fromkeys(everybody, False)
    ends = [("act", "player_0"), ("fault", None), *(("episode_end", agent) for agent in everybody)]
    assert reported(infos["player_0"]) == ends
    assert reported(infos["player_2"]) == [("ignored", "player_2"), *ends]
    assert env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})
    with pytest.raises(ew.ResetNeeded):
        env.step(actions)

    assert env.reset(seed=5)[1] == before
    assert not env.step({"player_0": 0})[3]["player_0"]


@any_api
def test_a_crash_is_raised_where_that_is_wanted(api: str, url: str) -> None:
    env = REMOTE[api](WHISPER, url, on_fault="raise")
    env.reset(seed=1)
    with pytest.raises(EnvironmentCrashed, match=r"^RuntimeError: lost in step$"):
        env.step(CRASH if api == "aec" else {"player_0": CRASH})
    assert env.agents == []
    with pytest.raises(ew.ResetNeeded, match=r"step\(\) was called after the episode ended"):
        env.step(0)
    assert ew.state_of(env)["episode"] == 0
    assert env.record.events[0].data == {"seed": 1}, "what crashed can still be asked"
    with pytest.raises(EnvironmentCrashed, match="lost in reset"):
        env.reset(options={"crash": True})
    env.reset(seed=1)
    env.step(0 if api == "aec" else {"player_0": 0})
    assert ew.state_of(env) == {"episode": 1, "step_count": 1, "said": 1}


def test_a_session_that_is_gone_is_a_fault_and_the_next_episode_another_session(
    transport: str, mortal_web: WebReplica
) -> None:
    turns = RemoteAEC(KUHN, mortal_web.url, call_deadline=8.0)
    rounds = RemoteParallel(RACE, mortal_web.url, call_deadline=8.0)
    turns.reset(seed=1)
    rounds.reset(seed=1)
    turns.step(1)
    kill(mortal_web)

    turns.step(1)
    *_, truncations, infos = rounds.step(dict.fromkeys(rounds.agents, 1))

    for said, ends in ((turns.infos, turns.truncations), (infos, truncations)):
        assert all(ends.values())
        assert {info["fault"].kind for info in said.values()} == {FaultKind.LOST}
        assert not any(ew.trainable(said).values())
    assert ew.state_of(turns) == {"episode": 0, "step_count": 2}
    assert turns.render() is None
    with pytest.raises(ew.SessionLost, match=f"{KUHN}: the session of this episode is gone; call reset"):
        _ = turns.record
    turns.reset()
    rounds.reset()
    turns.step(1)
    rounds.step(dict.fromkeys(rounds.agents, 1))
    assert ew.state_of(turns) == {"episode": 1, "step_count": 1, "history": "b"}


@any_api
def test_a_session_that_is_gone_is_raised_where_that_is_wanted(api: str, mortal: PrivateServer) -> None:
    env = REMOTE[api](KUHN, mortal.url, on_fault="raise")
    env.reset(seed=1)
    kill(mortal)
    with pytest.raises(ew.SessionLost, match=r"the server of this session has ended: exit code -9$"):
        env.step(1 if api == "aec" else {"player_0": 1})
    assert env.agents == []
    env.reset(seed=1)
    assert env.agents == ["player_0", "player_1"]


def test_no_answer_before_the_deadline_is_a_fault(transport: str, url: str) -> None:
    env = RemoteAEC(MOODY, url, call_deadline=0.4)
    env.reset(seed=1)
    env.step(1)
    assert env.infos["player_0"]["fault"].kind is FaultKind.TIMEOUT
    env.reset(seed=1)
    env.step(0)
    assert ew.state_of(env)["said"] == 1


def test_a_slow_answer_is_asked_for_again_and_done_once(transport: str, url: str) -> None:
    env = RemoteAEC(MOODY, url, call_deadline=2 * NAP)
    env.reset(seed=1)
    talk(env, [1, 0])
    assert ew.state_of(env)["said"] == 2


def test_actions_of_an_unfinished_round_are_recorded_with_the_fault(mortal: PrivateServer) -> None:
    env = RemoteAEC(RACE, mortal.url)
    env.reset(seed=1)
    talk(env, [1, 1, 1, 1, 0])
    before = env.infos["runner_0"]["seq"]
    kill(mortal)
    env.step(1)

    expect_numbered(env, env.infos, before)
    acts = [event for event in env.infos["runner_2"]["stream"].events if event.kind == EventKind.ACT]
    assert [(event.agent, event.data["action"]) for event in acts] == [
        ("runner_0", 1),
        ("runner_1", 0),
        ("runner_2", 1),
    ]
    assert ew.state_of(env)["step_count"] == 2


def test_an_agent_that_was_done_before_the_loss_keeps_its_reward(mortal: PrivateServer) -> None:
    env = RemoteAEC(RELAY, mortal.url)
    env.reset(seed=1)
    talk(env, [2])
    assert env.terminations["runner_0"]
    kill(mortal)
    env.step(1)

    assert env.agent_selection == "runner_0"
    assert env.last()[1:4] == (0, True, False)
    assert "fault" not in env.infos["runner_0"]
    assert env.infos["runner_0"]["stream"].requests == env.infos["runner_1"]["stream"].requests
    assert ew.trainable(env.infos) == {"runner_0": True, "runner_1": False, "runner_2": False}
    talk(env, [None] * 3)
    assert env.agents == []


def test_a_loss_while_an_agent_leaves_truncates_the_others(mortal: PrivateServer) -> None:
    env = RemoteAEC(WHISPER, mortal.url)
    env.reset(seed=1)
    talk(env, [2])
    kill(mortal)
    env.step(None)

    assert env.agents == ["player_1", "player_2"]
    assert env.truncations == {"player_1": True, "player_2": True}
    assert set(env.infos) == {"player_1", "player_2"}
    assert reported(env.infos["player_1"])[-3:] == [
        ("fault", None),
        ("episode_end", "player_1"),
        ("episode_end", "player_2"),
    ]
    assert ew.state_of(env)["step_count"] == 1


def test_a_loss_after_the_end_loses_nothing(mortal: PrivateServer) -> None:
    env = RemoteAEC(KUHN, mortal.url)
    env.reset(seed=1)
    talk(env, [0, 0])
    infos, earned = env.infos, {}
    kill(mortal)
    for agent in env.agent_iter():
        _, earned[agent], terminated, truncated, info = env.last()
        assert (terminated, truncated, ew.trainable(info)) == (True, False, True)
        assert info == infos[agent]
        env.step(None)
    assert env.agents == []
    assert sorted(earned.values()) == [-1.0, 1.0]


def test_an_observation_that_cannot_be_read_is_a_fault(mortal: PrivateServer) -> None:
    env = RemoteAEC(KUHN, mortal.url)
    env.reset(seed=1)
    env.step(1)
    seen = env.last()[0]
    kill(mortal)
    np.testing.assert_array_equal(env.observe("player_1"), seen)
    assert not any(env.truncations.values()), "what came with the reply needs no asking"
    other = env.observe("player_0")
    assert other in env.observation_space("player_0")
    assert all(env.truncations.values())
    assert env.infos["player_0"]["fault"].kind is FaultKind.LOST
    assert reported(env.infos["player_0"])[-3:] == [
        ("fault", None),
        ("episode_end", "player_0"),
        ("episode_end", "player_1"),
    ]


@any_api
def test_a_text_that_cannot_be_read_any_more_gives_an_action_for_the_step_that_truncates(
    api: str, mortal: PrivateServer
) -> None:
    env = REMOTE[api](KUHN, mortal.url)
    env.reset(seed=1)
    kill(mortal)
    action = ew.parse_action(env, "bet", "player_0")
    assert action in env.action_space("player_0")
    assert ew.parse_action(env, "bet", "player_0") == action
    infos = _told_of_a_broken_game(env, api, action)
    assert reported(infos["player_0"])[-4:] == [
        ("ignored", "player_0"),
        ("fault", None),
        ("episode_end", "player_0"),
        ("episode_end", "player_1"),
    ]
    env.reset(seed=1)
    assert ew.parse_action(env, "bet", "player_0") == 1


def _told_of_a_broken_game(env: Any, api: str, action: Any) -> dict[str, Any]:
    """Take the step that truncates; the infos after it."""
    if api == "parallel":
        *_, rewards, _, truncations, infos = env.step(dict.fromkeys(env.agents, action))
    else:
        env.step(action)
        rewards, truncations, infos = env.rewards, env.truncations, env.infos
    assert all(truncations.values())
    assert not any(rewards.values())
    assert not any(ew.trainable(infos).values())
    return infos


@any_api
def test_a_reset_that_cannot_be_had_gives_placeholders_and_the_next_step_truncates(
    api: str, url: str
) -> None:
    env = REMOTE[api](WHISPER, url, reset_deadline=0.05)
    begun = env.reset(seed=4, options={"crash": True})
    infos = env.infos if api == "aec" else begun[1]

    fault = Fault(FaultKind.CRASH, "RuntimeError: lost in reset", retryable=True)
    assert {agent: info["fault"] for agent, info in infos.items()} == dict.fromkeys(env.agents, fault)
    assert env.agents == env.possible_agents
    assert reported(infos["player_1"]) == [("episode_start", None), ("fault", None)]
    assert infos["player_1"]["stream"].events[0].data == {}
    assert ew.stream_of(infos)["player_0"].agents()[0] == "player_0"
    assert infos["player_0"]["active"]
    for agent in env.agents:
        seen = env.observe(agent) if api == "aec" else begun[0][agent]
        assert seen in env.observation_space(agent)
    assert ew.state_of(env) == {"episode": 0, "step_count": 0}
    with pytest.raises(ew.InvalidAction, match=r"action 'x' of player_0 is not in Discrete\(4\)"):
        env.step("x" if api == "aec" else dict.fromkeys(env.agents, "x"))

    infos = _told_of_a_broken_game(env, api, 0)
    assert infos["player_0"]["fault"] == fault
    assert reported(infos["player_0"])[-5:-3] == [("ignored", "player_0"), ("fault", None)]
    env.reset(seed=4)
    assert ew.state_of(env) == {"episode": 1, "step_count": 0, "said": 0}


def test_a_reset_waits_for_a_server_that_comes_back(mortal: PrivateServer) -> None:
    env = RemoteParallel(AUCTION, mortal.url)
    env.reset(seed=1)
    kill(mortal)
    observations, infos = env.reset(seed=1)
    assert not any("fault" in info for info in infos.values())
    assert set(observations) == set(env.agents)


@any_api
def test_too_many_faults_in_a_row_are_a_storm(api: str, url: str) -> None:
    env = REMOTE[api](WHISPER, url)
    crash, quiet = (CRASH, 0) if api == "aec" else ({"player_0": CRASH}, {"player_0": 0})
    for _ in range(MAX_FAULTS_IN_A_ROW - 1):
        env.reset(seed=0)
        env.step(crash)
    env.reset(seed=0)
    with pytest.raises(FaultStorm, match=f"{MAX_FAULTS_IN_A_ROW} faults in a row"):
        env.step(crash)
    assert env.agents == []
    with pytest.raises(ew.ResetNeeded):
        env.step(quiet)


def test_an_episode_that_ends_well_ends_a_row_of_faults(url: str) -> None:
    env = RemoteAEC(WHISPER, url, rounds=1)
    for number in range(2 * MAX_FAULTS_IN_A_ROW):
        env.reset(seed=0)
        talk(env, [0, 0, 0] if number % 5 == 0 else [CRASH])
    assert env.infos["player_0"]["fault"] == CRASHED
