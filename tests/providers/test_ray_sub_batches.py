"""Sub-batches of rows in Ray actors, stepped each at its own pace: over sockets, by calls, and by both."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray_clusters import cluster, gone
from ray_worlds import DEADLINES, DIE, NAP, NAPPER, PAINTER, expect_same

import envweave_gym as ew
from envweave_gym.core.faults import FaultKind
from envweave_gym.providers.ray import actor_connector
from envweave_gym.providers.ray.actor_calls import ActorTransport, channel_prefix
from envweave_gym.providers.ray.ray_replica import RayReplica
from envweave_gym.remote.address import Address
from envweave_gym.remote.transports.unix_sockets import connect_session
from envweave_gym.testing.traces import same
from envweave_gym.wire.messages import Create, Hello, Reset, encode

__all__ = ["cluster"]
COUNTER, LINE, ECHO = (f"envweave/{name}-v0" for name in ("Counter", "LineWorld", "Echo"))
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(params=["over sockets", "by calls", "by both"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How actors are reached: of those "by both" every second one has no socket."""
    turn = count()

    def some(address: str, hello: Hello, deadline: float) -> Any:
        if request.param == "by calls" or next(turn) % 2 == 0:
            raise ConnectionRefusedError
        return connect_session(address, hello, deadline)

    if request.param != "over sockets":
        monkeypatch.setattr(actor_connector, "connect_session", some)


def rows(size: int, actors: int, env_id: str = NAPPER, **kwargs: Any) -> Any:
    kwargs |= {"num_envs": size, "backend": "ray", "replicas": actors}
    return ew.make(env_id, **DEADLINES, **kwargs).unwrapped


@pytest.mark.usefixtures("way")
def test_ready_rows_are_received_while_one_is_slow() -> None:
    env = rows(6, 3)
    env.reset(seed=0)
    started = time.monotonic()
    env.send(np.array([NAP, 0, 0, 0, 0, 0]))
    ready: list[int] = []
    while len(ready) < 4:
        seen, rewards, _, _, infos = env.recv(min_ready=2)
        ready += infos["env_id"].tolist()
        assert rewards.tolist() == [1.0] * len(rewards) == [1.0] * len(seen)
    fast = time.monotonic() - started
    assert sorted(ready) == [2, 3, 4, 5]
    env.send(np.zeros(2, np.int64), [2, 3])
    assert env.recv(min_ready=2)[4]["env_id"].tolist() == [2, 3]
    seen, rewards, _, _, infos = env.recv()
    assert infos["env_id"].tolist() == [0, 1]
    assert seen[:, 0].tolist() == [1, 1]
    assert fast < 0.5 < time.monotonic() - started
    assert env.step(np.zeros(6, np.int64))[1].tolist() == [2, 2, 3, 3, 2, 2]
    env.close()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("env_id", [LINE, COUNTER, ECHO])
def test_steps_of_sub_batches_are_those_of_the_whole(env_id: str, mode: str) -> None:
    kwargs: dict[str, Any] = {"autoreset_mode": mode, "max_steps": 4}
    here = gym.make_vec(env_id, num_envs=6, **kwargs)
    there = rows(6, 2, env_id, sub_batches=2, **kwargs)
    there.action_space.seed(0)
    assert same(here.reset(seed=4)[0], there.reset(seed=4)[0])
    for turn in range(15):
        actions = there.action_space.sample()
        mine = here.step(actions)
        there.send(actions)
        seen: list[int] = []
        while len(seen) < 6:
            theirs = there.recv(1)
            ids = theirs[4]["env_id"]
            for place, row in enumerate(ids.tolist()):
                for one, other in zip(mine[1:4], theirs[1:4], strict=True):
                    assert one[row] == other[place], (turn, row)
                assert mine[4]["stream"][row] == theirs[4]["stream"][place]
                assert mine[4]["seq"][row] == theirs[4]["seq"][place]
            seen += ids.tolist()
        assert sorted(seen) == list(range(6))
        if mode == "Disabled" and (mine[2] | mine[3]).any():
            with pytest.raises(ew.ResetNeeded, match=r"after the episodes of rows .* ended"):
                there.send(actions)
            break
    there.close()


@pytest.mark.usefixtures("way")
def test_a_sub_batch_that_is_lost_while_it_is_under_way_is_a_fault_of_its_rows() -> None:
    env = rows(4, 2)
    begun = env.reset(seed=0)[0]
    env.send(np.array([0, DIE, 0, 0]))
    reported: dict[int, Any] = {}
    while len(reported) < 4:
        seen, rewards, _, truncated, infos = env.recv(1)
        for place, row in enumerate(infos["env_id"].tolist()):
            fault = infos["fault"][place] if "fault" in infos else None
            reported[row] = seen[place].tolist(), rewards[place], bool(truncated[place]), fault
    assert [reported[row][:3] for row in (0, 1)] == [(begun[row].tolist(), 0.0, True) for row in (0, 1)]
    assert [reported[row][3].kind for row in (0, 1)] == [FaultKind.LOST] * 2
    assert [reported[row][1:] for row in (2, 3)] == [(1.0, False, None)] * 2
    env.send(np.zeros(2, np.int64), [1, 0])
    seen, rewards, *_ = env.recv()
    assert (seen[:, 0].tolist(), rewards.tolist()) == ([0, 0], [0.0, 0.0])
    env.close()


