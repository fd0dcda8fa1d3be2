"""Resets without a seed of environments of other packages: the first carries one, later ones do not."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import seeded_envs
from json_clients import JsonClient
from servers import until

import envweave_gym as ew
from envweave_gym import InvalidArgument, stream_of
from envweave_gym.providers.subprocess import private_server

SINGLE, GAME = seeded_envs.SINGLE, seeded_envs.GAME
BACKENDS = ("inproc", "subprocess")

pytestmark = pytest.mark.usefixtures("registries")


@pytest.fixture(autouse=True)
def registered(registries: None) -> None:
    seeded_envs.register()


def episode(env: Any, **kwargs: Any) -> tuple[Any, Any, int]:
    """The seed that the stream tells, the one that reached the environment, and what was observed."""
    observation, info = env.reset(**kwargs)
    event = next(iter(stream_of(info).events))
    assert event.kind == "episode_start"
    return event.data["seed"], info["given"], int(observation)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_first_reset_without_a_seed_gets_one(backend: str):
    env = ew.make(SINGLE, backend=backend)
    reported, given, _ = episode(env)
    assert reported == given >= 0
    assert episode(env)[:2] == (None, -1)
    assert episode(env, seed=5)[:2] == (5, 5)
    assert episode(env)[:2] == (None, -1)
    env.close()


def test_the_same_episodes_follow_a_seed_on_every_backend():
    seen: list[Any] = []
    for backend in BACKENDS:
        env = ew.make(SINGLE, backend=backend)
        seen.append([episode(env, seed=3)[2], *(episode(env)[2] for _ in range(4))])
        env.close()
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_reproducible_seeds_every_reset_with_the_seeds_that_our_ids_draw(backend: str):
    env, ours = ew.make(SINGLE, backend=backend, reproducible=True), ew.make("envweave/Counter-v0")
    seeds = [episode(env, seed=7)[1], *(episode(env)[1] for _ in range(3))]
    drawn = [stream_of(ours.reset(seed=seed)[1]).events[0].data["seed"] for seed in (7, None, None, None)]
    assert seeds == drawn
    env.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", [{}, {"autoreset_mode": "SameStep"}, {"vectorization_mode": "sync"}])
def test_rows_that_reset_themselves_get_no_seed(backend: str, how: dict[str, Any]):
    env = ew.make(SINGLE, num_envs=2, backend=backend, **how)
    _, infos = env.reset(seed=[3, 4])
    assert infos["given"].tolist() == [3, 4]
    reported = [env.step(np.array([1, 1])) for _ in range(2)]  # an episode has one step
    infos = reported[0][4] if "autoreset_mode" in how else reported[1][4]
    assert infos["given"].tolist() == [-1, -1]
    assert [one.events[-1].data.get("seed", 0) for one in stream_of(infos)] == [None, None]
    env.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_group_are_seeded_as_they_play_the_same_episodes(backend: str):
    env = ew.make(SINGLE, num_envs=4, group=2, backend=backend)
    env.reset(seed=3)
    for _ in range(3):
        env.step(np.array([0, 1, 0, 1]))
        given = env.step(np.zeros(4, np.int64))[4]["given"].tolist()
        assert given[0] == given[1] >= 0
        assert given[2] == given[3] >= 0
    env.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("api", ["aec", "parallel"])
def test_games_get_no_seed_either_after_the_first_reset(backend: str, api: Any):
    env = ew.make(GAME, api=api, backend=backend)
    seeds: list[Any] = []
    for seed in (2, None):
        env.reset(seed=seed)
        seeds.append((env.record.events[0].data["seed"], ew.state_of(env)["given"]))
    assert seeds == [(2, 2), (None, -1)]
    again = ew.make(GAME, api=api, backend=backend, reproducible=True)
    again.reset(seed=2)
    again.reset()
    assert again.record.events[0].data["seed"] == ew.state_of(again)["given"] >= 0
    again.close()
    env.close()


def test_a_new_session_after_a_loss_gets_the_seed_that_it_says():
    env, rows = ew.make(SINGLE, backend="subprocess"), ew.make(SINGLE, num_envs=2, backend="subprocess")
    env.reset(seed=1)
    rows.reset(seed=1)
    pid = private_server().pid
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    until(lambda: private_server().pid is None)
    assert "fault" in env.step(1)[4]
    assert "fault" in rows.step(np.array([1, 1]))[4]
    reported, given, _ = episode(env)
    assert reported == given >= 0
    assert episode(env)[:2] == (None, -1)
    infos = rows.step(np.array([1, 1]))[4]
    assert [one.events[0].data["seed"] for one in stream_of(infos)] == infos["given"].tolist()
    assert min(infos["given"]) >= 0
    env.close()
    rows.close()


def test_a_reset_that_failed_is_no_first_one():
    env = ew.make(SINGLE, fails=1)
    with pytest.raises(RuntimeError):
        env.reset()
    reported, given, _ = episode(env)
    assert reported == given >= 0


def test_clients_of_a_server_may_ask_for_seeds():
    client = JsonClient(SINGLE)
    for kwargs, seeded in (({}, False), ({"reproducible": True}, True)):
        session = client.open(SINGLE, kwargs=kwargs)
        client.post(f"{session}/reset", {"seed": 1})
        began = client.post(f"{session}/reset", {})
        assert (began["info"]["given"] >= 0) == seeded


def test_an_unknown_argument_is_one_sentence():
    for name in (SINGLE, GAME, "envweave/Counter-v0"):
        with pytest.raises(InvalidArgument, match="reproducible='yes' is not True or False"):
            ew.make(name, reproducible="yes")
    with pytest.raises(InvalidArgument, match="seeds every reset"):
        ew.make("envweave/Counter-v0", reproducible=False)
    for backend in BACKENDS:
        with pytest.raises(InvalidArgument, match="group=2 needs seeds"):
            ew.make(SINGLE, num_envs=2, group=2, reproducible=False, backend=backend)
    assert ew.make("envweave/Counter-v0", reproducible=True).reset(seed=1)
