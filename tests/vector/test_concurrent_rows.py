"""Vectors whose rows are stepped at the same time, in threads: the same results in less time."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from sandboxes import needs

import envweave_gym as ew
from envweave_gym.core.faults import Fault
from envweave_gym.registry.catalog import EnvCard, register_card
from envweave_gym.vector import row_threads
from envweave_gym.vector.row_threads import RowThreads

MEET, ROWS = "tests/Meet-v0", 4
TOGETHER, FAIL, HANG, BRIEFLY = 1, 2, 3, 4
MODES = ["NextStep", "SameStep", "Disabled"]


class Meet(gym.Env[int, int]):
    """An action waits for the same of all rows, fails, or waits until the environment is closed."""

    observation_space = gym.spaces.Discrete(1000)
    action_space = gym.spaces.Discrete(5)
    barrier = threading.Barrier(ROWS)

    def __init__(self) -> None:
        self.closed = threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.closed.clear()
        return int(self.np_random.integers(1000)), {"began": True}

    def step(self, action: int) -> Any:
        if action in (TOGETHER, BRIEFLY):
            self.barrier.wait(30 if action == TOGETHER else 0.05)
        if action == FAIL:
            raise OSError("the disk is full")
        if action == HANG:
            self.closed.wait(60)
        seen = int(self.np_random.integers(1000))
        return seen, float(seen), seen % 3 == 0, False, {"seen": seen}

    def close(self) -> None:
        self.closed.set()

    def __deepcopy__(self, memo: Any) -> Any:
        return Meet()

    def __reduce__(self) -> Any:
        return Meet, ()


@pytest.fixture(autouse=True)
def card(registries: None) -> None:
    register_card(EnvCard(id=MEET, doc="Meet.", gym=f"{__name__}:Meet", concurrent=True))


@pytest.fixture
def make() -> Iterator[Any]:
    """Makes vectors, and closes them."""
    made: list[Any] = []

    def make_one(**kwargs: Any) -> Any:
        made.append(ew.make(MEET, num_envs=ROWS, **kwargs))
        return made[-1]

    yield make_one
    for vector in made:
        vector.close()
    assert not [one for one in threading.enumerate() if one.name == "vector-row"]


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_stepped_at_the_same_time(make: Any, mode: str) -> None:
    env = make(autoreset_mode=mode)
    env.reset(seed=0)
    assert env.step([TOGETHER] * ROWS)[1].all()


def test_rows_are_stepped_in_turn_where_that_is_asked_for(make: Any) -> None:
    env = make(vectorization_mode="sync")
    env.reset(seed=0)
    Meet.barrier.reset()
    with pytest.raises(threading.BrokenBarrierError):
        env.step([BRIEFLY] * ROWS)
    Meet.barrier.reset()


def played(env: Any, mode: str) -> list[Any]:
    """All that twelve steps give, with a reset of one row and one of those that are over."""
    reported = [env.reset(seed=7), env.reset(options={"reset_mask": np.arange(ROWS) == 1})]
    for _ in range(12):
        reported.append(env.step([0] * ROWS))
        over = reported[-1][2] | reported[-1][3]
        if mode == "Disabled" and over.any():
            reported.append(env.reset(options={"reset_mask": over}))
    return [[*rest, without_streams(infos), streams(infos)] for *rest, infos in reported]


def streams(infos: dict[str, Any]) -> list[Any]:
    return [(one and one.requests, one and one.events) for one in ew.stream_of(infos)]


def without_streams(infos: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in infos.items() if "stream" not in name}
    if "final_info" in rest:
        rest["final_info"] = without_streams(rest["final_info"])
    return rest


@pytest.mark.parametrize("mode", MODES)
def test_results_seeds_and_streams_are_those_of_rows_in_turn(make: Any, mode: str) -> None:
    at_once, in_turn = make(autoreset_mode=mode), make(autoreset_mode=mode)
    in_turn.concurrent = False
    np.testing.assert_equal(played(at_once, mode), played(in_turn, mode))


def test_a_fault_of_a_row_leaves_the_others_their_step(make: Any) -> None:
    env = make(on_fault="truncate")
    env.reset(seed=0)
    _, rewards, _, truncated, infos = env.step([0, FAIL, 0, 0])
    assert truncated.tolist() == [False, True, False, False]
    assert isinstance(infos["fault"][1], Fault)
    assert np.delete(rewards, 1).all()


def test_the_first_row_that_raises_is_heard_and_a_reset_goes_on(make: Any) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(OSError, match="the disk is full"):
        env.step([0, FAIL, 0, FAIL])
    with pytest.raises(ew.ResetNeeded, match="OSError"):
        env.step([0] * ROWS)
    env.reset()
    env.step([0] * ROWS)


def test_an_interruption_ends_the_rows_that_run(make: Any) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    env = make()
    env.reset(seed=0)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        env.step([0, HANG, HANG, 0])
    signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 30
    with pytest.raises(ew.ResetNeeded, match="KeyboardInterrupt"):
        env.step([0] * ROWS)
    env.reset()
    env.step([TOGETHER] * ROWS)


def test_a_row_that_does_not_heed_an_interruption_is_named(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(row_threads, "_ENDING_S", 0.05)
    env = make()
    env.reset(seed=0)
    deaf = env.envs[2].unwrapped
    deaf.close = lambda: None
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        env.step([0, 0, HANG, 0])
    signal.signal(signal.SIGALRM, before)
    with pytest.raises(ew.NotAvailable, match=r"rows \[2\]"):
        env.reset()
    del deaf.close
    deaf.close()
    until = time.monotonic() + 30
    while env._interrupted.running() and time.monotonic() < until:
        time.sleep(0.01)
    env.reset()


def test_more_rows_than_threads_are_all_called_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_threads, "MOST_AT_ONCE", 2)
    calls = {row: (lambda row=row: -row) for row in range(50)}
    results = RowThreads(calls).run(lambda row: None)
    assert list(results.items()) == [(row, -row) for row in range(50)]


def test_without_threads_rows_are_called_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert RowThreads({3: lambda: "a", 5: lambda: "b"}).run(lambda row: None) == {3: "a", 5: "b"}


def test_such_a_vector_is_copied_and_pickled(make: Any) -> None:
    env = make()
    env.reset(seed=0)
    for again in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        again.reset(seed=0)
        again.step([TOGETHER] * ROWS)


@pytest.mark.parametrize("backend", [None, "subprocess"])
@pytest.mark.parametrize("name", ["CodeAct", "Coding", "REPL"])
def test_programs_of_all_rows_wait_at_the_same_time(name: str, backend: str | None) -> None:
    needs("landlock")
    env = ew.make(f"envweave/{name}-v0", num_envs=8, backend=backend)
    env.reset(seed=0)
    started = time.monotonic()
    observations = env.step(["import time; time.sleep(0.5); print('done')"] * 8)[0]
    assert time.monotonic() - started < 3.0  # in turn they take more than four
    assert str(observations).count("done") >= 8
    env.close()
