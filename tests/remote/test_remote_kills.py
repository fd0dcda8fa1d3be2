"""A server that is killed again and again under a vector rollout: no wrong observation, no hang."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest

import envweave_gym as ew
from envweave_gym.envs.toy.counter import CounterEnv
from envweave_gym.episode.stream import stream_of
from envweave_gym.providers.subprocess import PrivateServer

ROWS, KILLS = 4, 20


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
def test_twenty_kills_are_twenty_honest_losses_and_the_rollout_goes_on() -> None:
    server = PrivateServer()
    env = ew.make(
        "envweave/Counter-v0",
        num_envs=ROWS,
        backend=server.url,
        target=1_000_000,
        max_steps=3,  # episodes that come to their end keep the faults from being a storm
        call_deadline=10.0,
        reset_deadline=20.0,
    )
    stop, rng, kills = threading.Event(), random.Random(5), 0

    def kill() -> None:
        nonlocal kills
        seen = 0
        while kills < KILLS and not stop.wait(rng.uniform(0.0, 0.1)):
            pid = server.pid
            if pid is not None and steps > seen + 8:  # it has come back from the last time
                os.killpg(pid, signal.SIGKILL)
                seen, kills = steps, kills + 1
        stop.set()

    observations, infos = env.reset(seed=1)
    count, lost, steps = observations["count"].copy(), 0, 0
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    started = time.monotonic()
    fresh = np.zeros(ROWS, np.bool_)
    while not stop.is_set():
        observations, rewards, terminated, truncated, infos = env.step({"delta": np.ones(ROWS, np.int64)})
        steps += 1
        faulty = infos.get("_fault", np.zeros(ROWS, np.bool_))
        kept = ew.trainable(infos)
        assert not terminated.any()
        for row, stream in enumerate(stream_of(infos)):
            if fresh[row] and not faulty[row]:
                start = stream.events[0].data["seed"]
                assert observations["count"][row] == first_count(start)
            elif not faulty[row]:
                assert observations["count"][row] == count[row] + 1
            else:
                assert truncated[row] or fresh[row]  # a reset that is lost truncates at the next step
                assert rewards[row] == 0.0
                assert not kept[row]
                lost += 1
        count, fresh = observations["count"].copy(), truncated
        assert time.monotonic() - started < 150
    killer.join()
    assert kills == KILLS
    assert lost >= KILLS  # a kill while nobody is connected may go unnoticed, one under a rollout does not
    taken = time.monotonic() - started
    print(f"{steps} steps of {ROWS} rows, {kills} kills, {lost} rows lost, {taken:.1f} s")
    env.close()
    server.stop()


def first_count(seed: int) -> int:
    """What the counter shows after a reset with this seed."""
    return int(CounterEnv(target=1_000_000).reset(seed=seed)[0]["count"])
