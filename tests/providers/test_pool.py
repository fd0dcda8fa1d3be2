"""What is taken from a pool goes back to it, whoever took it and however that went."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from engines import client, ours
from servers import until

import envweave_gym as ew
from envweave_gym.providers import parallel, pool, replica_health, subprocess
from envweave_gym.providers.base import release_unused
from envweave_gym.providers.parallel import run_in_parallel, start_all
from envweave_gym.providers.pool import Pool
from envweave_gym.remote import started_servers
from envweave_gym.remote.started_servers import Upkeep, begin, join, keep_up, leave, users_of

__all__ = ["client"]
COUNTER, LINE = "envweave/Counter-v0", "envweave/LineWorld-v0"


class Fake:
    """A replica of nothing, which knows whether it runs."""

    numbers, check_every = itertools.count(), 1.0

    def __init__(self) -> None:
        self.url = f"http://127.0.0.1:{os.getpid()}/pool/{next(self.numbers)}"
        self.upkeep = Upkeep(self.ensure)
        keep_up(self.url, self.upkeep)
        self.runs, self.starts, self.rests, self.stopped = True, 1, 0, False
        self.waking: Callable[[], Any] = lambda: None

    def ensure(self) -> None:
        self.waking()
        self.starts += not self.runs
        self.runs = True

    def answers(self, timeout: float) -> bool:
        return False

    def logs(self) -> str:
        return ""

    def rest(self) -> None:
        self.rests += 1
        self.runs = False

    def stop(self) -> None:
        self.runs, self.stopped = False, True


class User:
    """Somebody who may be forgotten."""

    itself: Any = None

    def __init__(self, url: str) -> None:
        join(url, self)


def servers() -> set[int]:
    """The processes that this one has started."""
    return {one.pid for one in psutil.Process().children(recursive=True)}


# Those who are forgotten


@pytest.mark.parametrize("kind", ["one", "rows"])
def test_a_server_ends_when_its_environment_was_collected(kind: str):
    before = servers()
    if kind == "one":
        env: Any = gym.make(COUNTER, backend="subprocess", replicas=1)
    else:
        env = gym.make_vec(LINE, num_envs=2, backend="subprocess", replicas=1)
    env.reset(seed=1)
    assert servers() - before
    env.itself = env  # it is in a cycle, as a vector is that was used
    del env
    gc.collect()
    until(lambda: servers() <= before, 20)


def test_a_server_is_kept_as_long_as_one_of_its_users_is():
    kept = Pool(Fake)
    (one,) = kept.take(1)
    first, second = User(one.url), User(one.url)
    first.itself = first
    del first
    gc.collect()
    assert users_of(one.url) == 1
    time.sleep(2 * started_servers._STOP_DELAY_S)
    assert one.runs
    second.itself = second
    del second
    gc.collect()
    until(lambda: not one.runs, 10)


def test_nothing_is_ended_in_the_thread_that_collects():
    threads: list[int] = []
    one = Fake()
    one.upkeep.unused = lambda: threads.append(threading.get_ident())
    User(one.url)
    until(lambda: threads, 10)
    assert threads != [threading.get_ident()]
    User(one.url)
    late = User(one.url)
    time.sleep(2 * started_servers._STOP_DELAY_S)
    assert len(threads) == 1  # another came before it was ended
    leave(one.url, late)
    leave(one.url, late)
    assert threads[1:] == [threading.get_ident()]


def test_a_forked_child_ends_nothing_of_its_parent():
    one = Fake()
    ended: list[int] = []
    one.upkeep.unused = lambda: ended.append(os.getpid())
    user = User(one.url)
    pid = os.fork()
    if pid == 0:
        nobody_yet = users_of(one.url) == 0
        del user
        time.sleep(2 * started_servers._STOP_DELAY_S)
        os._exit(0 if nobody_yet and not ended else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert users_of(one.url) == 1
    leave(one.url, user)
    assert ended == [os.getpid()]


def test_locks_are_free_in_a_forked_child():
    with pool._pools.value.lock, subprocess._lock.value, parallel._running.value.lock:
        pid = os.fork()
        if pid == 0:
            locks = (pool._pools.value.lock, subprocess._lock.value, parallel._running.value.lock)
            os._exit(0 if all(lock.acquire(timeout=1) for lock in locks) else 1)
    assert os.waitpid(pid, 0)[1] == 0


# Those that nobody came to use


def test_no_server_is_left_where_nothing_could_be_made():
    before = servers()
    with pytest.raises(ew.UnknownEnvironment):
        ew.make("http://127.0.0.1:1#x", backend="subprocess", replicas=2)
    with pytest.raises(ew.InvalidArgument):
        gym.make(COUNTER, backend="subprocess", replicas=2, colour="red")
    assert servers() <= before


def test_no_server_is_left_that_was_not_needed():
    before = servers()
    rows = gym.make_vec(LINE, num_envs=1, backend="subprocess", replicas=2)
    rows.reset(seed=1)
    assert len({one.pid for one in psutil.Process().children()} - before) == 1
    rows.close()
    assert servers() <= before
    rows.reset(seed=1)
    rows.step(np.ones(1, np.int64))
    rows.close()
    assert servers() <= before


def test_no_container_is_left_where_nothing_could_be_made(client: Any):
    before = {one.name for one in ours(client)}
    with pytest.raises(ew.UnknownEnvironment):
        ew.make("docker://envweave-core#nope/None-v0", memory="301m")
    assert {one.name for one in ours(client)} <= before


def test_a_taken_replica_counts_as_used_until_the_block_ends():
    kept = Pool(Fake)
    with release_unused():
        one, other = kept.take(2)
        user = User(one.url)
        leave(one.url, user)
        assert one.runs
        user = User(one.url)
    assert (one.runs, other.runs) == (True, False)
    leave(one.url, user)
    assert not one.runs


def test_of_blocks_within_each_other_the_outermost_settles():
    kept = Pool(Fake)
    with release_unused():
        with release_unused():
            (one,) = kept.take(1)
        assert (kept.take(1), one.runs) == ([one], True)
    assert not one.runs


def test_a_caller_that_takes_it_while_the_last_user_leaves_keeps_it():
    kept = Pool(Fake)
    (one,) = kept.take(1)
    old = User(one.url)
    with release_unused():
        assert kept.take(1) == [one]
        leave(one.url, old)
        new = User(one.url)
    assert (one.runs, one.rests, users_of(one.url)) == (True, 0, 1)
    leave(one.url, new)
    assert (one.runs, one.rests) == (False, 1)


def test_concurrent_users_never_lose_their_server():
    kept, lost = Pool(Fake), list[str]()

    def come_and_go() -> None:
        for _ in range(50):
            with release_unused():
                (one,) = kept.take(1)
                user = User(one.url)
            if not one.runs:
                lost.append(one.url)
            leave(one.url, user)

    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert len(kept._resting) == len(set(kept._resting))
    assert not any(one.runs for one in kept._resting)
    assert (kept._used, +kept._held) == ([], {})


# Interruptions, and the end


def interrupted() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_while_a_replica_wakes_is_raised_and_loses_nothing():
    kept = Pool(Fake)
    (one,) = kept.take(1)
    leave(one.url, User(one.url))
    one.waking = interrupted
    with pytest.raises(KeyboardInterrupt):
        kept.take(1)
    until(lambda: one in kept._resting, 10)
    assert (one.runs, one.stopped) == (False, False)
    one.waking = lambda: None
    assert kept.take(1) == [one]
    assert one.runs


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_only_call_is_no_outcome(error: type[BaseException]):
    def end() -> None:
        raise error

    with pytest.raises(error):
        run_in_parallel([end])
    with pytest.raises(error):
        start_all([end])
    reported = run_in_parallel([lambda: int("no number")])
    assert [type(one) for one in reported] == [ValueError]


def test_where_no_thread_can_begin_all_are_stopped_all_the_same(monkeypatch: pytest.MonkeyPatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    fakes = [Fake() for _ in range(3)]
    running = parallel._Running()
    running.update(fakes)  # type: ignore[arg-type]
    monkeypatch.setattr(parallel._running, "value", running)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    try:
        parallel._stop_at_exit()
    finally:
        parallel._ending.clear()
    assert all(one.stopped for one in fakes)


# Those that are looked after


def test_a_resting_replica_is_not_woken_by_health_checks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replica_health, "ROUND_S", 0.01)
    kept = Pool(Fake)
    kept.keep_ready(2)
    kept.wait(5)
    first, second = kept._ready
    is_looked_at, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        is_looked_at.set()
        go_on.wait(5)

    first.waking = second.waking = wait
    assert kept._watch is not None
    kept._watch._every = 0.01
    assert is_looked_at.wait(5)
    emptying = threading.Thread(target=kept.keep_ready, args=(0,))
    emptying.start()
    until(lambda: not kept._ready, 5)
    go_on.set()
    emptying.join()
    until(lambda: len(kept._resting) == 2, 5)
    until(lambda: not first.runs and not second.runs, 5)


def test_one_at_rest_that_is_checked_stays_at_rest():
    kept = Pool(Fake)
    (one,) = kept.take(1)
    leave(one.url, User(one.url))
    assert kept._keep_up(one) is False
    assert (one.runs, one.starts) == (False, 1)


def test_one_that_comes_to_rest_while_it_is_started_again_is_put_to_rest_again():
    kept = Pool(Fake)
    kept.keep_ready(1)
    kept.wait(5)
    (one,) = kept._ready

    def shrink() -> None:
        one.waking = lambda: None
        kept.keep_ready(0)

    one.waking = shrink
    assert kept._keep_up(one) is False
    assert (one.runs, kept._resting) == (False, [one])


# Starts that take long


def test_a_long_start_continues_after_its_caller_has_gone():
    one = Fake()
    one.runs, go_on = False, threading.Event()
    one.waking = lambda: go_on.wait(5)
    start = begin(one.url)
    assert start is not None
    for _ in range(3):
        assert begin(one.url) is start
        with pytest.raises(TimeoutError, match="is still being started"):
            start.wait(0.01)
    go_on.set()
    start.wait(5)
    assert (one.runs, one.starts) == (True, 2)
    assert begin(one.url) is not start


def test_a_restart_takes_no_longer_than_the_call_that_wants_it():
    with ew.Fleet("subprocess", check_every=60) as fleet:
        env = gym.make(COUNTER, backend=fleet.urls, call_deadline=1.0)
        env.reset(seed=1)
        (one,) = fleet._replicas
        one.rest()
        one.upkeep.ensure = lambda: time.sleep(10)
        begun = time.monotonic()
        *_, truncated, info = env.step({"delta": 1})
        assert truncated
        assert info["fault"].retryable
        assert time.monotonic() - begun < 3
        one.upkeep.ensure = one.ensure
        env.close()


def test_servers_that_died_are_started_again_at_the_same_time():
    with ew.Fleet("subprocess", replicas=3, check_every=60) as fleet:
        rows = gym.make_vec(LINE, num_envs=3, backend=fleet.urls, reset_deadline=20.0)
        rows.reset(seed=1)
        running, most, lock = 0, 0, threading.Lock()

        def slow(one: Any) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            if one.pid is None:
                time.sleep(1.0)
            one.ensure()
            with lock:
                running -= 1

        for one in fleet._replicas:
            one.rest()
            one.upkeep.ensure = lambda one=one: slow(one)
        assert rows.step(np.ones(3, np.int64))[3].all()
        assert most == 3
        rows.reset(seed=1)
        assert not rows.step(np.ones(3, np.int64))[3].any()
        rows.close()
