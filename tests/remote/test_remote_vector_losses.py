"""A server that is lost ends its rows as faults, those of others go on, and all play on after the reset."""

from __future__ import annotations

import gc
import os
import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from native_vectors import expect_equal
from remote_rows import MORTAL
from remote_worlds import stop, url

import envweave_gym as ew
from envweave_gym.core.faults import MAX_FAULTS_IN_A_ROW, FaultStorm
from envweave_gym.core.seeding import draw_seed
from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.remote.vector import RemoteVectorEnv

__all__ = ["url"]
LINE, COUNTER, ECHO = (f"envweave/{name}-v0" for name in ("LineWorld", "Counter", "Echo"))
LONG: dict[str, dict[str, Any]] = {LINE: {"length": 500, "slip": 0.0}, COUNTER: {"target": 500}}
"""What lets an episode last."""
DEADLINES: dict[str, Any] = {"call_deadline": 5.0, "reset_deadline": 5.0}


def lose(env: RemoteVectorEnv, group: int) -> None:
    """Let the session of some rows be gone, as after a restart of their server."""
    session = env._shards[group].session()
    session.drop()
    session.id = uuid.uuid4().hex


def vector(url: str, env_id: str = LINE, servers: int = 2, **kwargs: Any) -> RemoteVectorEnv:
    kwargs = {**DEADLINES, **LONG.get(env_id, {}), **kwargs}
    return RemoteVectorEnv(env_id, [url] * servers, num_envs=4, **kwargs)


def kinds(stream: ew.Stream) -> list[str]:
    return [str(event.kind) for event in stream.events]


def rows_of(batch: Any) -> Any:
    return next(iter(batch.values())) if isinstance(batch, dict) else np.asarray(batch)


ACTIONS: dict[str, Any] = {
    LINE: np.array([1, 0, 1, 0]),
    COUNTER: {"delta": np.array([1, 2, 3, 4])},
    ECHO: ("a", "b", "c", "d"),
}


