"""``backend="ray"`` on a cluster of three nodes: as in this process, and with nodes and actors that die."""

from __future__ import annotations

import pickle
import time
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray_clusters import actors_alive, add_node, cluster, gone
from ray_worlds import DEADLINES, DIE, LENGTH, NAPPER, expect_same
from remote_tables import OURS, expect_same_rounds, expect_same_turns
from values_returned import expect_all_values

import envweave_gym as ew
from envweave_gym.core.faults import FaultKind
from envweave_gym.net.framed_socket import connect
from envweave_gym.providers.parallel import start_all, stop_all
from envweave_gym.providers.ray.actor_calls import actor_at, actor_name
from envweave_gym.providers.ray.actor_vector import RayVectorEnv
from envweave_gym.providers.ray.placement import Placement
from envweave_gym.providers.ray.ray_replica import RayReplica
from envweave_gym.testing.traces import same
from envweave_gym.wire.messages import socket_of_actor

__all__ = ["cluster"]
COUNTER, LINE, ECHO = (f"envweave/{name}-v0" for name in ("Counter", "LineWorld", "Echo"))
pytestmark = pytest.mark.usefixtures("cluster")


def refused(*_: Any) -> Any:
    raise ConnectionRefusedError


def streams(infos: Any, rows: int) -> list[Any]:
    return [infos["stream"][row] for row in range(rows)]


def nodes_of(replicas: list[RayReplica]) -> set[str]:
    """The nodes that the actors are on, by the resource that each has."""
    import ray

    where = [one.node for one in replicas]
    return {place for node in ray.nodes() for place in node["Resources"] if node["NodeID"] in where}


# As in this process


def test_actors_return_values() -> None:
    expect_all_values("ray")


@pytest.mark.parametrize("env_id", [COUNTER, ECHO])
def test_an_environment_plays_as_it_does_here(env_id: str) -> None:
    here, there = gym.make(env_id), gym.make(env_id, backend="ray")
    there.action_space.seed(0)
    assert same(here.reset(seed=4), there.reset(seed=4))
    for _ in range(30):
        action = there.action_space.sample()
        mine, theirs = here.step(action), there.step(action)
        assert same(mine, theirs)
        if mine[2] or mine[3]:
            assert same(here.reset(), there.reset())
    there.close()
    assert gone()


