"""``backend="docker"`` and ``docker://``: containers that are started when they are needed, and shared."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from absent import absent
from engines import CORE, client, ours

import envweave_gym as ew

__all__ = ["client"]
COUNTER, LINE, KUHN = "envweave/Counter-v0", "envweave/LineWorld-v0", "envweave/KuhnPoker-v0"


def names(client: Any) -> set[str]:
    return {container.name for container in ours(client)}


def images(client: Any) -> list[str]:
    return sorted(container.attrs["Config"]["Image"] for container in ours(client))


def test_environments_that_ask_for_the_same_share_a_container_until_all_are_closed(client: Any) -> None:
    before = names(client)
    first, second = (gym.make(COUNTER, backend="docker") for _ in range(2))
    (name,) = names(client) - before
    first.reset(seed=1)
    second.reset(seed=1)
    first.close()
    assert names(client) - before == {name}
    assert second.step({"delta": 1})[3] is False
    second.close()
    assert name not in names(client)


def test_one_that_was_closed_may_be_reset_again(client: Any) -> None:
    env = gym.make(COUNTER, backend="docker")
    begun = env.reset(seed=1)[0]
    env.close()
    assert env.reset(seed=1)[0] == begun
    env.close()


def test_each_id_is_in_its_image_unless_another_is_named(client: Any) -> None:
    line = gym.make(LINE, backend="docker")
    core = gym.make(LINE, backend="docker", image=CORE, memory="256m")
    assert {"envweave-lineworld", CORE} <= set(images(client))
    line.close()
    core.close()


def test_rows_are_spread_over_replicas(client: Any) -> None:
    before = names(client)
    there = gym.make_vec(LINE, num_envs=6, backend="docker", replicas=2)
    assert len(names(client) - before) == 2
    here = gym.make_vec(LINE, num_envs=6)
    for env in (here, there):
        env.reset(seed=3)
    for _ in range(5):
        one, other = here.step(np.ones(6, np.int64)), there.step(np.ones(6, np.int64))
        assert np.array_equal(one[0], other[0])
    there.close()
    assert not names(client) - before


def test_games_and_names_with_a_scheme_run_there_too(client: Any) -> None:
    game = ew.make(KUHN, backend="docker")
    assert any(info["active"] for info in game.reset(seed=1)[1].values())
    game.close()
    only = ew.make("docker://envweave-echo")
    assert only.reset(seed=0)[0] == "Echo environment ready!"
    only.close()
    named = ew.make(f"docker://{CORE}:latest#{COUNTER}", target=3)
    assert ew.state_of(named)["target"] == 3 if named.reset(seed=0) else False
    named.close()


def test_a_pickle_starts_a_container_of_its_own_where_there_is_none(client: Any) -> None:
    env = gym.make(COUNTER, backend="docker")
    packed = pickle.dumps(env)
    assert b"http" not in packed.replace(b"https", b"")
    env.close()
    again = pickle.loads(packed)
    again.reset(seed=1)
    again.close()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"replicas": 0}, f"{COUNTER}: replicas=0 is no number of containers from 1 to 256"),
        ({"memory": "much"}, f"{COUNTER}: memory='much' is no size"),
        ({"image": 3}, f"{COUNTER} has image=3; name the image whose server has it"),
        ({"image": "no image"}, f"{COUNTER}: image='no image' names no image; give one like"),
        ({"colour": 3}, f"{COUNTER} takes no argument 'colour'"),
    ],
)
def test_options_that_are_none_are_refused(given: dict[str, Any], sentence: str, client: Any) -> None:
    before = names(client)
    with pytest.raises(ew.InvalidArgument, match=sentence):
        gym.make(COUNTER, backend="docker", **given)
    assert names(client) <= before


def test_the_core_image_adds_at_most_120_megabytes_to_that_of_python(client: Any) -> None:
    from docker.errors import NotFound

    try:
        core, base = client.images.get(CORE), client.images.get("python:3.11-slim")
    except NotFound:
        absent("python:3.11-slim is not on this machine", "docker pull python:3.11-slim")
    assert core.attrs["Size"] - base.attrs["Size"] <= 120e6


def test_an_id_in_no_image_asks_for_one() -> None:
    with pytest.raises(ew.InvalidArgument, match="CartPole-v1 is in no image that is known; name the image"):
        ew.make("CartPole-v1", backend="docker")
    with pytest.raises(ew.InvalidArgument, match="the name says where it runs; leave backend= out"):
        ew.make("docker://envweave-core", backend="subprocess")
