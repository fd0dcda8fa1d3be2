"""Networks that cut, servers that die: every step is done once, every loss is a fault, nothing hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import gymnasium as gym
import pytest
from proxies import proxy
from remote_worlds import kill, mortal_web, stop, url
from web_replica import WebReplica

import envweave_gym as ew
from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.env import RemoteEnv

__all__ = ["mortal_web", "url"]
COUNTER = "envweave/Counter-v0"
FOREVER: dict[str, Any] = {"target": 1_000_000, "max_steps": -1}
STEPS = 600


def counted(env: Any, steps: int) -> None:
    """Every step is done exactly once."""
    count = int(env.reset(seed=1)[0]["count"])
    for step in range(1, steps + 1):
        observation, _, terminated, truncated, info = env.step({"delta": 1})
        assert (int(observation["count"]), terminated, truncated) == (count + step, False, False), info
    assert ew.state_of(env)["step_count"] == steps


@pytest.mark.slow
def test_a_step_is_done_once_however_often_the_connection_breaks(url: str):
    with proxy(url, seed=3) as between:
        env = RemoteEnv(COUNTER, between.url, **FOREVER)
        _ = env.description
        between.chances = {"cut": 0.1, "truncate": 0.1}
        counted(env, STEPS)
        between.chances = {}
        lost = between.done["cut"] + between.done["truncate"]
        assert lost > STEPS // 2
        env.close()
    print(f"{STEPS} steps, each done once, with {lost} of {between.done.total()} chunks lost")


def test_an_environment_is_made_though_the_first_connections_are_cut(url: str):
    with proxy(url, seed=5, cut=1.0) as between:
        threading.Timer(0.25, between.chances.clear).start()
        env = gym.make(COUNTER, backend=between.url)
        assert between.done["cut"] >= 3
        env.reset(seed=1)
        env.step({"delta": 1})
        env.close()


def test_where_all_connections_are_cut_that_is_said_within_a_second_or_so(url: str):
    with proxy(url, seed=6, cut=1.0) as between:
        started = time.monotonic()
        with pytest.raises(ConnectionError, match="does not answer"):
            gym.make(COUNTER, backend=between.url)
        assert 0.5 < time.monotonic() - started < 2
        assert between.done["cut"] >= 6


def test_it_is_asked_again_within_the_deadline_only(url: str):
    with proxy(url, seed=7, cut=1.0) as between:
        started = time.monotonic()
        with pytest.raises(OSError, match=between.url):
            gym.make(COUNTER, backend=between.url, call_deadline=0.1)
        assert time.monotonic() - started < 0.4


def test_a_frame_that_comes_twice_is_done_once(url: str):
    with proxy(url, seed=4) as between:
        env = RemoteEnv(COUNTER, between.url, **FOREVER)
        env.reset(seed=1)
        between.chances = {"repeat": 0.2, "delay": 0.02}
        before = int(env.step({"delta": 1})[0]["count"])
        for step in range(1, 500):
            assert int(env.step({"delta": 1})[0]["count"]) == before + step
        between.chances = {}
        assert between.done["repeat"] > 50
        env.close()


def test_another_server_at_the_address_of_a_dead_one_is_a_loss(mortal_web: WebReplica):
    env = RemoteEnv(COUNTER, mortal_web.url, call_deadline=10.0)
    env.reset(seed=1)
    remember_token(mortal_web.url, "of who was there before")
    kill(mortal_web)
    *_, truncated, info = env.step({"delta": 1})
    assert (truncated, info["fault"].kind) == (True, ew.FaultKind.LOST)
    assert "answers where one has ended" in info["fault"].message
    env.close()


def test_a_server_that_stands_still_is_a_timeout_and_the_next_episode_goes_on():
    server = PrivateServer()
    env = gym.make(COUNTER, backend=server.url, call_deadline=3.0, reset_deadline=0.1, **FOREVER)
    env.reset(seed=1)
    last = env.step({"delta": 1})[0]
    stop(server)
    started = time.monotonic()
    observation, reward, _, truncated, info = env.step({"delta": 1})
    assert time.monotonic() - started < 8
    assert (observation, reward, truncated, info["fault"].kind) == (last, 0.0, True, ew.FaultKind.TIMEOUT)
    info = env.reset(seed=1)[1]
    assert info["fault"].kind is ew.FaultKind.TIMEOUT
    assert env.step({"delta": 1})[3] is True
    assert server.pid is not None
    os.killpg(server.pid, signal.SIGCONT)
    assert "fault" not in env.reset(seed=1)[1]
    assert int(env.step({"delta": 1})[0]["count"]) == int(last["count"])
    env.close()
    server.stop()