@pytest.mark.parametrize("by_calls", [False, True])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("env_id", [LINE, COUNTER, ECHO])
def test_rows_over_actors_play_as_they_do_here(
    env_id: str, mode: str, by_calls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_calls:
        monkeypatch.setattr("envweave_gym.providers.ray.actor_connector.connect_session", refused)
    kwargs: dict[str, Any] = {"num_envs": 7, "autoreset_mode": mode, "max_steps": 5}
    here, there = gym.make_vec(env_id, **kwargs), gym.make_vec(env_id, **kwargs, backend="ray", replicas=3)
    assert isinstance(there.unwrapped, RayVectorEnv)
    there.action_space.seed(0)
    assert same(here.reset(seed=4)[0], there.reset(seed=4)[0])
    for _ in range(20):
        actions = there.action_space.sample()
        mine, theirs = here.step(actions), there.step(actions)
        expect_same(mine, theirs)
        assert streams(mine[4], 7) == streams(theirs[4], 7)
    there.close()


@pytest.mark.parametrize("env_id", OURS)
def test_games_play_as_they_do_here(env_id: str) -> None:
    for api, play in (("aec", expect_same_turns), ("parallel", None)):
        here, there = ew.make(env_id, api=api), ew.make(env_id, api=api, backend="ray")
        begun = here.reset(seed=3), there.reset(seed=3)
        play(here, there) if play else expect_same_rounds(here, there, begun)
        there.close()


def test_a_name_with_the_url_of_an_actor_and_a_list_of_them_are_backends() -> None:
    replicas = [RayReplica(ids=[COUNTER]), RayReplica(ids=[COUNTER])]
    try:
        only = ew.make(f"{replicas[0].url}#{COUNTER}", target=3)
        only.reset(seed=0)
        assert ew.state_of(only)["target"] == 3
        rows = gym.make_vec(COUNTER, num_envs=4, backend=[one.url for one in replicas])
        assert rows.reset(seed=0)[0]["count"].shape == (4,)
        with pytest.raises(ew.UnknownEnvironment, match="is not served here"):
            gym.make(ECHO, backend=replicas[0].url)
    finally:
        for one in replicas:
            one.stop()
    assert not actors_alive()


def test_pickles_of_environments_play_on_in_actors_of_whoever_reads_them() -> None:
    env = gym.make(COUNTER, backend="ray")
    rows = gym.make_vec(LINE, num_envs=4, backend="ray", replicas=2, sub_batches=2)
    for one in (env, rows):
        again = pickle.loads(pickle.dumps(one))
        assert same(again.reset(seed=1)[0], one.reset(seed=1)[0])
        assert again.unwrapped.__class__ is one.unwrapped.__class__
        again.close()
    env.close()
    rows.close()
    assert gone()


# Where actors are


def test_actors_spread_over_the_nodes_and_go_where_their_resource_is() -> None:
    import ray

    here = ray.get_runtime_context().get_node_id()
    spread, packed = Placement(), Placement(placement=f"node:{here}", num_cpus=0)
    left = Placement(resources={"left": 1}, num_cpus=0)
    wanted = [spread] * 3 + [packed] * 2 + [left] * 2
    there = start_all([partial(RayReplica, placement) for placement in wanted])
    of = {where.placement: [one for one in there if one._placement is where] for where in (spread, packed)}
    try:
        assert len(nodes_of(of["SPREAD"]) & {"head", "left", "right"}) >= 2
        assert {one.node for one in of[packed.placement]} == {here}
        assert nodes_of([one for one in there if one._placement is left]) & {"head", "left", "right"} == {
            "left"
        }
    finally:
        stop_all(there)


def worker_with_an_actor(cluster: Any, env: Any) -> tuple[Any, str]:
    """A node that may die and is missed, and the resource that it has."""
    import ray

    actors = [actor_at(ray, shard.address.url, time.monotonic() + 20) for shard in env.unwrapped._shards]
    used = {node for _, node in ray.get([actor.ready.remote() for actor in actors])}
    used.discard(ray.get_runtime_context().get_node_id())
    places = {place for node in ray.nodes() if node["NodeID"] in used for place in node["Resources"]}
    for node in cluster.worker_nodes:
        (place,) = set(node._ray_params.resources) & {"left", "right"}
        if place in places:
            return node, place
    raise AssertionError(f"all actors are on the first node: {places}")


# Losses


def test_an_actor_that_dies_is_replaced_and_what_was_played_in_it_is_a_fault() -> None:
    env = ew.make(NAPPER, backend="ray", **DEADLINES)
    before = env.reset(seed=0)[0]
    seen, reward, terminated, truncated, info = env.step(DIE)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["fault"].kind is FaultKind.LOST
    assert same(seen, before)
    after = env.reset()[0]
    assert after[0] == 0
    assert after[1] != before[1]
    assert env.step(0)[1] == 1.0
    env.close()
    assert gone()


def test_rows_of_an_actor_that_was_killed_for_good_end_and_the_others_go_on() -> None:
    import ray

    env = ew.make(NAPPER, num_envs=4, backend="ray", replicas=2, **DEADLINES)
    begun = env.reset(seed=0)[0]
    group = env.unwrapped._shards[0]
    ray.kill(actor_at(ray, group.address.url, time.monotonic() + 20))
    with suppress(ConnectionRefusedError):
        while True:
            connect(socket_of_actor(actor_name(group.address.url)), time.monotonic() + 1).close()
            time.sleep(0.01)
    seen, rewards, _, truncated, infos = env.step(np.zeros(4, np.int64))
    assert truncated.tolist() == [True, True, False, False]
    assert rewards.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert same(seen[:2], begun[:2])
    assert all(infos["fault"][:2])
    assert infos["_fault"].tolist() == [True, True, False, False]
    seen, rewards, *_ = env.step(np.zeros(4, np.int64))
    assert rewards.tolist() == [0.0, 0.0, 2.0, 2.0]
    assert seen[:, 0].tolist() == [0, 0, 2, 2]
    assert set(seen[:2, 1]).isdisjoint(begun[:, 1])
    env.close()


@pytest.mark.slow
def test_a_rollout_goes_on_when_a_node_is_removed_in_the_middle(cluster: Any) -> None:
    env = ew.make(NAPPER, num_envs=6, backend="ray", replicas=3, **DEADLINES)
    begun = env.reset(seed=0)[0]
    taken, owners = np.zeros(6), begun[:, 1]
    lost, since, place, until = 0, 0, "", time.monotonic() + 60
    for turn in count():
        if turn == 10:
            doomed, place = worker_with_an_actor(cluster, env)
            cluster.remove_node(doomed, allow_graceful=False)
        waiting, started = env.unwrapped._record.over.copy(), time.monotonic()
        seen, rewards, terminated, truncated, infos = env.step(np.zeros(6, np.int64))
        assert time.monotonic() - started < 30
        faulty = infos.get("_fault", np.zeros(6, np.bool_))
        assert (truncated == faulty).all(), "every loss is a fault, and every fault ends an episode"
        on = ~waiting & ~faulty
        assert (seen[on, 0] == taken[on] + 1).all()
        assert (seen[on, 1] == owners[on]).all(), "an episode goes on in the process it began in"
        assert (terminated == (on & (seen[:, 0] == LENGTH))).all()
        assert (rewards == np.where(on, taken + 1, 0)).all()
        assert (seen[faulty, 0] == taken[faulty]).all()
        taken, owners = seen[:, 0].copy(), np.where(waiting, seen[:, 1], owners)
        lost, since = lost + int(faulty.sum()), since + bool(lost)
        if since > 10:
            break
        assert time.monotonic() < until, "the loss of a node is noticed"
    assert lost in (2, 4, 6)
    env.close()
    assert gone()
    add_node(cluster, place)


# Bad input


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"num_cpus": -1}, "num_cpus=-1 .* 0"),
        ({"num_gpus": "all"}, "num_gpus='all' .* 0"),
        ({"resources": ["left"]}, r"resources=\['left'\] is not a dict"),
        ({"placement": "TIGHT"}, "placement='TIGHT' is unknown; there are 'SPREAD'"),
        ({"runtime_env": "pip"}, "runtime_env='pip' is not a dict"),
        ({"ray_address": 7}, "ray_address=7 is not 'host:port'"),
        ({"ray_address": "127.0.0.1:9"}, "is not the cluster that this process is part of"),
        ({"replicas": 0}, "replicas=0 is no number of replicas"),
        ({"patience": 0}, "patience=0 is no number of seconds above 0"),
        ({"nodes": 3}, "nodes"),
    ],
)
def test_bad_options_are_one_sentence_and_leave_nothing_running(
    options: dict[str, Any], reported: str
) -> None:
    with pytest.raises(ew.InvalidArgument, match=reported):
        gym.make(COUNTER, backend="ray", **options)
    assert gone()


