"""Rows of a group play the same episodes, in whatever form and place a vector is made."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from native_vectors import expect_equal
from remote_worlds import kill, mortal, url
from task_vectors import LINE, Make, make
from task_worlds import NUMBERED, STUMBLER

import envweave_gym as ew
from envweave_gym import EventKind, InvalidArgument, stream_of
from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.remote.vector import RemoteVectorEnv

__all__ = ["make", "mortal", "url"]
GSM8K = "envweave/GSM8K-v0"
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


# Groups that lose a row


def masked(infos: dict[str, Any], mode: str) -> list[bool]:
    """Which rows tell of a fault in this step."""
    reported = infos["final_info"] if mode == "SameStep" else infos
    return [isinstance(one, ew.Fault) for one in reported.get("fault", [None] * 6)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["singles", "sync", "async", "subprocess", "servers"])
def test_a_lost_row_ends_its_group_which_begins_again_as_one(form: str, mode: str, make: Make) -> None:
    env = make(form, 6, task=STUMBLER, group=3, autoreset_mode=mode, on_fault="truncate")
    calm, stumble = np.zeros(6, np.int64), np.array([0, 1, 0, 0, 0, 0])
    hit, others = np.arange(6) < 3, np.arange(6) >= 3
    env.reset(seed=1)
    env.step(calm)
    _, rewards, terminated, truncated, infos = env.step(stumble)
    assert truncated.tolist() == hit.tolist()
    assert not terminated.any()
    assert rewards.tolist() == [1, 0, 1, 1, 1, 1]
    assert masked(infos, mode) == hit.tolist()
    assert ew.trainable(infos).tolist() == others.tolist()
    ended = infos["final_info"]["stream"] if mode == "SameStep" else infos["stream"]
    for row in range(3):
        assert ended[row].requests[0].kind == "reset"
        assert [event.kind for event in ended[row].events[-2:]] == ["fault", "episode_end"]
        assert ended[row].events[-1].seq == (infos["final_info"] if mode == "SameStep" else infos)["seq"][row]
    if mode == "Disabled":
        with pytest.raises(ew.ResetNeeded, match=r"rows \[0, 1, 2\]"):
            env.step(calm)
        observations, infos = env.reset(options={"reset_mask": truncated})
    elif mode == "NextStep":
        observations, rewards, terminated, truncated, infos = env.step(calm)
        assert rewards.tolist() == [0, 0, 0, 1, 1, 1]
        assert (terminated.tolist(), truncated.any()) == (others.tolist(), False)
    else:
        observations, *_, infos = env.step(calm)
    begun = seeds(infos)[:3]
    assert mode == "SameStep" or len({*begun, None}) == 2
    assert (observations[:3] == observations[0]).all()
    for _ in range(12):
        observations, _, terminated, truncated, infos = env.step(calm)
        assert (observations.reshape(2, 3, 2) == observations[::3, None]).all()
        assert len(set(terminated[:3].tolist())) == len(set(terminated[3:].tolist())) == 1
        if mode == "Disabled" and terminated.any():
            env.reset(options={"reset_mask": terminated})


@pytest.mark.parametrize("moment", [0, 1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_a_group_over_two_servers_stays_together_when_one_is_killed(
    mode: str, moment: int, url: str, mortal: PrivateServer
) -> None:
    env = RemoteVectorEnv(STUMBLER, [url, mortal.url], num_envs=8, group=8, autoreset_mode=mode)
    calm, losses = np.zeros(8, np.int64), 0
    _, infos = env.reset(seed=1)
    for step in range(16):
        if step == moment:
            kill(mortal)
        observations, _, terminated, truncated, infos = env.step(calm)
        over = terminated | truncated
        assert len(set(over.tolist())) == 1, f"step {step}"
        losses += truncated.any()
        if mode == "Disabled" and over.any():
            observations, infos = env.reset(options={"reset_mask": over})
        if mode != "NextStep" or not over.any():  # a lost row shows what it saw last
            assert (observations == observations[0]).all(), f"step {step}"
            assert len(set(seeds(infos))) == 1
    assert losses == 1
    env.close()


def test_healthy_rows_play_on_in_step_while_a_server_stays_away(url: str) -> None:
    lost = PrivateServer()
    deadlines = {"reset_deadline": 0.2, "call_deadline": 1.0}
    env = RemoteVectorEnv(STUMBLER, [url, lost.url], num_envs=4, group=4, max_steps=1, **deadlines)
    env.reset(seed=1)
    lost.stop()
    for _ in range(3):
        *_, rewards, terminated, truncated, infos = env.step(np.zeros(4, np.int64))
        assert rewards.tolist() == [1, 1, 0, 0]
        assert (terminated | truncated).all()
        assert ew.trainable(infos).tolist() == [True, True, False, False]
        _, rewards, terminated, truncated, _ = env.step(np.zeros(4, np.int64))
        assert not np.any([rewards, terminated, truncated])
    env.close()


def test_the_loop_in_the_docs_masks_what_was_lost_and_goes_on(url: str, mortal: PrivateServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    [code] = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def collect" in one]
    loop: dict[str, Any] = {"envweave_gym": ew}
    exec(code.partition("\ndraws")[0], loop)
    rows = RemoteVectorEnv(GSM8K, [url, mortal.url], num_envs=8, group=4, dataset="synthetic")
    mortal.ensure()

    def policy(questions: Any) -> list[str]:
        if update == 1:
            kill(mortal)
        return [f"#### {row}" for row, _ in enumerate(questions)]

    for update in range(3):
        tasks, returns, whole = loop["collect"](rows, policy)
        assert together(tasks.tolist(), 4)
        assert whole.tolist() == [True] * 4 + [update != 1] * 4
        better = loop["advantages"](np.array([1] * 4 + [2] * 4), np.arange(8.0), whole)
        assert np.allclose(better[4:], better[:4] if update != 1 else 0)
        assert (better[:4] > 0).tolist() == [False, False, True, True]
        assert not returns[~whole].any()
    rows.close()


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
def test_an_invalid_size_of_groups_is_refused(form: str, group: Any, make: Make) -> None:
    why = "is no size of groups; give an int from 1 on that divides num_envs=4"
    with pytest.raises(InvalidArgument, match=f"group={group!r} {why}"):
        make(form, 4, group=group)


def test_a_single_environment_has_no_groups() -> None:
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
