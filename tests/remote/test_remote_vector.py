"""A vector on servers says what a vector in this process says, whatever its rows, modes and servers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from every_id import TRIAL, any_gym_id
from gymnasium.vector import AutoresetMode
from native_vectors import expect_equal
from remote_rows import CHOOSY, TALKATIVE
from remote_worlds import TROUBLE, transport, url

import envweave_gym as ew
from envweave_gym.remote.vector import RemoteVectorEnv

__all__ = ["transport", "url"]
LINE, COUNTER, ECHO, CODEFIX = (f"envweave/{name}-v0" for name in ("LineWorld", "Counter", "Echo", "CodeFix"))
ROWS = 5
MODES = [mode.value for mode in AutoresetMode]
any_mode = pytest.mark.parametrize("mode", MODES)
some_servers = pytest.mark.parametrize("servers", [1, 2, 3])


def pair(env_id: str, url: str, servers: int = 1, rows: int = ROWS, **kwargs: Any) -> tuple[Any, Any]:
    """The same vector here and there."""
    kwargs = TRIAL.get(env_id, {}) | kwargs
    here = ew.make(env_id, num_envs=rows, on_fault="truncate", **kwargs)
    return here, RemoteVectorEnv(env_id, [url] * servers, num_envs=rows, **kwargs)


def actions_of(env: Any, count: int) -> list[Any]:
    env.action_space.seed(1)
    return [env.action_space.sample() for _ in range(count)]


def expect_same_play(here: Any, there: Any, steps: int = 20) -> None:
    """Resets and steps say the same, down to dtypes and types; rows that end are reset by hand if need be."""
    expect_equal(there.reset(seed=3), here.reset(seed=3))
    disabled = here.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    for number, action in enumerate(actions_of(here, steps)):
        reported, expected = there.step(action), here.step(action)
        expect_equal(reported, expected, f"step {number}")
        assert ew.trainable(reported[4]).tolist() == ew.trainable(expected[4]).tolist()
        over = expected[2] | expected[3]
        if disabled and over.any():
            again = [env.reset(options={"reset_mask": over.copy()}) for env in (there, here)]
            expect_equal(*again, f"reset after step {number}")
    assert ew.state_of(there) == ew.state_of(here)
    expect_equal(there.reset(), here.reset())


class TestItPlaysAsOneInThisProcess:
    @any_gym_id
    @any_mode
    def test_every_id_in_every_mode(self, env_id: str, mode: str, transport: str, url: str):
        here, there = pair(env_id, url, autoreset_mode=mode, max_steps=4)
        assert there.num_envs == here.num_envs
        assert there.metadata == here.metadata
        for space in ("observation_space", "action_space"):
            assert getattr(there, space) == getattr(here, space)
            assert getattr(there, f"single_{space}") == getattr(here, f"single_{space}")
        expect_same_play(here, there)
        there.close()

    @any_gym_id
    @any_mode
    def test_spread_over_servers(self, env_id: str, mode: str, url: str):
        here, there = pair(env_id, url, 3, autoreset_mode=mode, max_steps=4)
        expect_same_play(here, there)
        there.close()

    @any_mode
    @some_servers
    def test_whatever_infos_and_spaces_hold(self, mode: str, servers: int, url: str):
        here, there = pair(TALKATIVE, url, servers, autoreset_mode=mode, max_steps=4)
        expect_same_play(here, there)
        there.close()

    @pytest.mark.parametrize("env_id", ["CartPole-v1", "Blackjack-v1", "FrozenLake-v1"])
    def test_foreign_environments(self, env_id: str, url: str):
        here, there = pair(env_id, url)
        expect_same_play(here, there)
        there.close()

    def test_one_row_and_more_servers_than_rows(self, url: str):
        here, there = pair(LINE, url, 3, rows=1, max_steps=3)
        expect_same_play(here, there)
        assert len(there.unwrapped._shards) == 1
        there.close()

    @pytest.mark.parametrize(("env_id", "long"), [(LINE, {"length": 500}), (COUNTER, {"target": 500})])
    @any_mode
    @some_servers
    def test_partial_resets_in_mid_episode(
        self, env_id: str, long: dict[str, int], mode: str, servers: int, url: str
    ):
        here, there = pair(env_id, url, servers, autoreset_mode=mode, **long)
        mask = np.array([True, False, False, True, False])
        action = actions_of(here, 1)[0]
        for env in (here, there):
            env.reset(seed=1)
            env.step(action)
        for seed in (None, 50, [None, 1, 2, 3, None]):
            results = [env.reset(seed=seed, options={"reset_mask": mask.copy()}) for env in (there, here)]
            expect_equal(*results)
            expect_equal(there.step(action), here.step(action))
        there.close()

    @pytest.mark.parametrize("seed", [None, 0, [7, None, 9, None, 2**64 - 1], (1, 2, 3, 4, 5), 2**64 - 5])
    @pytest.mark.parametrize("env_id", [LINE, ECHO])
    def test_seeds_of_every_form(self, env_id: str, seed: Any, url: str):
        here, there = pair(env_id, url, 2)
        for env in (here, there):
            env.reset(seed=11)
            env.reset()
        expect_equal(there.reset(seed=seed), here.reset(seed=seed))
        expect_equal(there.reset(), here.reset())
        there.close()

    def test_rows_draw_seeds_of_their_own_where_none_is_given(self, url: str):
        seeds = []
        for _ in range(2):
            env = RemoteVectorEnv(LINE, [url], num_envs=20)
            seeds += [stream.events[0].data["seed"] for stream in ew.stream_of(env.reset()[1])]
            env.close()
        assert len(set(seeds)) == 40

    def test_actions_of_every_integer_type_and_form(self, url: str):
        here, there = pair(LINE, url)
        for env in (here, there):
            env.reset(seed=0)
        for action in ([0, 1, 1, 0, 1], (1, 1, 0, 0, 0), np.ones(5, np.int8), np.zeros(5, np.uint64)):
            expect_equal(there.step(action), here.step(action))
        there.close()

    def test_texts_from_any_iterator(self, url: str):
        env = RemoteVectorEnv(ECHO, [url, url], num_envs=2)
        env.reset(seed=0)
        assert env.step(word for word in ("a", "ä"))[0] == ("a", "ä")
        env.close()

    def test_rendering(self, url: str):
        here, there = pair(TALKATIVE, url, 2, render_mode="ansi")
        for env in (here, there):
            env.reset(seed=0)
        assert there.render() == here.render() == ("0 taken",) * ROWS
        assert there.render_mode == "ansi"
        there.close()
        there = RemoteVectorEnv(LINE, [url])
        with pytest.raises(NotImplementedError):
            there.render()

    def test_replies_are_read_by_the_environment_itself(self, url: str):
        env = RemoteVectorEnv(LINE, [url])
        assert ew.parse_action(env, "left") == 0
        with pytest.raises(ew.InvalidAction, match="'up' names no action"):
            ew.parse_action(env, "up")
        assert ew.parse_action(RemoteVectorEnv("CartPole-v1", [url]), "1") == 1

    def test_a_crash_of_one_row_is_that_rows_fault(self, url: str):
        here, there = pair(TROUBLE, url, 2)
        for env in (here, there):
            env.reset(seed=0)
        for action in ([0, 1, 0, 0, 1], [0] * 5, [0] * 5):
            expect_equal(there.step(np.array(action)), here.step(np.array(action)))
        there.close()


class TestBadCalls:
    ACTIONS: list[Any] = [
        5,
        None,
        {},
        "ab",
        [0, 1],
        [0.5] * 5,
        np.zeros((5, 1)),
        [[0], [0, 1], 0, 0, 0],
        object(),
    ]
    WRONG_ROW = {
        LINE: [np.array([0, 0, 0, 2, 0]), [0, -1, 0, 0, 0], np.array([0, 0, 0, 0, 2**64 - 1], np.uint64)],
        COUNTER: [{"delta": np.array([1, 1, 50, 1, 1])}, {"delta": [1, 1, 1, 1, 1.5]}, {"delta": object()}],
        ECHO: [["a", "b", 5, "d", "e"], ("a", "b", "c", "d", "\ud800"), ["a", "b", "c", object(), "d"]],
    }

    @pytest.mark.parametrize("env_id", [LINE, COUNTER, ECHO])
    @some_servers
    def test_move_no_row_and_say_what_they_say_here(self, env_id: str, servers: int, url: str):
        here, there = pair(env_id, url, servers)
        action = actions_of(here, 1)[0]
        self.refused(here, there, lambda env: env.step(action))
        for env in (here, there):
            env.reset(seed=0)
            env.step(action)
        for wrong in (*self.ACTIONS, *self.WRONG_ROW[env_id]):
            self.refused(here, there, lambda env, wrong=wrong: env.step(wrong))
        seeds: list[Any] = ["a", 1.5, True, -1, 2**64 - 1, [1], [1, 2, 3, 4, "b"]]
        for seed in seeds:
            self.refused(here, there, lambda env, seed=seed: env.reset(seed=seed))
        masks: list[Any] = [[True] * 5, np.ones(4, bool), np.zeros(5, bool)]
        options: list[Any] = [3, {"index": 1}, *({"reset_mask": mask} for mask in masks)]
        for given in options:
            self.refused(here, there, lambda env, given=given: env.reset(options=given))
        assert ew.state_of(there) == ew.state_of(here)
        expect_equal(there.step(action), here.step(action))
        there.close()

    def refused(self, here: Any, there: Any, call: Any) -> None:
        with pytest.raises(ew.EnvweaveError) as expected:
            call(here)
        with pytest.raises(type(expected.value)) as reported:
            call(there)
        assert plain(reported.value) == plain(expected.value)

    @some_servers
    def test_steps_after_the_end_name_the_rows(self, servers: int, url: str):
        here, there = pair(COUNTER, url, servers, autoreset_mode="Disabled", max_steps=2)
        action = {"delta": np.zeros(5, np.int64)}
        for env in (here, there):
            env.reset(seed=0)
            for _ in range(2):
                env.step(action)
        self.refused(here, there, lambda env: env.step(action))
        for env in (here, there):
            env.reset(options={"reset_mask": np.array([True, False, True, True, True])})
        self.refused(here, there, lambda env: env.step(action))
        there.close()

    @some_servers
    def test_a_refusal_of_a_row_itself_leaves_the_others_halfway(self, servers: int, url: str):
        here, there = pair(CHOOSY, url, servers)
        for env in (here, there):
            env.reset(seed=0)
        for action in ([0, 0, 2, 0, 0], [0, 0, 0, 0, 0]):
            self.refused(here, there, lambda env, action=action: env.step(np.array(action)))
        for env in (here, there):
            env.reset(seed=0)
        expect_equal(there.step(np.zeros(5, np.int64)), here.step(np.zeros(5, np.int64)))
        there.close()


def plain(error: BaseException) -> str:
    """What an error says, without the addresses of objects and the modules of IDs."""
    return str(error).split(" at 0x")[0].removeprefix("remote_rows:")


class TestTheStreamsOfNativeVectors:
    def test_say_how_their_episodes_opened(self, url: str):
        env = RemoteVectorEnv(CODEFIX, [url], num_envs=4)
        _, infos = env.reset(seed=0)
        assert ew.trainable(infos).tolist() == [False] * 4
        assert "```python" in infos["stream"][2].events[1].data["content"]
        assert len(ew.messages_of(infos)) == 4
        env.close()

    def test_are_there_after_the_vector_has_been_closed(self, url: str):
        here, there = pair(CODEFIX, url, 2)
        infos = there.reset(seed=4)[1]
        there.close()
        expect_equal(infos, here.reset(seed=4)[1])

    def test_values_stay_as_they_were(self, url: str):
        env, here = (
            RemoteVectorEnv(LINE, [url], num_envs=4, max_steps=2),
            ew.make(LINE, num_envs=4, max_steps=2),
        )
        late, expected = [env.reset(seed=3)], [copy.deepcopy(here.reset(seed=3))]
        for action in actions_of(here, 6):
            late.append(env.step(action))
            expected.append(copy.deepcopy(here.step(action)))
        for one, other in zip(late, expected, strict=True):
            expect_equal(one, other)
        env.close()


class TestAVector:
    def test_is_made_by_every_way_in(self, url: str):
        for env in (
            gym.make_vec(LINE, num_envs=2, backend=url),
            ew.make(LINE, num_envs=2, backend=url),
            ew.make(LINE, num_envs=2, backend=[url, url]),
        ):
            assert isinstance(env.unwrapped, RemoteVectorEnv)
            assert env.unwrapped.spec.id == LINE
        again = gym.make_vec(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
        expect_equal(again.reset(seed=3), env.reset(seed=3))
        again.close()
        env.close()

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
    def test_is_copied_as_its_addresses(self, duplicate: Any, url: str):
        env = gym.make_vec(LINE, num_envs=3, backend=url, max_steps=5, autoreset_mode="SameStep")
        first = env.reset(seed=3)
        other = duplicate(env)
        assert (other.spec, other.metadata) == (env.spec, env.metadata)
        with pytest.raises(ew.ResetNeeded):
            other.step([0, 0, 0])
        expect_equal(other.reset(seed=3), first)
        expect_equal(other.step([0, 0, 0]), env.step([0, 0, 0]))
        other.close()
        env.close()

    def test_a_game_has_no_requests_before_the_first_move(self):
        env = RemoteVectorEnv(LINE, ["http://127.0.0.1:9"], num_envs=3, call_deadline=0.5)
        assert pickle.loads(pickle.dumps(env)).num_envs == 3
        with pytest.raises(ConnectionError, match="does not answer"):
            _ = env.observation_space
        env.close()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"urls": []}, "there is no server"),
            ({"num_envs": 0}, "not a number of environments"),
            ({"autoreset_mode": "Never"}, "autoreset_mode='Never' is unknown"),
            ({"on_fault": "ignore"}, "on_fault='ignore'"),
            ({"call_deadline": 0}, "call_deadline=0"),
            ({"urls": ["here"]}, "is not a URL"),
        ],
    )
    def test_refuses_arguments_that_make_no_sense(self, arguments: dict[str, Any], message: str):
        with pytest.raises(ew.InvalidArgument, match=message):
            RemoteVectorEnv(LINE, **{"urls": ["http://127.0.0.1:9"], **arguments})

    def test_plays_again_after_it_was_closed(self, url: str):
        env = RemoteVectorEnv(LINE, [url, url], num_envs=3)
        first = env.reset(seed=1)
        env.close()
        env.close()
        with pytest.raises(ew.ResetNeeded):
            env.step([0, 0, 0])
        expect_equal(env.reset(seed=1), first)
        assert not env.closed
        env.close()

    def test_waits_for_all_servers_at_once(self, transport: str, url: str):
        env = RemoteVectorEnv(TROUBLE, [url] * 4, num_envs=4, nap=1.0)
        env.reset(seed=0)
        env.step([2, 2, 2, 2])
        began, ended = zip(*(state["slept"] for state in ew.state_of(env)), strict=True)
        assert max(began) < min(ended)
        env.close()