class TestAStepThatLosesAServer:
    @pytest.mark.parametrize("env_id", ACTIONS)
    @pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
    def test_ends_its_rows_as_faults_and_no_others(self, env_id: str, mode: str, url: str):
        env = vector(url, env_id, autoreset_mode=mode)
        env.reset(seed=3)
        before = env.step(ACTIONS[env_id])[0]
        lose(env, 1)
        observations, rewards, terminated, truncated, infos = env.step(ACTIONS[env_id])
        assert terminated.tolist() == [False] * 4
        assert truncated.tolist() == [False, False, True, True]
        assert rewards[2:].tolist() == [0.0, 0.0]
        assert (rows_of(observations)[2:] == rows_of(before)[2:]).all()
        assert [fault and fault.kind for fault in infos["fault"]] == [None, None, "lost", "lost"]
        assert infos["_fault"].tolist() == truncated.tolist()
        assert ew.trainable(infos).tolist() == [True, True, False, False]
        streams = ew.stream_of(infos)
        assert kinds(streams[3]) == ["act", "fault", "episode_end"]
        assert infos["seq"][3] == streams[3].events[-1].seq == streams[3].requests[0].seq
        assert (streams[3].requests[0].kind, streams[3].requests[0].turn) == ("reset", 2)
        assert infos["stream"][0].events[0].kind == "act"
        env.close()

    @pytest.mark.parametrize("env_id", ACTIONS)
    def test_is_followed_by_their_reset_in_the_next_step(self, env_id: str, url: str):
        env, here = vector(url, env_id), ew.make(env_id, num_envs=4, **LONG.get(env_id, {}))
        for one in (env, here):
            one.reset(seed=3)
            one.step(ACTIONS[env_id])
        lose(env, 1)
        env.step(ACTIONS[env_id])
        here.step(ACTIONS[env_id])
        observations, rewards, _, truncated, infos = env.step(ACTIONS[env_id])
        assert not truncated.any()
        assert rewards[2:].tolist() == [0.0, 0.0]
        expected = here.reset(options={"reset_mask": np.array([False, False, True, True])})
        assert (rows_of(observations)[2:] == rows_of(expected[0])[2:]).all()
        assert infos["stream"][2:].tolist() == expected[1]["stream"][2:].tolist()
        assert ew.trainable(infos).tolist() == [True, True, False, False]
        assert "fault" not in infos
        assert [state["step_count"] for state in ew.state_of(env)] == [3, 3, 0, 0]
        env.close()

    @pytest.mark.parametrize("env_id", ACTIONS)
    def test_is_their_reset_too_in_same_step_mode(self, env_id: str, url: str):
        env, here = (
            vector(url, env_id, autoreset_mode="SameStep"),
            ew.make(env_id, num_envs=4, **LONG.get(env_id, {})),
        )
        for one in (env, here):
            one.reset(seed=3)
        before = env.step(ACTIONS[env_id])[0]
        here.step(ACTIONS[env_id])
        lose(env, 1)
        observations, _, _, truncated, infos = env.step(ACTIONS[env_id])
        assert truncated.tolist() == [False, False, True, True]
        expected = here.reset(options={"reset_mask": np.array([False, False, True, True])})
        assert (rows_of(observations)[2:] == rows_of(expected[0])[2:]).all()
        assert infos["stream"][2:].tolist() == expected[1]["stream"][2:].tolist()
        assert "fault" not in infos
        final = infos["final_info"]
        assert infos["_final_info"].tolist() == infos["_final_obs"].tolist() == truncated.tolist()
        last = infos["final_obs"][3]
        assert (last["count"] if isinstance(last, dict) else last) == pytest.approx(rows_of(before)[3])
        assert [fault and fault.kind for fault in final["fault"]] == [None, None, "lost", "lost"]
        assert kinds(final["stream"][2]) == ["act", "fault", "episode_end"]
        assert kinds(ew.stream_of(infos)[2])[:4] == ["act", "fault", "episode_end", "episode_start"]
        assert ew.trainable(infos).tolist() == [True, True, False, False]
        assert not env.step(ACTIONS[env_id])[3].any()
        env.close()

    def test_ends_a_row_that_was_to_be_reset_where_it_began(self, url: str):
        env = vector(url, COUNTER, target=5, max_steps=1)
        env.reset(seed=3)
        assert env.step({"delta": np.full(4, 9)})[3].all()
        lose(env, 0)
        _, _, _, truncated, infos = env.step({"delta": np.full(4, 9)})
        assert truncated.tolist() == [True, True, False, False]
        stream = infos["stream"][1]
        assert kinds(stream) == ["episode_start", "fault", "episode_end"]
        assert stream.events[0].data == {"seed": draw_seed(4, 1)}
        assert (infos["seq"][1], stream.requests[0].kind, stream.requests[0].turn) == (2, "reset", 0)
        env.step({"delta": np.full(4, 9)})
        assert not env.step({"delta": np.full(4, 9)})[4].get("fault")
        env.close()

    def test_after_a_refused_one_knows_the_seeds_all_the_same(self, url: str):
        env = vector(url, COUNTER, servers=1, max_steps=1)
        env.reset(seed=3)
        env.step(ACTIONS[COUNTER])
        with pytest.raises(ew.InvalidAction, match="row 0 is not in"):
            env.step({"delta": np.full(4, 99)})
        lose(env, 0)
        infos = env.step(ACTIONS[COUNTER])[4]
        assert infos["stream"][1].events[0].data == {"seed": draw_seed(4, 1)}
        assert env.step(ACTIONS[COUNTER])[4]["stream"][1].events[0].data == {"seed": draw_seed(4, 2)}
        env.close()

    def test_of_which_all_rows_are_makes_no_difference(self, url: str):
        env = vector(url, servers=1)
        env.reset(seed=3)
        lose(env, 0)
        *_, truncated, infos = env.step(ACTIONS[LINE])
        assert truncated.all()
        assert len(set(infos["fault"])) == 1
        assert kinds(env.step(ACTIONS[LINE])[4]["stream"][3]) == ["episode_start"]
        env.close()

    def test_refuses_a_wrong_action_before_it_tells_of_the_loss(self, url: str):
        env = vector(url, COUNTER, servers=1)
        env.reset(seed=3)
        lose(env, 0)
        with pytest.raises(ew.InvalidAction, match="row 1 is not in"):
            env.step({"delta": np.array([0, 99, 0, 0])})
        assert env.step(ACTIONS[COUNTER] | {"delta": np.zeros(4, np.int64)})[3].all()
        env.close()

    def test_raises_where_faults_are_to_be_raised(self, url: str):
        env = vector(url, on_fault="raise")
        env.reset(seed=3)
        lose(env, 1)
        with pytest.raises(ew.SessionLost):
            env.step(ACTIONS[LINE])
        with pytest.raises(ew.ResetNeeded, match="SessionLost stopped the last call halfway"):
            env.step(ACTIONS[LINE])
        env.reset()
        env.step(ACTIONS[LINE])
        env.close()

    def test_again_and_again_is_a_storm(self, url: str):
        env = vector(url, servers=1, autoreset_mode="SameStep")
        env.reset(seed=0)
        for _ in range(MAX_FAULTS_IN_A_ROW - 1):
            lose(env, 0)
            assert env.step(ACTIONS[LINE])[3].all()
        lose(env, 0)
        with pytest.raises(FaultStorm, match="10 faults in a row"):
            env.step(ACTIONS[LINE])
        env.close()

    def test_in_a_forked_process_leaves_the_session_to_the_parent(self, url: str):
        env = vector(url, servers=1)
        env.reset(seed=3)
        pid = os.fork()
        if pid == 0:
            truncated = env.step(ACTIONS[LINE])[3].all()
            played = not env.step(ACTIONS[LINE])[3].any() and not env.step(ACTIONS[LINE])[3].any()
            os._exit(0 if truncated and played else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not env.step(ACTIONS[LINE])[3].any()
        assert ew.state_of(env)[0]["step_count"] == 1
        env.close()


class TestAServer:
    @pytest.fixture
    def server(self) -> Iterator[PrivateServer]:
        """A server of its own, started again behind its address when it has died."""
        server = PrivateServer()
        _ = RemoteVectorEnv(LINE, [server.url]).description  # it runs by then
        yield server
        server.stop()

    def test_that_is_killed_loses_its_rows_which_play_on_when_it_is_back(
        self, server: PrivateServer, url: str
    ):
        env = RemoteVectorEnv(LINE, [url, server.url], num_envs=4, **DEADLINES, **LONG[LINE])
        env.reset(seed=3)
        for _ in range(3):
            before = env.step(ACTIONS[LINE])[0]
            pid = server.pid
            assert pid is not None
            os.killpg(pid, signal.SIGKILL)
            observations, _, _, truncated, infos = env.step(ACTIONS[LINE])
            assert truncated.tolist() == [False, False, True, True]
            assert observations[2:].tolist() == before[2:].tolist()
            assert infos["fault"][3].kind is ew.FaultKind.LOST
            assert not env.step(ACTIONS[LINE])[3].any()
        assert [state["step_count"] for state in ew.state_of(env)] == [9, 9, 0, 0]
        env.close()

    def test_a_hanging_row_does_not_block_the_end_of_its_vector(self, server: PrivateServer):
        env = RemoteVectorEnv(LINE, server.url, num_envs=2, **LONG[LINE])
        env.reset(seed=3)
        group, sent = env._shards[0], []
        group.close = lambda: sent.append("close")
        stop(server)
        del env, group
        gc.collect()
        assert sent == []
        os.killpg(server.pid, signal.SIGCONT)

    def test_that_stands_still_is_a_timeout_of_its_rows_alone(self, server: PrivateServer, url: str):
        deadlines: dict[str, Any] = {"call_deadline": 3.0, "reset_deadline": 0.1}
        env = RemoteVectorEnv(LINE, [server.url, url], num_envs=4, **deadlines, **LONG[LINE])
        assert env.reset(seed=3)[1].get("fault") is None
        assert env.step(ACTIONS[LINE])[4].get("fault") is None
        stop(server)
        started = time.monotonic()
        _, _, _, truncated, infos = env.step(ACTIONS[LINE])
        assert time.monotonic() - started < 10
        assert truncated.tolist() == [True, True, False, False]
        assert infos["fault"][0].kind is ew.FaultKind.TIMEOUT
        observations, _, _, truncated, infos = env.step(ACTIONS[LINE])
        assert not truncated.any()
        assert observations[:2].tolist() == [[0, 0], [0, 0]]
        assert kinds(infos["stream"][0]) == ["episode_start", "fault"]
        os.killpg(server.pid, signal.SIGCONT)
        _, _, _, truncated, infos = env.step(ACTIONS[LINE])
        assert truncated.tolist() == [True, True, False, False]
        assert kinds(infos["stream"][0]) == ["ignored", "fault", "episode_end"]
        assert kinds(env.step(ACTIONS[LINE])[4]["stream"][0]) == ["episode_start"]
        assert not env.step(ACTIONS[LINE])[3].any()
        assert ew.state_of(env)[3]["step_count"] == 6
        env.close()

    def test_an_environment_that_ends_its_process_loses_the_rows_in_it(self, server: PrivateServer, url: str):
        env = RemoteVectorEnv(MORTAL, [url, server.url], num_envs=4, **DEADLINES)
        env.reset(seed=0)
        *_, truncated, infos = env.step([0, 0, 0, 1])
        assert truncated.tolist() == [False, False, True, True]
        assert ew.trainable(infos).tolist() == [True, True, False, False]
        assert not env.step([0, 0, 0, 0])[3].any()
        env.close()


class TestAResetByHand:
    def test_opens_another_session_and_draws_the_seeds_that_are_next(self, url: str):
        env = vector(url, autoreset_mode="Disabled")
        env.reset(seed=3)
        lose(env, 1)
        over = env.step(ACTIONS[LINE])[3]
        with pytest.raises(ew.ResetNeeded, match=r"rows \[2, 3\] ended"):
            env.step(ACTIONS[LINE])
        observations, infos = env.reset(options={"reset_mask": over})
        here = ew.make(LINE, num_envs=4, autoreset_mode="Disabled", **LONG[LINE])
        here.reset(seed=3)
        here.step(ACTIONS[LINE])
        expected, expected_infos = here.reset(options={"reset_mask": over})
        expect_equal(infos, expected_infos)
        expect_equal(observations, expected)
        expect_equal(env.step(ACTIONS[LINE]), here.step(ACTIONS[LINE]))
        expect_equal(env.reset(), here.reset())
        env.close()

    @pytest.mark.parametrize("env_id", [LINE, COUNTER])
    def test_may_take_the_lost_rows_one_by_one(self, env_id: str, url: str):
        env = vector(url, env_id, autoreset_mode="Disabled")
        here = ew.make(env_id, num_envs=4, autoreset_mode="Disabled", **LONG.get(env_id, {}))
        for one in (env, here):
            one.reset(seed=3)
        lose(env, 1)
        lost = env.step(ACTIONS[env_id])[0]
        here.step(ACTIONS[env_id])
        for row in (2, 3):
            mask = np.arange(4) == row
            observations, infos = env.reset(options={"reset_mask": mask})
            expected, expected_infos = here.reset(options={"reset_mask": mask})
            expect_equal(infos, expected_infos)
            assert rows_of(observations)[row].tolist() == rows_of(expected)[row].tolist()
            if row == 2:
                assert rows_of(observations)[3].tolist() == rows_of(lost)[3].tolist()
                with pytest.raises(ew.ResetNeeded, match=r"rows \[3\] ended"):
                    env.step(ACTIONS[env_id])
        expect_equal(env.step(ACTIONS[env_id]), here.step(ACTIONS[env_id]))
        env.close()

    def test_of_one_lost_row_lets_the_others_wait_for_the_next_step(self, url: str):
        env = vector(url)
        env.reset(seed=3)
        lose(env, 1)
        env.step(ACTIONS[LINE])
        env.reset(options={"reset_mask": np.arange(4) == 2})
        infos = env.step(ACTIONS[LINE])[4]
        assert [kinds(stream)[0] for stream in ew.stream_of(infos)] == ["act", "act", "act", "episode_start"]
        assert infos["stream"][3].events[0].data == {"seed": draw_seed(6, 1)}
        assert infos["stream"][2].requests[0].turn == 1
        env.close()

    def test_a_partial_reset_of_a_lost_server_is_reported_by_the_next_step(self, url: str):
        env = vector(url, autoreset_mode="Disabled")
        env.reset(seed=3)
        before = env.step(ACTIONS[LINE])[0]
        lose(env, 1)
        observations, infos = env.reset(options={"reset_mask": np.array([True, False, True, False])})
        assert [fault and fault.kind for fault in infos["fault"]] == [None, None, "lost", None]
        assert kinds(infos["stream"][2]) == ["episode_start", "fault"]
        assert infos["stream"][3] is None
        assert observations[2].tolist() == [0, 0]
        assert observations[3].tolist() == before[3].tolist()
        _, _, _, truncated, infos = env.step(ACTIONS[LINE])
        assert truncated.tolist() == [False, False, True, True]
        assert kinds(infos["stream"][3]) == ["ignored", "fault", "episode_end"]
        assert infos["stream"][3].requests[0].turn == 2
        assert infos["stream"][2].requests[0].turn == 1
        env.reset(options={"reset_mask": truncated})
        assert not env.step(ACTIONS[LINE])[3].any()
        env.close()

    def test_of_a_server_that_is_gone_for_good_gives_placeholders(self):
        env = RemoteVectorEnv(LINE, ["http://127.0.0.1:9"], num_envs=2, call_deadline=0.3, reset_deadline=0.1)
        env.__dict__["description"] = {
            "observation_space": {"type": "Discrete", "n": 3, "start": 0, "dtype": "<i8"},
            "action_space": {"type": "Discrete", "n": 2, "start": 0, "dtype": "<i8"},
            "metadata": {},
            "native": True,
        }
        observations, infos = env.reset(seed=3)
        assert observations.tolist() == [0, 0]
        assert [fault.kind for fault in infos["fault"]] == ["lost", "lost"]
        assert infos["stream"][1].events[0].data == {"seed": 4}
        assert ew.trainable(infos).tolist() == [False, False]
        truncated, infos = env.step([0, 1])[3:]
        assert truncated.all()
        assert kinds(infos["stream"][1]) == ["ignored", "fault", "episode_end"]
        env.close()
