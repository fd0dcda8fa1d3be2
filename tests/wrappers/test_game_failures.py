"""What is left of a game whose step or reset fails: what ends the episode, and what does not."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from toy_games import BOTH, CRASH, ID, Whisper, matching, whisper

from envweave_gym import state_of
from envweave_gym.core.faults import InvalidArgument, NotAvailable, ResetNeeded, SessionLost
from envweave_gym.episode.stream import RequestKind
from envweave_gym.wrappers.aec_stream import AECStream


def test_an_exception_ends_the_episode_and_a_reset_begins_the_next() -> None:
    env = whisper()
    env.reset(seed=0)
    env.step(1)
    with pytest.raises(RuntimeError, match="lost in step"):
        env.step(CRASH)
    assert env.agents == []
    assert env.infos == {}
    assert [request.kind for request in env.requests()] == [RequestKind.RESET]
    with pytest.raises(ResetNeeded, match="after the episode ended"):
        env.step(1)
    env.reset(seed=0)
    assert "psst" not in repr(env.record.events), "what the lost episode told is not part of the next"
    env.step(1)
    assert state_of(env)["step_count"] == 1


def test_an_environment_that_retains_done_agents_is_an_error() -> None:
    class Clinging(Whisper):
        def _was_dead_step(self, action: Any) -> None:
            pass

    env = AECStream(Clinging(), name=ID)
    env.reset(seed=0)
    env.step(2)
    with pytest.raises(RuntimeError, match=rf"^{ID}: player_0 is done, and step\(None\) left it in agents$"):
        env.step(None)
    assert env.agents == []


def test_a_reset_that_fails_leaves_no_episode() -> None:
    env = whisper()
    env.reset(seed=0)
    for options, error in (({"crash": True}, RuntimeError), ({"refuse": True}, InvalidArgument)):
        with pytest.raises(error):
            env.reset(seed=1, options=options)
        with pytest.raises(ResetNeeded):
            env.step(0)
    env.reset(seed=1)
    assert state_of(env) == {"episode": 1, "step_count": 0, "said": 0}


def test_an_exception_in_a_parallel_step_ends_the_episode() -> None:
    env = matching()
    env.reset(seed=0)
    env.unwrapped.failure = RuntimeError("lost in step")
    with pytest.raises(RuntimeError, match="lost in step"):
        env.step(BOTH)
    assert env.agents == []
    with pytest.raises(ResetNeeded, match=f"{ID}: step"):
        env.step(BOTH)
    env.reset(seed=0)
    assert env.step(BOTH)[1] == {"player_0": 1.0, "player_1": 1.0}


@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit, SessionLost, ResetNeeded, GeneratorExit])
def test_whatever_is_raised_inside_a_step_ends_the_episode(failure: type[BaseException]) -> None:
    turns, rounds = whisper(), matching()
    for env, action in ((turns, CRASH), (rounds, BOTH)):
        env.reset(seed=0)
        env.unwrapped.failure = failure("lost")
        with pytest.raises(failure, match=r"^lost$"):
            env.step(action)
        assert env.agents == []
        with pytest.raises(ResetNeeded, match=rf"^{ID}: step\(\) was called after the episode ended"):
            env.step(action)


@pytest.mark.parametrize("refusal", [gymnasium.error.InvalidAction, InvalidArgument, NotAvailable])
def test_a_refusal_inside_a_step_leaves_the_episode_going(refusal: type[Exception]) -> None:
    turns, rounds = whisper(), matching()
    turns.reset(seed=0)
    turns.unwrapped.failure = refusal("not now")
    with pytest.raises(refusal, match=r"^not now$"):
        turns.step(CRASH)
    turns.step(1)
    assert turns.agent_selection == "player_1"
    rounds.reset(seed=0)
    rounds.unwrapped.failure = refusal("not now")
    with pytest.raises(refusal, match=r"^not now$"):
        rounds.step(BOTH)
    rounds.unwrapped.failure = None
    assert rounds.step(BOTH)[1] == {"player_0": 1.0, "player_1": 1.0}
    assert state_of(turns)["step_count"] == state_of(rounds)["step_count"] == 1


@pytest.mark.parametrize(
    "reply",
    [
        (),
        ({}, {}, {}, {}),
        7,
        ({}, {"player_0": "much"}, {}, {}, {}),
        ({}, {}, {"player_0": True}, {}, {}),
        ({}, {}, dict.fromkeys(BOTH, False), dict.fromkeys(BOTH, False), 7),
    ],
)
def test_a_malformed_reply_ends_the_episode(reply: Any) -> None:
    env = matching()
    env.reset(seed=0)
    env.unwrapped.malformed = reply
    with pytest.raises((TypeError, ValueError, KeyError)):
        env.step(BOTH)
    assert env.agents == []
    with pytest.raises(ResetNeeded, match="after the episode ended"):
        env.step(BOTH)
    env.reset(seed=0)
    assert env.step(BOTH)[1] == {"player_0": 1.0, "player_1": 1.0}


def test_a_malformed_reward_ends_the_episode_of_turns() -> None:
    env = whisper()
    env.reset(seed=0)
    env.unwrapped.rewards = None
    env.unwrapped.step = lambda action: None
    with pytest.raises(AttributeError):
        env.step(1)
    assert env.agents == []


def test_a_malformed_reset_leaves_no_episode() -> None:
    env = matching()
    env.unwrapped.reset = lambda seed, options: {}
    with pytest.raises(TypeError, match=rf"^{ID}: reset\(\) returned no tuple: \{{\}}; .* 2 values"):
        env.reset(seed=0)
    with pytest.raises(ResetNeeded):
        env.step(BOTH)


def test_a_malformed_step_of_a_parallel_game_ends_the_episode_and_says_what_came() -> None:
    env = matching()
    env.reset(seed=0)
    env.unwrapped.step = lambda actions: ({}, {}, {}, {})
    with pytest.raises(TypeError, match=rf"^{ID}: step\(\) returned 4 values: .*; it must return 5 values: "):
        env.step(BOTH)
    assert env.agents == []


@pytest.mark.parametrize("reward", [math.nan, -math.inf, np.float32("nan")])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_reward_that_is_not_finite_ends_the_episode_and_is_named(parallel: bool, reward: Any) -> None:
    env = matching() if parallel else whisper()
    env.reset(seed=0)
    step = env.unwrapped.step

    def pay(action: Any) -> Any:
        result = step(action)
        if not parallel:
            env.unwrapped.rewards["player_1"] = reward
            return None
        return result[0], {**result[1], "player_1": reward}, *result[2:]

    env.unwrapped.step = pay
    with pytest.raises(
        ValueError, match=rf"^{ID}: the reward .*(nan|inf).* of player_1 is no finite number; "
    ):
        env.step(BOTH if parallel else 1)
    assert env.agents == []


@pytest.mark.parametrize(
    "call", [lambda env: env.step(CRASH), lambda env: env.reset(options={"crash": True})]
)
def test_a_request_that_was_read_before_a_failure_is_not_open_any_more(call: Any) -> None:
    env = whisper()
    env.reset(seed=0)
    assert env.requests() == env.infos["player_0"]["stream"].requests
    with pytest.raises(RuntimeError, match="lost in"):
        call(env)
    assert [request.kind for request in env.requests()] == [RequestKind.RESET]
