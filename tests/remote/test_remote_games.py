"""A game of a server plays as one of this process does, one agent at a time and all together."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import pettingzoo
import pytest
from conforming import SHORT
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from remote_tables import (
    AUCTION,
    KUHN,
    MOODY,
    OURS,
    PLAYABLE,
    RACE,
    REMOTE,
    REVIEW,
    WHISPER,
    expect_same_rounds,
    expect_same_turns,
    pair,
)
from remote_worlds import transport, url

import envweave_gym as ew
from envweave_gym.remote.games import RemoteAEC, RemoteParallel
from envweave_gym.testing import NotApplicable, checks_of, subject_of
from envweave_gym.testing.runs import name_of
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel, parallel_form

__all__ = ["transport", "url"]
NOWHERE = "http://127.0.0.1:9"
any_game = pytest.mark.parametrize("env_id", PLAYABLE)
our_game = pytest.mark.parametrize("env_id", OURS)
any_api = pytest.mark.parametrize("api", ["aec", "parallel"])
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

# Strangers


@our_game
def test_a_stranger_has_no_spaces_and_sees_nothing(env_id: str, url: str) -> None:
    here, there = pair(env_id, "aec", url)
    for env in (here, there):
        env.reset(seed=0)
        for call in (env.observe, env.observation_space, env.action_space):
            with pytest.raises(ew.InvalidArgument, match=f"^{env_id}: 'nobody' is no agent; there are '"):
                call("nobody")
    expect_same_turns(here, there)


# One form from the other


def test_a_game_in_turns_becomes_the_parallel_one_of_its_server(url: str) -> None:
    parallel = parallel_form(ew.make(KUHN, api="aec", backend=url))
    assert isinstance(parallel, RemoteParallel)
    _, infos = parallel.reset(seed=0)
    assert "You are player_0" in ew.messages_of(infos, "player_0")[0]["content"]
    parallel.close()
    here = ew.make(KUHN, api="parallel")
    assert parallel_form(here) is here


def test_the_streams_of_a_server_are_not_replaced(url: str) -> None:
    with pytest.raises(
        ew.InvalidArgument, match="streams that its server writes; make the game with api='parallel'"
    ):
        TurnBasedParallel(ew.make(KUHN, api="aec", backend=url))


# Equality


@any_game
def test_turns_are_as_here(env_id: str, transport: str, url: str) -> None:
    here, there = pair(env_id, "aec", url)
    for seed in (3, None, None, 4, 5):
        for env in (here, there):
            env.reset(seed=seed)
        expect_same_turns(here, there)
        assert ew.state_of(here) == ew.state_of(there)
        assert here.record.events == there.record.events
        assert here.record.turn == there.record.turn
    there.close()


@any_game
def test_rounds_are_as_here(env_id: str, transport: str, url: str) -> None:
    here, there = pair(env_id, "parallel", url)
    for seed in (3, None, None, 4, 5):
        expect_same_rounds(here, there, (here.reset(seed=seed), there.reset(seed=seed)))
        assert ew.state_of(here) == ew.state_of(there)
        assert here.record.events == there.record.events
    there.close()


@any_game
@any_api
def test_spaces_agents_and_metadata_are_as_here(env_id: str, api: str, url: str) -> None:
    here, there = pair(env_id, api, url)
    assert there.possible_agents == here.possible_agents
    assert there.max_num_agents == here.max_num_agents
    assert there.metadata == here.metadata
    assert there.agents == here.agents == []
    for agent in here.possible_agents:
        assert there.observation_space(agent) == here.observation_space(agent)
        assert there.action_space(agent) == here.action_space(agent)
        assert there.action_space(agent) is there.action_space(agent)


@pytest.mark.parametrize("api", REMOTE)
def test_it_has_the_name_of_its_id(api: str) -> None:
    assert REMOTE[api](f"some.module:{KUHN}", "http://127.0.0.1:9").name == KUHN
    assert REMOTE[api]("", "http://127.0.0.1:9").name == "http://127.0.0.1:9"


def test_arguments_reach_the_game(url: str) -> None:
    here, there = pair(RACE, "parallel", url, runners=2, length=5, render_mode="ansi")
    for env in (here, there):
        env.reset(seed=1)
    assert there.possible_agents == ["runner_0", "runner_1"]
    assert there.render() == here.render()
    assert there.render_mode == "ansi"


@any_api
def test_actions_of_agents_without_a_request_are_ignored_and_recorded(api: str, url: str) -> None:
    here, there = pair(KUHN, "parallel", url)
    for env in (here, there):
        env.reset(seed=1)
    both = {"player_0": 1, "player_1": 0}
    assert str(here.step(both)) == str(there.step(both))
    assert str(here.step(both)) == str(there.step(both))
    assert here.record.events == there.record.events


def test_only_the_record_has_hidden_events(url: str) -> None:
    env = RemoteAEC(KUHN, url)
    env.reset(seed=1)
    reported = {
        agent: [event.data for event in info["stream"].events if event.kind != "message"]
        for agent, info in env.infos.items()
    }
    cards = [event.data["card"] for event in env.record.events if event.kind == "reveal"]
    assert reported == {"player_0": [{}, {"card": cards[0]}], "player_1": [{}, {"card": cards[1]}]}
    assert env.record.events[0].data == {"seed": 1}


@any_api
def test_texts_are_read_by_the_game(api: str, url: str) -> None:
    for env_id, agent, texts in (
        (KUHN, "player_0", ["check", "I bet.", "fold", "nonsense", "1"]),
        (REVIEW, "reviewer_0", ["lgtm", "<=", "nonsense"]),
        (REVIEW, "author_0", ["<=", "nonsense"]),
        (WHISPER, "player_1", ["3", "4", "x"]),
        (RACE, "runner_2", ["left", "go right", "nowhere"]),
    ):
        here, there = pair(env_id, api, url)
        for text in texts:
            assert outcome(ew.parse_action, there, text, agent) == outcome(ew.parse_action, here, text, agent)
        there.close()


def outcome(call: Any, *arguments: Any) -> str:
    """What a call gives, or how it refuses."""
    try:
        return repr(call(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever it is, it has to be the same on both sides
        return f"{type(error).__name__}: {error}"


def test_the_global_view_is_asked_there_where_there_is_one(url: str) -> None:
    for env_id in (AUCTION, KUHN):
        here, there = pair(env_id, "aec", url)
        for env in (here, there):
            env.reset(seed=1)
        assert outcome(here.state) == outcome(there.state)


def test_the_state_before_a_reset_is_as_here(url: str) -> None:
    here, there = pair(KUHN, "aec", url)
    assert ew.state_of(there) == ew.state_of(here) == {"episode": -1, "step_count": 0, "history": ""}


# Misuse


@our_game
def test_misuse_of_turns_is_refused_in_the_same_words(env_id: str, url: str) -> None:
    def calls(env: Any) -> list[str]:
        first = env.possible_agents[0]
        before = [outcome(call) for call in (env.last, env.render, env.agent_iter)]
        before += [outcome(env.step, 0), outcome(env.observe, first)]
        env.reset(seed=1)
        wrong = [outcome(env.step, action) for action in (None, -99, "\ud800", 0.5, {"a": {1}}, object)]
        wrong += [outcome(lambda seed=seed: env.reset(seed=seed)) for seed in (-1, "seven", True)]
        wrong.append(outcome(lambda: env.reset(options=3)))
        assert env.agents, "the episode goes on"
        for agent in env.agent_iter(100):
            done = env.terminations[agent] or env.truncations[agent]
            if done:
                wrong.append(outcome(env.step, 0))
            env.step(None if done else 0)
        return [*before, *wrong, outcome(env.step, 0), outcome(env.last)]

    here, there = pair(env_id, "aec", url)
    assert calls(there) == calls(here)


@our_game
def test_misuse_of_rounds_is_refused_in_the_same_words(env_id: str, url: str) -> None:
    def calls(env: Any) -> list[str]:
        everybody = dict.fromkeys(env.possible_agents, 0)
        first = env.possible_agents[0]
        reported = [outcome(env.step, everybody), outcome(env.step, {}), outcome(env.render)]
        env.reset(seed=1)
        for actions in ({}, None, 7, {**everybody, first: -99}, {**everybody, "nobody": 0}):
            reported.append(outcome(env.step, actions))
        assert env.agents == env.possible_agents, "the episode goes on"
        while env.agents:
            env.step(everybody)
        return [*reported, outcome(env.step, everybody), outcome(env.step, {})]

    here, there = pair(env_id, "parallel", url)
    assert calls(there) == calls(here)


def test_an_action_that_the_game_refuses_changes_nothing(url: str) -> None:
    here, there = pair(AUCTION, "aec", url)
    for env in (here, there):
        env.reset(seed=0)
        env.step(0)
        with pytest.raises(ew.InvalidAction, match="the auctioneer frowns"):
            env.step(4)
        env.step(1)
    assert here.infos == there.infos


@any_api
def test_a_reset_that_is_refused_leaves_no_episode(api: str, url: str) -> None:
    env = REMOTE[api](WHISPER, url)
    env.reset(seed=1)
    with pytest.raises(ew.InvalidArgument, match="no such option"):
        env.reset(options={"refuse": True})
    assert env.agents == []
    with pytest.raises(ew.ResetNeeded, match=r"step\(\) was called after the episode ended; call reset\(\)"):
        env.step(0)
    env.reset(seed=1)
    assert ew.state_of(env) == {"episode": 1, "step_count": 0, "said": 0}


def test_a_question_that_fails_leaves_the_episode_as_it_was(url: str) -> None:
    env = RemoteAEC(MOODY, url)
    env.reset(seed=1)
    with pytest.raises(ew.NotAvailable, match="render: OSError: no canvas"):
        env.render()
    with pytest.raises(ew.NotAvailable, match="global_state: OSError: no overview"):
        env.state()
    env.step(0)
    env.reset()
    env.step(0)
    assert ew.state_of(env) == {"episode": 1, "step_count": 1, "said": 1}


@any_api
def test_unknown_arguments_are_refused(api: str, url: str) -> None:
    for wrong, words in (
        ({"on_fault": "shrug"}, "on_fault='shrug' is not 'raise' or 'truncate'"),
        ({"reset_deadline": "soon"}, "reset_deadline='soon' is not a number of seconds"),
        ({"call_deadline": 0}, "call_deadline=0 is not a number of seconds"),
        ({"token": "secret"}, "token= is a reference"),
    ):
        with pytest.raises(ew.InvalidArgument, match=f"^{KUHN}: {words}"):
            REMOTE[api](KUHN, url, **wrong)
    with pytest.raises(ew.InvalidArgument, match=f"{KUHN} takes no argument 'no_such'"):
        ew.make(KUHN, api=api, backend=url, no_such=1)


# How it is made, copied and shared


def test_every_name_means_the_same_game(url: str) -> None:
    made = [
        (pettingzoo.make("aec", KUHN, backend=url), RemoteAEC),
        (pettingzoo.make("parallel", KUHN, backend=url), RemoteParallel),
        (ew.make(KUHN, backend=url), RemoteParallel),
        (ew.make(f"{url}#{KUHN}", api="aec"), RemoteAEC),
    ]
    for env, kind in made:
        assert type(env.unwrapped) is kind
        env.reset(seed=1)
        assert env.record.events[0].data == {"seed": 1}
        env.close()


@any_api
def test_nothing_is_asked_before_agents_or_spaces_are(api: str) -> None:
    env = REMOTE[api](KUHN, NOWHERE)
    assert env.agents == []
    assert str(env) == f"<{type(env).__name__}<{KUHN} at {NOWHERE}>>"
    env.close()
    with pytest.raises(ConnectionError, match="does not answer"):
        _ = pickle.loads(pickle.dumps(env)).possible_agents


@any_api
def test_pickles_and_copies_hold_the_address_not_the_session(api: str, url: str) -> None:
    env = REMOTE[api](RACE, url, runners=2)
    env.reset(seed=1)
    for copied in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        assert copied.agents == []
        copied.reset(seed=1)
        assert copied.agents == ["runner_0", "runner_1"]
        assert ew.state_of(copied) == ew.state_of(env)
    assert env.agents == ["runner_0", "runner_1"]


@any_api
def test_closing_ends_the_session_and_a_reset_begins_another(api: str, url: str) -> None:
    env = REMOTE[api](KUHN, url)
    env.close()
    env.reset(seed=1)
    env.close()
    env.close()
    assert env.agents == []
    with pytest.raises(ew.ResetNeeded):
        env.step(0)
    with pytest.raises(ew.ResetNeeded, match="after close"):
        _ = env.record
    env.reset(seed=1)
    assert ew.state_of(env) == {"episode": 1, "step_count": 0, "history": ""}


def test_a_forked_process_does_not_use_the_session_of_its_parent(url: str) -> None:
    env = RemoteParallel(RACE, url)
    env.reset(seed=1)
    moves = dict.fromkeys(env.agents, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _, _, _, truncations, infos = env.step(moves)
            env.reset(seed=1)
            count = ew.state_of(env)["step_count"]
            os.write(writer, repr([truncations["runner_0"], infos["runner_0"]["fault"].kind, count]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1000).decode() == "[True, <FaultKind.LOST: 'lost'>, 0]"
    os.waitpid(child, 0)
    os.close(reader)
    env.step(moves)
    assert ew.state_of(env)["step_count"] == 1


# What others prove


@our_game
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_pettingzoos_own_tests_find_nothing(env_id: str, url: str) -> None:
    api_test(RemoteAEC(env_id, url), num_cycles=50)
    seed_test(lambda: RemoteAEC(env_id, url), num_cycles=50)
    parallel_api_test(RemoteParallel(env_id, url), num_cycles=50)
    parallel_seed_test(lambda: RemoteParallel(env_id, url), num_cycles=50)


KIT = [
    pytest.param(env_id, check, id=f"{env_id}-{check.__name__}")
    for env_id in OURS
    for check in checks_of(subject_of(env_id))
    if env_id == KUHN or name_of(check) in SHORT  # on a server of one's own all checks try all games
]


@pytest.mark.parametrize(("env_id", "check"), KIT)
def test_it_conforms(env_id: str, check: Any, url: str) -> None:
    try:
        check(subject_of(env_id, backend=url))
    except NotApplicable as reason:
        pytest.skip(str(reason))
