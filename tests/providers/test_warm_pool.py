"""The warm pool: containers that run before anybody asks, are used once, and are never too many."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import psutil
import pytest
from engines import client, ours
from servers import until

import envweave_gym as ew
from envweave_gym.containers.sweep import sweep
from envweave_gym.providers import pool, replica_health
from envweave_gym.providers.pool import Pool
from envweave_gym.registry.make import warm_up
from envweave_gym.remote.started_servers import Upkeep, join, keep_up, leave

__all__ = ["client"]
pytestmark = pytest.mark.slow
COUNTER = "envweave/Counter-v0"
MEMORY = "300m"
"""What no other test asks for, so that nobody else uses these containers."""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nobody."""
    monkeypatch.setattr(pool, "_DELAY_S", 0.0)


# With containers


def names(client: Any) -> set[str]:
    """The containers of this module that run."""
    mine = [one for one in ours(client) if one.attrs["HostConfig"]["Memory"] == 300 << 20]
    return {one.name for one in mine if one.status == "running"}


@pytest.fixture
def warm(client: Any) -> Iterator[Any]:
    """Fills the pool, and empties it behind the test."""
    yield lambda count: warm_up(COUNTER, count, memory=MEMORY)
    warm_up(COUNTER, 0, memory=MEMORY)
    until(lambda: not names(client), 30)


def test_a_caller_gets_a_running_replica_and_another_is_started(client: Any, warm: Any):
    warm(2)
    ready = names(client)
    assert len(ready) == 2
    env = gym.make(COUNTER, backend="docker", memory=MEMORY)
    env.reset(seed=1)
    warm(2)
    beside = names(client)
    assert ready < beside
    assert len(beside) == 3
    env.close()
    until(lambda: len(names(client)) == 2, 30)
    assert len(names(client) & ready) == 1
    assert not names(client) - beside


def test_each_make_has_a_fresh_one_and_says_itself_how_many_are_to_be_ready(client: Any, warm: Any):
    used: list[set[str]] = []
    for _ in range(3):
        env = gym.make(COUNTER, backend="docker", memory=MEMORY, warm=1)
        env.reset(seed=1)
        warm(1)
        used.append(names(client))
        env.close()
        until(lambda: len(names(client)) == 1, 30)
        assert names(client) < used[-1]
    assert [len(some) for some in used] == [2, 2, 2]
    assert len(set.union(*used)) == 4


def test_concurrent_callers_share_a_server_in_use(client: Any, warm: Any):
    warm(1)
    envs = [gym.make(COUNTER, backend="docker", memory=MEMORY) for _ in range(3)]
    assert len({env.unwrapped._served.address.url for env in envs}) == 1
    for env in envs:
        env.close()


def test_one_that_dies_while_it_waits_is_replaced(client: Any, monkeypatch: pytest.MonkeyPatch, warm: Any):
    monkeypatch.setattr(replica_health, "ROUND_S", 0.05)
    warm(1)
    (before,) = names(client)
    client.containers.get(before).kill()
    until(lambda: names(client) and before not in names(client), 30)
    assert len(names(client)) == 1


def test_an_environment_that_was_closed_may_be_reset_again(client: Any, warm: Any):
    warm(1)
    env = gym.make(COUNTER, backend="docker", memory=MEMORY)
    begun = env.reset(seed=1)[0]
    for _ in range(2):
        env.close()
        assert env.reset(seed=1)[0] == begun
    env.close()
    warm(1)
    until(lambda: len(names(client)) == 1, 30)


