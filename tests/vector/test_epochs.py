"""An epoch meets each task once, and vectors give each row options of its own, in every form and place."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from offset_vector import Offset
from remote_worlds import url
from task_vectors import Make, make
from task_worlds import NUMBERED, TASKS, Numbered

import envweave_gym as ew
from envweave_gym import EventKind, InvalidArgument, stream_of

__all__ = ["make", "url"]
FORMS = ["singles", "sync", "async", "subprocess", "servers"]
MASK = np.array([True, False, True])


@pytest.mark.parametrize("backend", [None, "subprocess"])
def test_an_epoch_meets_each_task_once(backend: str | None) -> None:
    env = ew.make(NUMBERED, backend=backend)
    epoch = ew.epoch(env)
    assert len(epoch) == TASKS
    assert [int(env.reset(options=options)[1]["index"]) for options in epoch] == list(range(TASKS))
    assert epoch[-1] == {"index": TASKS - 1}
    assert epoch[2:4] == [{"index": 2}, {"index": 3}]
    env.close()


def test_a_seed_shuffles_an_epoch_the_same_way_each_time() -> None:
    env = ew.make(NUMBERED)
    orders = [[one["index"] for one in ew.epoch(env, seed=seed)] for seed in (0, 0, 1, 2**64 - 1)]
    assert orders[0] == orders[1] == [5, 1, 4, 2, 0, 6, 3]
    assert all(sorted(one) == list(range(TASKS)) for one in orders)
    assert len({tuple(one) for one in orders}) == 3


@pytest.mark.parametrize("form", FORMS)
def test_a_vector_meets_as_many_tasks_at_once_as_it_has_rows(form: str, make: Make) -> None:
    env = make(form)
    met = []
    for options in ew.epoch(env, seed=4):
        _, infos = env.reset(options=options)
        met.append((infos["index"].tolist(), len(options["rows"])))
    assert [count for _, count in met] == [3, 3, 1]
    assert sorted(one for row, count in met for one in row[:count]) == list(range(TASKS))
    assert len(set(met[-1][0])) == 1, "rows beyond the last task play the first of them again"


@pytest.mark.parametrize("form", FORMS)
def test_a_group_of_rows_meets_one_task(form: str, make: Make) -> None:
    env = make(form, 4, group=2)
    played = []
    for options in ew.epoch(env):
        observations, infos = env.reset(options=options)
        assert (observations[::2] == observations[1::2]).all()
        played.append(infos["index"].tolist()[: len(options["rows"])])
    assert played == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5], [6, 6]]


@pytest.mark.parametrize("backend", [None, "subprocess"])
def test_an_epoch_of_word_problems_meets_each_once_in_groups(backend: str | None) -> None:
    options: dict[str, Any] = {"dataset": "synthetic", "split": "test", "backend": backend}
    env = ew.make("envweave/GSM8K-v0", num_envs=200, group=2, **options)
    epoch, met = ew.epoch(env, seed=1), []
    for number in (0, 1, len(epoch) - 1):
        prompts, infos = env.reset(options=epoch[number])
        assert prompts[::2] == prompts[1::2]
        met += infos["index"][: len(epoch[number]["rows"]) : 2].tolist()
    tasks = ew.state_of(env)[0]["tasks"]
    assert len(epoch) == -(-tasks // 100)
    assert len(set(met)) == len(met) == 200 + (tasks % 100 or 100)
    env.close()


def test_an_epoch_sees_a_vector_through_its_wrappers() -> None:
    env = RecordEpisodeStatistics(ew.make(NUMBERED, num_envs=4))
    assert ew.epoch(env)[1] == {"rows": [{"index": index} for index in (4, 5, 6)]}


def test_an_environment_without_tasks_has_no_epochs() -> None:
    for env in (ew.make("envweave/Echo-v0"), ew.make("CartPole-v1", num_envs=2), Numbered()):
        with pytest.raises(InvalidArgument, match=r"tells of no tasks; give an environment over|no stream"):
            ew.epoch(env)
        env.close()
    with pytest.raises(InvalidArgument, match=r"Numbered-v0: epoch\(seed=-1\) is not a seed"):
        ew.epoch(ew.make(NUMBERED), seed=-1)
    plain = gym.make_vec("tests/Numbered-v0", num_envs=2, vectorization_mode="sync")
    with pytest.raises(InvalidArgument, match="no stream that counts episodes"):
        ew.epoch(plain)
    theirs = gym.vector.SyncVectorEnv([lambda: ew.make(NUMBERED)] * 2)
    with pytest.raises(
        InvalidArgument, match=r"SyncVectorEnv gives all rows the same options; make the vect"
    ):
        ew.epoch(theirs)


@pytest.mark.parametrize("form", FORMS)
def test_each_row_gets_its_own_options_beside_those_of_all(form: str, make: Make) -> None:
    env = make(form)
    options = {"rows": [{"index": 2}, {}, {"index": 4, "word": "mine"}], "word": "all", "index": 1}
    before = copy.deepcopy(options)
    observations, infos = env.reset(seed=3, options=options)
    assert options == before
    assert infos["index"].tolist() == [2, 1, 4]
    assert infos["word"].tolist() == ["all", "all", "mine"]
    assert observations[:, 0].tolist() == [2, 1, 4]
    starts = [stream.of_kind(EventKind.EPISODE_START)[0].data for stream in stream_of(infos)]
    assert starts[2] == {"seed": 5, "options": {"word": "mine", "index": 4}}
    env.step(np.array([1, 0, 0]))
    _, infos = env.reset(seed=9, options={"reset_mask": MASK, "rows": [{"index": 6}, {"index": 0}]})
    assert infos["_index"].tolist() == MASK.tolist()
    assert infos["index"][[0, 2]].tolist() == [6, 6]
    assert env.step(np.array([0, 1, 0]))[4]["index"].tolist() == [6, 1, 6]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], r"options\['rows'\] is \[\]; give a list of 1 to 3 dicts, the reset options of one row each"),
        ([{}] * 4, r"options\['rows'\] is .*; give a list of 1 to 3 dicts"),
        ({"index": 1}, "give a list of 1 to 3 dicts"),
        ([{}, 3], "give a list of 1 to 3 dicts"),
        ([{"indx": 1}], "reset takes no option 'indx'; did you mean 'index'|reset takes no option 'indx'"),
        ([{"rows": []}], "reset takes no option 'rows'"),
    ],
)
def test_bad_options_of_rows_are_refused_before_a_row_has_moved(
    form: str, rows: Any, why: str, make: Make
) -> None:
    env = make(form)
    env.reset(seed=1)
    before = ew.state_of(env)
    with pytest.raises(InvalidArgument, match=why):
        env.reset(options={"rows": rows})
    assert ew.state_of(env) == before
    env.step(np.array([0, 0, 0]))


def test_rows_of_a_native_vector_begin_with_options_of_their_own() -> None:
    env = Offset(4)
    options = {"rows": [{"seen": 1}, {"seen": 5}, {"seen": 1}, {}]}
    observations, infos = env.reset(seed=0, options=options)
    assert observations.tolist() == [1, 5, 1, 0]
    starts = [stream.of_kind(EventKind.EPISODE_START)[0].data for stream in stream_of(infos)]
    assert starts[1] == {"seed": 1, "options": {"seen": 5}}
    assert starts[3] == {"seed": 3}
    env.step([0, 0, 0, 0])
    mask = np.array([False, True, False, False])
    assert env.reset(options={"reset_mask": mask, **options})[0].tolist() == [2, 5, 2, 1]


def test_a_native_vector_that_refuses_some_rows_has_to_be_reset() -> None:
    env = Offset(2)
    env.reset(seed=0)
    with pytest.raises(InvalidArgument, match="are unknown"):
        env.reset(options={"rows": [{"what": 1}, {}]})
    env.step([0, 0])
    with pytest.raises(InvalidArgument, match="are unknown"):
        env.reset(options={"rows": [{}, {"what": 1}]})
    with pytest.raises(ew.ResetNeeded):
        env.step([0, 0])
    env.reset()