def test_an_actor_that_finds_no_room_says_what_it_asked_for_and_what_there_is() -> None:
    with pytest.raises(
        ew.NotAvailable, match=r"asks for 1 CPU, 2 gold on one node and finds no room within 1 s; .* 6 CPU"
    ):
        RayReplica(Placement(resources={"gold": 2}), patience=1.0)
    with pytest.raises(ew.NotAvailable, match=r"finds no room within 0.5 s"):
        gym.make(COUNTER, backend="ray", resources={"gold": 2}, patience=0.5)
    assert gone()


def test_a_node_without_what_serves_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from envweave_gym.providers.ray import ray_replica as provider

    monkeypatch.setattr(provider, "SERVER", "envweave_gym_nowhere")
    with pytest.raises(ew.NotAvailable, match=r"the node has no envweave-gym that can serve .*install"):
        RayReplica()
    assert gone()


def test_an_unknown_actor_is_a_loss() -> None:
    with pytest.raises((ConnectionError, ew.NotAvailable), match="is no actor of the cluster"):
        gym.make(COUNTER, backend="ray+actor://envweave/nobody", call_deadline=2.0)


def test_logs_are_what_the_actor_has_written() -> None:
    replica = RayReplica()
    assert "Actor" in replica.logs()
    replica.stop()
    assert replica.logs() == ""
