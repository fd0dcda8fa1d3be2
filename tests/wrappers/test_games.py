"""The stream of PettingZoo environments, played one agent at a time and all at once."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.test.example_envs import generated_agents_env_v0, generated_agents_parallel_v0
from pettingzoo.utils.conversions import parallel_to_aec
from pettingzoo.utils.wrappers import OrderEnforcingWrapper
from toy_games import BOTH, ID, Matching, matching, whisper

from envweave_gym import state_of, stream_of, trainable
from envweave_gym.core.faults import InvalidAction, InvalidArgument, ResetNeeded
from envweave_gym.episode.stream import EventKind, RequestKind
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.parallel_stream import ParallelStream


def kinds(info: dict[str, Any]) -> list[str]:
    return [str(event.kind) for event in stream_of(info).events]


def play(env: AECStream, actions: list[int]) -> list[Any]:
    """Let agents act; what each knew before and all know afterwards."""
    trace = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.last()
        trace.append((env.agent_selection, str(observation), reward, terminated, truncated, info))
        env.step(None if terminated or truncated else action)
    return [*trace, env.infos]


def test_an_agent_reads_all_it_may_see_since_it_acted_last() -> None:
    env = whisper()
    env.reset(seed=5)
    read: dict[str, list[Any]] = {agent: [] for agent in env.possible_agents}
    for agent in env.agent_iter():
        _, _, terminated, truncated, info = env.last()
        read[agent].extend(stream_of(info).events)
        env.step(None if terminated or truncated else 1)
    ledger = env.record.events
    assert [event.seq for event in ledger] == list(range(len(ledger)))
    for agent, events in read.items():
        assert events == [event.as_seen_by(agent) for event in ledger if event.visible_to(agent)]
        assert events[0].kind == EventKind.EPISODE_START
        assert events[0].data == {}
        assert ledger[0].data == {"seed": 5}


def test_only_the_named_agents_see_a_secret() -> None:
    env = whisper()
    env.reset(seed=0)
    for agent in env.agent_iter():
        for reader, info in env.infos.items():
            others = [other for other in env.possible_agents if other != reader]
            assert not [other for other in others if f"welcome {other}" in repr(info)]
            assert not [other for other in others if f"psst {other}" in repr(info)]
        ends = env.terminations[agent] or env.truncations[agent]
        env.step(None if ends else 0)
    assert "psst player_2" in repr(env.record.events)


def test_the_selected_agent_is_asked_until_the_end() -> None:
    env = whisper(rounds=1)
    env.reset(seed=0)
    for turn, agent in enumerate(env.possible_agents):
        (request,) = env.requests()
        assert (request.kind, request.agent, request.turn) == (RequestKind.ACT, agent, turn)
        assert request.seq == env.infos[agent]["seq"] == env.record.seq
        assert [info["active"] for info in env.infos.values()] == [one == agent for one in env.agents]
        env.step(0)
    for _ in env.possible_agents:
        (request,) = env.requests()
        assert (request.kind, request.agent) == (RequestKind.RESET, None)
        assert not any(info["active"] for info in env.infos.values())
        env.step(None)
    assert env.agents == []


def test_a_done_agent_leaves_before_the_next_request() -> None:
    env = whisper()
    env.reset(seed=0)
    env.step(2)
    assert env.agent_selection == "player_0"
    assert env.terminations["player_0"]
    assert env.requests() == ()
    info = env.last()[-1]
    assert kinds(info)[-3:] == ["reveal", "reward", "episode_end"]
    assert not info["active"]
    with pytest.raises(InvalidAction, match=f"{ID}: player_0 is done and takes no action but None"):
        env.step(1)
    env.step(None)
    assert env.agents == ["player_1", "player_2"]
    assert [request.agent for request in env.requests()] == ["player_1"]
    with pytest.raises(InvalidAction, match="action None of player_1"):
        env.step(None)


def test_infos_are_fresh_and_the_environments_own_stay_as_they_are() -> None:
    env = whisper()
    env.reset(seed=0)
    before = env.infos
    env.step(0)
    assert all(env.infos[agent] is not before[agent] for agent in env.agents)
    assert before["player_0"]["seq"] < env.infos["player_0"]["seq"]
    assert env.unwrapped.infos["player_1"] == {"own": 0}
    assert env.infos["player_0"]["own"] == 1


@pytest.mark.parametrize("call", ["step", "last", "observe", "render", "agent_iter"])
def test_before_the_reset_every_call_says_what_is_missing(call: str) -> None:
    env = whisper()
    arguments = {"step": (0,), "observe": ("player_0",)}.get(call, ())
    with pytest.raises(ResetNeeded, match=rf"^{ID}: {call}\(\) was called before reset\(\); call reset\(\)$"):
        getattr(env, call)(*arguments)
    assert env.agents == []
    assert env.infos == {}
    env.reset(seed=0)
    env.step(0)
    assert state_of(env) == {"episode": 0, "step_count": 1, "said": 1}
    assert env.render() == "1 words"


def test_after_the_end_step_and_last_ask_for_a_reset() -> None:
    env = whisper(rounds=1)
    env.reset(seed=0)
    play(env, [0] * 6)
    for call in (lambda: env.step(0), env.last):
        with pytest.raises(ResetNeeded, match=rf"{ID}: \w+\(\) was called after the episode ended"):
            call()
    assert state_of(env) == {"episode": 0, "step_count": 3, "said": 3}
    env.reset()
    assert state_of(env) == {"episode": 1, "step_count": 0, "said": 0}
    assert env.record.seq == 3


@pytest.mark.parametrize("wrong", [4, -1, 0.5, "1", None, [1], {"a": 1}, np.array([1, 2]), object()])
def test_a_wrong_action_changes_nothing(wrong: Any) -> None:
    env, other = whisper(), whisper()
    env.reset(seed=3)
    other.reset(seed=3)
    env.step(1)
    other.step(1)
    with pytest.raises(InvalidAction, match=rf"^{ID}: action .* of player_1 is not in Discrete\(4\)$"):
        env.step(wrong)
    assert play(env, [0, 1, 2, 0]) == play(other, [0, 1, 2, 0])


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, [1]])
def test_a_bad_seed_changes_nothing(seed: Any) -> None:
    env, other = whisper(), whisper()
    for one in (env, other):
        one.reset(seed=3)
        one.step(1)
    with pytest.raises(InvalidArgument, match=f"{ID}: reset"):
        env.reset(seed=seed)
    assert play(env, [1, 1]) == play(other, [1, 1])
    parallel = matching()
    parallel.reset(seed=3)
    with pytest.raises(InvalidArgument, match=f"{ID}: reset"):
        parallel.reset(seed=seed)
    assert parallel.step({"player_0": 1, "player_1": 1})[1] == {"player_0": 1.0, "player_1": 1.0}


def test_masks_advise_and_spaces_decide() -> None:
    env = whisper()
    env.reset(seed=0)
    assert env.observe("player_0")["action_mask"].tolist() == [1, 0, 0, 0]
    env.step(1)
    assert env.record.events[4].data == {"action": 1}


def test_actions_are_recorded_as_plain_json() -> None:
    env = whisper()
    env.reset(seed=0)
    env.step(np.int64(1))
    (acted,) = [event for event in env.record.events if event.kind == EventKind.ACT]
    assert type(acted.data["action"]) is int


def test_resets_without_a_seed_follow_from_the_last_given() -> None:
    first, second = whisper(), whisper()
    first.reset(seed=9)
    second.reset(seed=9)
    drawn = []
    for _ in range(3):
        first.reset()
        second.reset()
        assert first.infos == second.infos
        drawn.append(first.record.events[0].data["seed"])
    assert len({9, *drawn}) == 4


def test_options_are_recorded() -> None:
    env = whisper()
    env.reset(seed=1, options={"index": np.int64(4)})
    assert env.record.events[0].data == {"seed": 1, "options": {"index": 4}}


def test_a_long_name_makes_no_long_error() -> None:
    env = matching()
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match="is no agent") as caught:
        env.step({**BOTH, "x" * 1000: 0})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("reported", [0, 1, 4])
def test_a_copy_continues_in_mid_episode(copied: Any, reported: int) -> None:
    env = whisper()
    env.reset(seed=8)
    play(env, [1] * reported)
    again = copied(env)
    assert again.infos == env.infos
    rest = [1, 2, 0, 1, 1]
    assert play(again, rest) == play(env, rest)
    assert again.record.events == env.record.events


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_of_a_parallel_game_continues_in_mid_episode(copied: Any) -> None:
    env = matching()
    env.reset(seed=8)
    actions = {"player_0": 1, "player_1": 1}
    env.step(actions)
    again = copied(env)
    for _ in range(2):
        assert str(again.step(actions)) == str(env.step(actions))
    assert again.record.events == env.record.events


def test_foreign_environments_pass_pettingzoos_own_tests_with_their_stream(
    recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    parallel_api_test(matching(), 20)
    parallel_seed_test(matching, 20)
    api_test(AECStream(OrderEnforcingWrapper(parallel_to_aec(Matching()))), 20)
    seed_test(lambda: AECStream(parallel_to_aec(Matching())), 20)
    about_spaces = ("Observation is not a NumPy array", "Observation space for each agent probably should be")
    assert not [str(w.message) for w in recwarn if not str(w.message).startswith(about_spaces)]
    assert capsys.readouterr().out.count("Passed") == 2


def test_agents_that_come_and_go_are_streamed() -> None:
    env = AECStream(generated_agents_env_v0.env(), name=ID)
    env.reset(seed=4)
    seen: set[str] = set()
    for agent in env.agent_iter(400):
        seen.add(agent)
        _, _, terminated, truncated, info = env.last()
        assert set(env.infos) == set(env.agents)
        assert info["active"] is not (terminated or truncated)
        env.step(None if terminated or truncated else env.action_space(agent).sample())
    ended = {event.agent for event in env.record.events if event.kind == EventKind.EPISODE_END}
    assert len(seen) > 5
    assert ended
    assert not ended & set(env.live_agents)


def test_agents_that_come_and_go_in_parallel_are_streamed() -> None:
    env = ParallelStream(generated_agents_parallel_v0.parallel_env(), name=ID)
    env.reset(seed=4)
    seen, gone = set(env.agents), set()
    for _ in range(60):
        *_, infos = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
        asked = next(iter(infos.values()))["stream"].agents()
        assert list(asked) == env.agents
        assert all(info["active"] is (agent in env.agents) for agent, info in infos.items())
        seen.update(env.agents)
        gone.update(seen.difference(env.agents))
    assert len(seen) > 5
    assert gone == {event.agent for event in env.record.events if event.kind == EventKind.EPISODE_END}
    assert gone


def test_simultaneous_agents_do_not_see_the_others_move() -> None:
    env = AECStream(parallel_to_aec(Matching()), name=ID)
    env.reset(seed=0)
    assert [request.agent for request in env.requests()] == ["player_0", "player_1"]
    before = env.infos["player_1"]
    env.step(2)
    assert [request.agent for request in env.requests()] == ["player_1"]
    assert env.requests()[0] == before["stream"].requests[1], "the same request is still open"
    assert env.infos["player_1"]["stream"].events == before["stream"].events
    assert "act" not in kinds(env.infos["player_0"])
    env.step(2)
    acts = [event for event in env.record.events if event.kind == EventKind.ACT]
    assert [(event.agent, event.data["action"]) for event in acts] == [("player_0", 2), ("player_1", 2)]
    assert kinds(env.infos["player_0"]) == ["act", "act", "reward"]
    assert {request.turn for request in env.requests()} == {1}


def test_a_simultaneous_game_writes_the_same_events_in_both_forms() -> None:
    turns, rounds = AECStream(parallel_to_aec(Matching()), name=ID), matching()
    turns.reset(seed=6)
    rounds.reset(seed=6)
    actions = {"player_0": 1, "player_1": 1}
    while rounds.agents:
        rounds.step({agent: actions[agent] for agent in rounds.agents})
    for agent in turns.agent_iter():
        ends = turns.terminations[agent] or turns.truncations[agent]
        turns.step(None if ends else actions[agent])
    assert turns.record.events == rounds.record.events
    assert state_of(turns) == state_of(rounds) == {"episode": 0, "step_count": 4}


def test_in_parallel_all_live_agents_are_asked_and_read_the_last_step() -> None:
    env = matching()
    _, infos = env.reset(seed=2)
    assert [kinds(infos[agent]) for agent in env.agents] == [["episode_start"], ["episode_start"]]
    assert trainable(infos) == {"player_0": False, "player_1": False}
    _, rewards, _, _, infos = env.step({"player_0": 1, "player_1": 1})
    assert rewards == {"player_0": 1.0, "player_1": 1.0}
    assert kinds(infos["player_0"]) == ["act", "act", "reward"]
    assert trainable(infos) == {"player_0": True, "player_1": True}
    *_, infos = env.step({"player_0": 1, "player_1": 0})
    assert kinds(infos["player_1"]) == ["act", "act", "episode_end"]
    assert [info["active"] for info in infos.values()] == [True, False]
    assert infos["player_0"]["stream"].agents() == ("player_0",)


def test_in_parallel_the_action_of_a_done_agent_is_ignored_and_recorded() -> None:
    env = matching()
    env.reset(seed=2)
    both = {"player_0": 1, "player_1": 1}
    env.step(both)
    env.step(both)
    _, rewards, _, _, infos = env.step(both)
    assert rewards == {"player_0": 0.0}
    assert kinds(infos["player_0"]) == ["act"]
    (ignored,) = [event for event in env.record.events if event.kind == EventKind.IGNORED]
    assert (ignored.agent, ignored.to, ignored.data) == ("player_1", ("player_1",), {"action": 1})


@pytest.mark.parametrize(
    ("actions", "complaint"),
    [
        ({"player_0": 1}, "player_1 must act"),
        ({"player_0": 1, "player_1": 7}, r"action 7 of player_1 is not in Discrete\(4\)"),
        (
            {"player_0": 1, "player_1": 1, "nobody": 1},
            "'nobody' is no agent; there are 'player_0', 'player_1'",
        ),
        ({}, "player_0 must act"),
        ([1, 1], r"step\(\) takes a dict of actions by agent, not \[1, 1\]"),
        (None, r"step\(\) takes a dict of actions by agent, not None"),
    ],
)
def test_in_parallel_wrong_actions_change_nothing(actions: Any, complaint: str) -> None:
    env = matching()
    env.reset(seed=2)
    before = list(env.record.events)
    with pytest.raises(InvalidAction, match=f"^{ID}: {complaint}"):
        env.step(actions)
    assert env.record.events == before
    assert env.unwrapped.round == 0
    env.step({"player_0": 0, "player_1": 0})
    assert state_of(env)["step_count"] == 1


def test_in_parallel_calls_out_of_order_are_refused() -> None:
    env = matching()
    for actions in ({}, {"player_0": 0, "player_1": 0}):
        with pytest.raises(ResetNeeded, match=rf"^{ID}: step\(\) was called before reset\(\)"):
            env.step(actions)
    with pytest.raises(ResetNeeded, match=f"{ID}: render"):
        env.render()
    env.reset(seed=0)
    while env.agents:
        env.step(dict.fromkeys(env.agents, 0))
    assert env.step({}) == ({}, {}, {}, {}, {})
    for actions in ({"player_0": 0}, None):
        with pytest.raises(ResetNeeded, match="after the episode ended"):
            env.step(actions)
    assert state_of(env) == {"episode": 0, "step_count": 4}


def test_the_global_generators_are_left_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    env = whisper()
    env.reset()
    play(env, [0, 1, 2])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
