"""Rows of a group play the same episodes, in whatever form and place a vector is made."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from native_vectors import expect_equal
from remote_worlds import url
from task_vectors import LINE, Make, make
from task_worlds import NUMBERED

import envweave_gym as ew
from envweave_gym import EventKind, InvalidArgument, stream_of

__all__ = ["make", "url"]
MODES = ["NextStep", "SameStep", "Disabled"]
FORMS = ["native", "singles", "sync", "async", "subprocess", "servers", "registry"]


def seeds(infos: dict[str, Any]) -> list[int | None]:
    """The seeds of the rows that have begun an episode."""
    starts = [
        one and [e for e in one.events if e.kind is EventKind.EPISODE_START] for one in stream_of(infos)
    ]
    return [one[0].data["seed"] if one else None for one in starts]


def together(values: list[Any], size: int) -> bool:
    """Whether the rows of each group of ``size`` have the same, and the groups do not."""
    groups = [values[first : first + size] for first in range(0, len(values), size)]
    return all(len(set(one)) == 1 for one in groups) and len({one[0] for one in groups}) == len(groups)


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_group_get_one_seed_at_every_reset(form: str, make: Make) -> None:
    env = make(form, 6, group=3)
    for given, expected in (
        (5, [5, 5, 5, 6, 6, 6]),
        ([9, 9, 9, 4, 4, 4], [9, 9, 9, 4, 4, 4]),
        ([7, 8], [7, 7, 7, 8, 8, 8]),
    ):
        observations, infos = env.reset(seed=given)
        assert seeds(infos) == expected
        assert (observations[:3] == observations[0]).all()
    drawn = [seeds(env.reset()[1]) for _ in range(3)]
    assert all(together(one, 3) for one in drawn)
    assert len({seed for one in drawn for seed in one}) == 6
    env.reset(seed=[7, 8])
    assert [seeds(env.reset()[1]) for _ in range(3)] == drawn


def test_every_form_draws_the_same_seeds_for_its_groups(make: Make) -> None:
    drawn = []
    for form in FORMS:
        env = make(form, 4, group=2)
        env.reset(seed=11)
        drawn.append([seeds(env.reset()[1]) for _ in range(2)])
    assert drawn == [drawn[0]] * len(FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_groups_that_were_given_no_seed_get_one_each(form: str, make: Make) -> None:
    assert together(seeds(make(form, 6, group=2).reset()[1]), 2)
    some = seeds(make(form, 4, group=2).reset(seed=[None, 3])[1])
    assert together(some, 2)
    assert some[2:] == [3, 3]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["singles", "sync", "async", "subprocess", "servers"])
def test_the_nth_episodes_of_a_group_are_the_same_whenever_they_come(
    form: str, mode: str, make: Make
) -> None:
    env = make(form, 6, group=2, autoreset_mode=mode)
    episodes: list[list[Any]] = [[seed] for seed in seeds(env.reset(seed=1)[1])]
    ends = np.random.default_rng(0).integers(0, 2, (12, 6))
    for actions in ends:
        _, _, terminated, _, infos = env.step(actions)
        if mode == "Disabled" and terminated[::2].any():
            odd = terminated & (np.arange(6) % 2 == 0)
            _, infos = env.reset(options={"reset_mask": odd})
            terminated &= ~odd
        if mode == "Disabled" and terminated.any():
            for row, seed in enumerate(seeds(infos)):
                episodes[row] += [seed] if seed is not None else []
            _, infos = env.reset(options={"reset_mask": terminated})
        for row, seed in enumerate(seeds(infos)):
            episodes[row] += [seed] if seed is not None else []
    assert min(map(len, episodes)) >= 3
    assert len({len(one) for one in episodes}) > 1
    for first, second in zip(episodes[::2], episodes[1::2], strict=True):
        alike = min(len(first), len(second))
        assert first[:alike] == second[:alike]
        assert len(set(first)) == len(first)
    assert together(seeds(env.reset()[1]), 2), "a reset of all brings them together"


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_native_groups_that_act_alike_play_alike(mode: str, make: Make) -> None:
    env = make("native", 6, group=3, autoreset_mode=mode)
    observations, _ = env.reset(seed=3)
    for _ in range(10):
        assert (observations.reshape(2, 3, 2) == observations[::3, None]).all()
        observations, _, terminated, truncated, _ = env.step(np.array([0, 0, 0, 1, 1, 1]))
        over = terminated | truncated
        if mode == "Disabled" and over.any():
            observations, infos = env.reset(options={"reset_mask": over})
            assert together([one for one in seeds(infos) if one is not None], 3)


@pytest.mark.parametrize("form", FORMS)
def test_groups_of_one_are_no_groups(form: str, make: Make) -> None:
    plain, single = make(form, 4), make(form, 4, group=1)
    expect_equal(single.reset(seed=8), plain.reset(seed=8))
    for actions in ([1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]):
        expect_equal(single.step(np.array(actions)), plain.step(np.array(actions)))
    expect_equal(single.reset(), plain.reset())


def test_a_copy_goes_on_drawing_the_same_groups(make: Make) -> None:
    env = make("native", 4, group=2)
    env.reset(seed=1)
    twin = copy.deepcopy(env)
    assert seeds(twin.reset()[1]) == seeds(env.reset()[1])


def test_a_copy_of_a_remote_vector_has_the_same_groups(make: Make) -> None:
    env = copy.deepcopy(make("servers", 4, group=2))
    assert seeds(env.reset(seed=1)[1]) == [1, 1, 2, 2]
    env.close()


def test_a_refused_reset_draws_nothing(make: Make) -> None:
    env, twin = make("singles", 4, group=2), make("singles", 4, group=2)
    env.reset(seed=1)
    twin.reset(seed=1)
    with pytest.raises(InvalidArgument, match="takes no option 'nonsense'"):
        env.reset(options={"nonsense": 1})
    assert seeds(env.reset()[1]) == seeds(twin.reset()[1])


@pytest.mark.parametrize("form", ["native", "singles", "servers"])
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            [1, 1, 2, 3],
            "rows 2 and 3 are of one group and were given the seeds 2 and 3; give a group one seed",
        ),
        ([1, None, 2, 2], "rows 0 and 1 are of one group and were given the seeds 1 and None"),
        ([1, 2, 3], "3 seeds were given; give one for each of 2 groups, or of 4 rows"),
        (2**64 - 1, r"has no 2 seeds from there on; row i takes seed \+ i // 2, up to"),
        (-1, "is not a seed"),
    ],
)
def test_seeds_that_do_not_fit_groups_are_refused(form: str, given: Any, why: str, make: Make) -> None:
    with pytest.raises(InvalidArgument, match=why):
        make(form, 4, group=2).reset(seed=given)


@pytest.mark.parametrize("form", ["native", "singles", "async", "subprocess", "servers", "registry"])
@pytest.mark.parametrize("group", [0, -2, 3, 8, True, 2.0, "2"])
def test_what_is_no_size_of_groups_is_refused(form: str, group: Any, make: Make) -> None:
    why = "is no size of groups; give an int from 1 on that divides num_envs=4"
    with pytest.raises(InvalidArgument, match=f"group={group!r} {why}"):
        make(form, 4, group=group)


def test_what_is_no_vector_has_no_groups() -> None:
    for makes, name in ((gym.make, LINE), (ew.make, LINE), (ew.make, "CartPole-v1"), (ew.make, NUMBERED)):
        with pytest.raises(InvalidArgument, match="group= is for vectors; give num_envs= too"):
            makes(name, group=2)
    with pytest.raises(InvalidArgument, match="group= is for vectors; give num_envs= too"):
        gym.make_vec(LINE, num_envs=2, group=2, vectorization_mode="sync")
    for refused in ({"group": 2}, {"group": 2, "num_envs": 2}):
        with pytest.raises(InvalidArgument, match=r"group=|takes no num_envs"):
            ew.make("envweave/KuhnPoker-v0", **refused)
    with pytest.raises(InvalidArgument, match="takes no argument 'group'"):
        pettingzoo.make("aec", "envweave/KuhnPoker-v0", group=2)


def test_a_foreign_id_has_groups_too() -> None:
    env = ew.make("CartPole-v1", num_envs=4, group=2)
    observations, _ = env.reset(seed=0)
    assert (observations[::2] == observations[1::2]).all()
    assert (observations[0] != observations[2]).any()
    env.close()