PROGRAM = f"""
import sys
import gymnasium as gym
from envweave_gym.registry.make import warm_up
warm_up("{COUNTER}", 2)
env = gym.make("{COUNTER}", backend="docker")
env.reset(seed=1)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["returns", "returns at once", "is killed"])
def test_no_container_is_left_when_the_process(how: str, client: Any):
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if how != "returns at once":  # while the third is on its way
        until(lambda: len(of(client, process.pid)) == 3, 30)
    if how == "is killed":
        process.kill()
    _, errors = process.communicate(None if how == "is killed" else "\n", timeout=30)
    if how == "is killed":  # one that is just being started is in the way of nobody, and goes with the next
        until(lambda: sweep(client) == of(client, process.pid) == [], 30)
    assert (of(client, process.pid), errors) == ([], "")


def of(client: Any, pid: int) -> list[Any]:
    """The containers of a process."""
    there = client.containers.list(all=True, filters={"label": "envweave.owner"}, ignore_removed=True)
    return [one for one in there if one.labels["envweave.owner"].partition("-")[0] == str(pid)]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"warm": -1}, f"{COUNTER}: warm=-1 is no number of replicas from 0 to 256"),
        ({"warm": True}, f"{COUNTER}: warm=True is no number of replicas"),
        (
            {"backend": "inproc"},
            f"{COUNTER}: backend='inproc' starts no servers to keep ready; there are 'subprocess', 'docker'",
        ),
        ({"colour": 1}, f"{COUNTER}: warm_up takes no option 'colour'"),
        ({"memory": "x"}, f"{COUNTER}: memory='x' is no size"),
    ],
)
def test_an_invalid_number_of_warm_replicas_is_refused(given: dict[str, Any], sentence: str):
    with pytest.raises(ew.InvalidArgument, match=sentence):
        warm_up(COUNTER, **given)


def test_a_missing_image_is_reported_to_all_waiting_callers(client: Any):
    with pytest.raises(ew.NotAvailable, match="the image envweave-none is not on this machine"):
        warm_up(COUNTER, 1, image="envweave-none")


# Without


def test_other_servers_are_kept_ready_too():
    warm_up(COUNTER, 1, backend="subprocess")
    servers = psutil.Process().children()
    with gym.make(COUNTER, backend="subprocess", replicas=1) as env:
        env.reset(seed=1)
        warm_up(COUNTER, 1, backend="subprocess")
        assert len(set(psutil.Process().children()) - set(servers)) == 1
    warm_up(COUNTER, 0, backend="subprocess")


class Fake:
    """A replica of nothing, which knows how it is."""

    numbers, check_every = itertools.count(), 1.0

    def __init__(self, made: list[Fake] | None = None) -> None:
        if made is not None:
            made.append(self)
        self.url = f"http://127.0.0.1:{os.getpid()}/{next(self.numbers)}"
        self.upkeep = Upkeep(self.ensure)
        keep_up(self.url, self.upkeep)
        self.runs, self.starts, self.broken, self.stopped = True, 1, False, False

    def ensure(self) -> None:
        if self.broken:
            raise ew.NotAvailable("its port is taken")
        self.starts += not self.runs
        self.runs = True

    def answers(self, timeout: float) -> bool:
        return False

    def logs(self) -> str:
        return ""

    def rest(self) -> None:
        self.runs = False

    def stop(self) -> None:
        self.runs, self.stopped = False, True


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No health is looked after."""
    monkeypatch.setattr(replica_health.Watch, "_look", lambda self: None)


def use(replica: Any) -> object:
    user = threading.Event()
    join(replica.url, user)
    return user


def test_a_returned_replica_rests_and_is_used_again():
    kept = Pool(Fake)
    (one,) = kept.take(1)
    user = use(one)
    assert kept.take(1) == [one]
    leave(one.url, user)
    assert not one.runs
    assert kept.take(1) == [one]
    assert (one.runs, one.starts) == (True, 2)
    both = kept.take(2)
    assert (both[0], len(set(both))) == (one, 2)


def test_one_at_rest_that_cannot_be_started_is_given_up():
    kept = Pool(Fake)
    (one,) = kept.take(1)
    leave(one.url, use(one))
    one.broken = True
    (other,) = kept.take(1)
    assert other is not one
    assert one.stopped
    leave(other.url, use(other))
    other.broken = True
    kept.keep_ready(1)
    kept.wait(5)
    assert other.stopped
    assert kept.take(1)[0].runs
    kept.keep_ready(0)


def test_it_shrinks_and_starts_no_more_than_it_is_to(calm: None):
    made: list[Fake] = []
    kept = Pool(lambda: Fake(made))
    kept.keep_ready(3)
    kept.wait(5)
    assert len(made) == 3
    kept.keep_ready(1)
    kept.keep_ready(3)
    kept.wait(5)
    assert len(made) == 3
    taken = kept.take(2)
    assert all(one.starts >= 1 and one.runs for one in taken)
    kept.wait(5)
    assert len(made) == 5
    kept.keep_ready(0)


def test_one_that_waits_and_is_used_by_an_old_friend_counts_as_used(calm: None):
    kept = Pool(Fake)
    kept.keep_ready(1)
    kept.wait(5)
    ready = kept._ready[0]
    user = use(ready)
    assert kept.take(1) == [ready]
    kept.wait(5)
    assert len(kept._ready) == 1
    assert kept._ready[0] is not ready
    leave(ready.url, user)
    until(lambda: not ready.runs, 30)
    kept.keep_ready(0)


def test_a_waiting_caller_gets_the_reason_of_the_failure(calm: None):
    def fail() -> Any:
        raise ew.NotAvailable("no room")

    kept = Pool(fail)
    kept.keep_ready(1)
    with pytest.raises(ew.NotAvailable, match="no room"):
        kept.wait(5)
    slow = Pool(lambda: time.sleep(0.5) or Fake())
    slow.keep_ready(1)
    with pytest.raises(ew.NotAvailable, match=r"0 of 1 replicas are ready after 0\.05 s"):
        slow.wait(0.05)
    slow.keep_ready(0)


def test_concurrent_callers_start_one_server():
    made: list[Fake] = []

    def start() -> Fake:
        time.sleep(0.05)
        return Fake(made)

    kept, taken = Pool(start), list[Any]()
    threads = [threading.Thread(target=lambda: taken.extend(kept.take(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(set(taken)) == 1