def test_a_reset_waits_for_what_is_under_way_and_begins_anew() -> None:
    env = rows(4, 2)
    env.reset(seed=0)
    env.send(np.array([NAP, 0, 0, 0]))
    assert env.reset(seed=0)[0][:, 0].tolist() == [0] * 4
    assert env.step(np.zeros(4, np.int64))[1].tolist() == [1.0] * 4
    env.close()


@pytest.mark.usefixtures("way")
def test_large_observations_are_those_of_here_and_may_be_written_to() -> None:
    for actors in (1, 2):
        here, there = ew.make(PAINTER, num_envs=8), rows(8, actors, PAINTER)
        first = there.reset(seed=0)[0]
        assert same(here.reset(seed=0)[0], first)
        kept = first.copy()
        for _ in range(3):
            mine, theirs = here.step(np.zeros(8, np.int64)), there.step(np.zeros(8, np.int64))
            expect_same(mine, theirs)
            theirs[0][:] = 0
        assert same(first, kept)
        there.send(np.zeros(8, np.int64))
        part = there.recv(1)[0]
        part[:] = 0
        there.close()


@pytest.mark.parametrize(("side", "is_mapped"), [(1100, True), (200, False)])
def test_a_reply_of_a_megabyte_to_a_call_is_memory_shared_with_the_actor_and_no_copy(
    side: int, is_mapped: bool
) -> None:
    replica = RayReplica()
    channel = channel_prefix("shared", "call")
    transport = ActorTransport(Address.of(PAINTER, replica.url), channel, time.monotonic() + 20)
    for call in (Create(PAINTER, kwargs={"side": side}), Reset(1, seed=0)):
        transport.send(encode(call), time.monotonic() + 20)
        reply = transport.receive(time.monotonic() + 20)
    assert len(reply) > side * side
    assert isinstance(reply, np.ndarray) is is_mapped
    if is_mapped:
        assert (reply.flags.owndata, reply.flags.writeable) == (False, False)
        assert "plasma" in mapping_of(reply.ctypes.data)
    transport.close()
    replica.stop()


def mapping_of(address: int) -> str:
    """The file that is mapped at an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return line.partition("/")[2]
    raise AssertionError(hex(address))


def test_open_calls_are_dropped_when_the_vector_is_closed() -> None:
    env = rows(4, 2)
    env.reset(seed=0)
    env.send(np.zeros(4, np.int64))
    env.close()
    with pytest.raises(ew.ResetNeeded, match=r"recv\(\) was called with no step under way"):
        env.recv()


def test_misuse_of_sub_batches_is_one_sentence() -> None:
    env = rows(4, 2)
    acts = np.zeros(4, np.int64)
    with pytest.raises(ew.ResetNeeded, match=r"step\(\) was called before reset\(\)"):
        env.send(acts)
    env.reset(seed=0)
    with pytest.raises(
        ew.ResetNeeded, match=r"recv\(\) was called with no step under way; call send\(\) first"
    ):
        env.recv()
    with pytest.raises(ew.InvalidArgument, match=r"env_id= names a part of the sub-batch of rows 0 to 1"):
        env.send(acts[:1], [0])
    for wrong in ([], [4, 5], [0, 0], [-1, 0], "all", [0.5]):
        with pytest.raises(ew.InvalidArgument, match="are no rows; give those that recv"):
            env.send(acts[:2], wrong)
    for wrong in (np.zeros(3, np.int64), np.full(2, 9), None, ["a", "b"]):
        with pytest.raises(ew.InvalidAction, match="Napper"):
            env.send(wrong, [0, 1])
    env.send(acts[:2], [0, 1])
    with pytest.raises(ew.ResetNeeded, match="rows 0 to 1 is under way; call recv"):
        env.send(acts)
    with pytest.raises(ew.ResetNeeded, match="steps of 1 sub-batches are under way; call recv"):
        env.step(acts)
    with pytest.raises(ew.InvalidArgument, match=r"min_ready=0 .* rows"):
        env.recv(0)
    assert env.recv(4)[4]["env_id"].tolist() == [0, 1]
    with pytest.raises(ew.InvalidArgument, match="sub_batches=0"):
        rows(4, 2, LINE, sub_batches=0)
    env.close()
    assert gone()
