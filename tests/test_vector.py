"""Native vector environments are the single ones, row for row, and keep what they have handed out."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from numpy.typing import NDArray

import envweave_gym
from envweave_gym import (
    Event,
    EventKind,
    InvalidAction,
    InvalidArgument,
    NativeVectorEnv,
    ResetNeeded,
    Stream,
    message,
    stream_of,
    trainable,
)
from envweave_gym.lazy_streams import LazyStreams

LINE, FIX = "envweave/LineWorld-v0", "envweave/CodeFix-v0"
LIMITS = {LINE: 6, FIX: 2}


def native(
    env_id: str = LINE, rows: int = 5, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
) -> Any:
    kwargs = {"max_steps": LIMITS[env_id], **kwargs}
    return gym.make_vec(env_id, num_envs=rows, autoreset_mode=mode.value, **kwargs)


def sync(
    env_id: str = LINE, rows: int = 5, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
) -> Any:
    kwargs = {"max_steps": LIMITS[env_id], **kwargs}
    return SyncVectorEnv([lambda: gym.make(env_id, **kwargs)] * rows, autoreset_mode=mode)


def expect_equal(left: Any, right: Any, where: str = "result") -> None:
    """The same values of the same types, in whatever they are packed."""
    if isinstance(left, dict):
        assert set(left) == set(right), where
        for key, value in left.items():
            expect_equal(value, right[key], f"{where}[{key!r}]")
    elif isinstance(left, tuple):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            expect_equal(one, other, f"{where}[{number}]")
    elif isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray), where
        assert (left.dtype, left.shape) == (right.dtype, right.shape), where
        if left.dtype == object:
            for number, (one, other) in enumerate(zip(left, right, strict=True)):
                expect_equal(one, other, f"{where}[{number}]")
        else:
            assert left.tolist() == right.tolist(), where
    else:
        assert type(left) is type(right), where
        assert left == right, where


def actions_of(env: Any, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, env.single_action_space.n, env.num_envs)


# As SyncVectorEnv


@pytest.mark.parametrize("env_id", [LINE, FIX])
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("rows", [1, 5])
def test_everything_equals_the_single_environments(env_id: str, mode: AutoresetMode, rows: int) -> None:
    mine, theirs = native(env_id, rows, mode), sync(env_id, rows, mode)
    assert mine.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"] == mode
    for name in ("num_envs", "single_observation_space", "single_action_space", "observation_space"):
        assert getattr(mine, name) == getattr(theirs, name)
    expect_equal(mine.reset(seed=3), theirs.reset(seed=3))
    for number in range(25):
        result = mine.step(actions_of(mine, number))
        expect_equal(result, theirs.step(actions_of(mine, number)), f"step {number}")
        over = result[2] | result[3]
        if mode is AutoresetMode.DISABLED and over.any():
            again = [env.reset(options={"reset_mask": over.copy()}) for env in (mine, theirs)]
            expect_equal(*again, f"reset after step {number}")
        expect_equal(mine.state(), theirs.call("state"), f"state after step {number}")


@pytest.mark.parametrize("mode", AutoresetMode)
def test_without_a_step_limit_nothing_is_truncated(mode: AutoresetMode) -> None:
    mine, theirs = native(mode=mode, max_steps=-1, length=300), sync(mode=mode, max_steps=-1, length=300)
    expect_equal(mine.reset(seed=3), theirs.reset(seed=3))
    for _ in range(60):
        result = mine.step(np.zeros(5, np.int64))
        expect_equal(result, theirs.step(np.zeros(5, np.int64)))
        assert not result[3].any()
        if mode is AutoresetMode.DISABLED and result[2].any():
            break


@pytest.mark.parametrize(
    "seed", [None, 0, 41, [7, None, 9, None, 2**64 - 1], (1, 2, 3, 4, 5), np.arange(5), 2**64 - 5]
)
def test_seeds_are_taken_as_the_single_environments_take_them(seed: Any) -> None:
    mine, theirs = native(), sync()
    for env in (mine, theirs):
        env.reset(seed=11)
        env.reset()
    same = list(seed) if isinstance(seed, np.ndarray) else seed
    expect_equal(mine.reset(seed=seed), theirs.reset(seed=same))
    expect_equal(mine.reset(), theirs.reset())


@pytest.mark.parametrize("mode", AutoresetMode)
def test_partial_resets_equal_those_of_the_single_environments(mode: AutoresetMode) -> None:
    mine, theirs = native(mode=mode), sync(mode=mode)
    mask = np.array([True, False, False, True, False])
    for env in (mine, theirs):
        env.reset(seed=1)
        env.step(np.zeros(5, np.int64))
    for seed in (None, 50, [None, 1, 2, 3, None]):
        results = [env.reset(seed=seed, options={"reset_mask": mask.copy()}) for env in (mine, theirs)]
        expect_equal(*results)
        expect_equal(mine.step(np.ones(5, np.int64)), theirs.step(np.ones(5, np.int64)))
    assert mask.tolist() == [True, False, False, True, False]


def test_options_are_told_and_stay_the_callers() -> None:
    options = {"reset_mask": np.ones(5, bool), "index": np.int64(3)}
    env = native()
    env.metadata["reset_options"] = ("index",)
    _, infos = env.reset(seed=0, options=options)
    assert stream_of(infos)[2].events[0].data == {"seed": 2, "options": {"index": 3}}
    assert set(options) == {"reset_mask", "index"}


def test_unseeded_first_resets_differ_between_rows_and_runs() -> None:
    seeds = [
        stream.events[0].data["seed"] for _ in range(2) for stream in stream_of(native(rows=20).reset()[1])
    ]
    assert len(set(seeds)) == 40


def test_final_observations_and_infos_are_shaped_as_gymnasiums() -> None:
    env = native(mode=AutoresetMode.SAME_STEP, length=2, slip=0.0)
    env.reset(seed=0)
    _, _, terminated, _, infos = env.step(np.array([0, 0, 0, 1, 1]))
    assert terminated.any()
    assert not terminated.all()
    for row, over in enumerate(terminated):
        assert (infos["final_obs"][row] is not None) == over
        assert (infos["final_info"]["stream"][row] is not None) == over
        if over:
            place, goal = infos["final_obs"][row]
            assert place == goal
    for key in ("_final_obs", "_final_info"):
        assert infos[key].tolist() == terminated.tolist()


# What was handed out stays


def arrays_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [array for item in value.values() for array in arrays_in(item)]
    if isinstance(value, tuple):
        return [array for item in value for array in arrays_in(item)]
    return [value]


@pytest.mark.parametrize("env_id", [LINE, FIX])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_nothing_handed_out_changes_later(env_id: str, mode: AutoresetMode) -> None:
    env, twin = native(env_id, mode=mode), native(env_id, mode=mode)
    late, early = [env.reset(seed=3)], [copy.deepcopy(twin.reset(seed=3))]
    for number in range(20):
        late.append(env.step(actions_of(env, number)))
        early.append(copy.deepcopy(twin.step(actions_of(env, number))))
        over = late[-1][2] | late[-1][3]
        if mode is AutoresetMode.DISABLED and over.any():
            late.append(env.reset(options={"reset_mask": over.copy()}))
            early.append(copy.deepcopy(twin.reset(options={"reset_mask": over.copy()})))
    for one, other in zip(late, early, strict=True):
        expect_equal(one, other)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_what_callers_do_to_arrays_does_not_come_back(mode: AutoresetMode) -> None:
    env, twin = native(mode=mode), native(mode=mode)
    vandalise(env.reset(seed=3))
    twin.reset(seed=3)
    for number in range(20):
        chosen = actions_of(env, number)
        result = env.step(chosen)
        chosen[:] = 1
        kept = copy.deepcopy(result[:4])
        lazy = result[4]["stream"]
        vandalise(result)
        expected = twin.step(actions_of(env, number))
        expect_equal(kept, expected[:4])
        expect_equal(np.asarray(lazy), np.asarray(expected[4]["stream"]))
        over = kept[2] | kept[3]
        if mode is AutoresetMode.DISABLED and over.any():
            mask = over.copy()
            vandalise(env.reset(options={"reset_mask": mask}))
            mask[:] = True
            twin.reset(options={"reset_mask": over})


def vandalise(result: tuple[Any, ...]) -> None:
    for array in arrays_in(result):
        if array.dtype != object and array.flags.writeable:
            array[...] = 1


# Misuse


def names(error: type[Exception], said: str) -> Any:
    return pytest.raises(error, match=rf"^{LINE}: {said}")


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (np.zeros(4, np.int64), r"actions array\(\[0, 0, 0, 0\]\) are not in MultiDiscrete"),
        (np.zeros((5, 1), np.int64), "actions .* are not in"),
        (np.zeros(5), "actions .* are not in"),
        (np.zeros(5, bool), "actions .* are not in"),
        ([0, 1, 0, 1, 2], r"action 2 of row 4 is not in Discrete\(2\)"),
        ([0, -1, 0, 1, 2], r"action -1 of row 1 is not in Discrete\(2\)"),
        (np.array([0, 0, 0, 0, 2**64 - 1], np.uint64), "action 18446744073709551615 of row 4"),
        ([[0], [0, 1], 0, 0, 0], "actions .* are not in"),
        ([0, 0, 0, 0, 2**80], "actions .* are not in"),
        (0, "actions 0 are not in"),
        (None, "actions None are not in"),
        ({"a": 0}, "actions {'a': 0} are not in"),
        ("00000", "actions '00000' are not in"),
    ],
)
def test_wrong_actions_are_refused_and_change_nothing(actions: Any, said: str) -> None:
    env, twin = native(), native()
    env.reset(seed=0)
    twin.reset(seed=0)
    with names(InvalidAction, said):
        env.step(actions)
    expect_equal(env.step(np.zeros(5, np.int64)), twin.step(np.zeros(5, np.int64)))


@pytest.mark.parametrize("dtype", ["b", "B", "h", "i", "I", "q", "Q"])
def test_actions_of_every_integer_type_are_taken(dtype: str) -> None:
    env, twin = native(), native()
    env.reset(seed=0)
    twin.reset(seed=0)
    chosen = [0, 1, 1, 0, 1]
    expect_equal(env.step(np.array(chosen, dtype)), twin.step(chosen))


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (-1, r"reset\(seed=-1\) is not a seed"),
        (1.5, r"reset\(seed=1.5\)"),
        ("abcde", r"reset\(seed='abcde'\)"),
        (True, r"reset\(seed=True\)"),
        ([1, 2], "2 seeds were given; give one for each of 5 rows"),
        ([1, 2, 3, 4, -5], r"reset\(seed=-5\)"),
        ([1, 2, 3, 4, 5.0], r"reset\(seed=5.0\)"),
        (np.array([0.5] * 5), r"reset\(seed=0.5\)"),
        (2**64 - 4, r"reset\(seed=18446744073709551612\) has no 5 seeds"),
    ],
)
def test_wrong_seeds_are_refused_and_change_nothing(seed: Any, said: str) -> None:
    env, twin = native(), native()
    env.reset(seed=4)
    twin.reset(seed=4)
    with names(InvalidArgument, said):
        env.reset(seed=seed)
    expect_equal(env.step(np.zeros(5, np.int64)), twin.step(np.zeros(5, np.int64)))
    expect_equal(env.reset(), twin.reset())


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([True] * 5, r"options\['reset_mask'\] is \[True.*; give a bool array of shape \(5,\)"),
        (np.ones(4, bool), r"options\['reset_mask'\] is .*; give a bool array of shape \(5,\)"),
        (np.ones(5), r"options\['reset_mask'\] is .*; give a bool array"),
        (np.zeros(5, bool), r"options\['reset_mask'\] names no row to reset; set one to True"),
    ],
)
def test_wrong_masks_are_refused(mask: Any, said: str) -> None:
    env = native()
    env.reset(seed=4)
    with names(InvalidArgument, said):
        env.reset(options={"reset_mask": mask})
    env.step(np.zeros(5, np.int64))


def test_calls_out_of_order_are_refused() -> None:
    env = native(mode=AutoresetMode.DISABLED)
    with names(ResetNeeded, r"step\(\) was called before reset\(\); call reset\(\) first"):
        env.step(np.zeros(5, np.int64))
    with names(InvalidArgument, r"options\['reset_mask'\] leaves out rows that never began"):
        env.reset(options={"reset_mask": np.arange(5) == 0})
    env.reset(seed=0)
    over = np.zeros(5, bool)
    while not over.any():
        _, _, terminated, truncated, _ = env.step(np.zeros(5, np.int64))
        over = terminated | truncated
    rows = over.nonzero()[0].tolist()
    with names(ResetNeeded, rf"step\(\) was called after the episodes of rows \[{rows[0]}.* ended"):
        env.step(np.zeros(5, np.int64))
    env.reset(options={"reset_mask": over})
    env.step(np.zeros(5, np.int64))


# Copies and wrappers


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_in_mid_episode(mode: AutoresetMode, duplicate: Any) -> None:
    env = native(mode=mode, length=50 if mode is AutoresetMode.DISABLED else 11)
    env.reset(seed=3)
    env.step(np.ones(5, np.int64))
    other = duplicate(env)
    for number in range(3):
        expect_equal(env.step(actions_of(env, number)), other.step(actions_of(env, number)))
    expect_equal(env.reset(), other.reset())
    assert other.spec == env.spec


def test_gymnasiums_wrappers_count_episodes() -> None:
    mine, theirs = RecordEpisodeStatistics(native()), RecordEpisodeStatistics(sync())
    for env in (mine, theirs):
        env.reset(seed=3)
    for number in range(25):
        infos = [env.step(actions_of(mine, number))[-1] for env in (mine, theirs)]
        assert ("episode" in infos[0]) == ("episode" in infos[1])
        for key in "rl" if "episode" in infos[0] else "":
            expect_equal(infos[0]["episode"][key], infos[1]["episode"][key])
    assert mine.episode_count == theirs.episode_count > 0


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_infos_become_lists(mode: AutoresetMode) -> None:
    mine, theirs = DictInfoToList(native(mode=mode)), DictInfoToList(sync(mode=mode))
    assert mine.reset(seed=3)[1] == theirs.reset(seed=3)[1]
    for number in range(12):
        rows = [env.step(actions_of(mine, number))[-1] for env in (mine, theirs)]
        for row in rows:
            for one in row:
                one.pop("final_obs", None)  # arrays, compared above
        assert rows[0] == rows[1]


def test_state_is_each_rows_own() -> None:
    env = native(rows=2)
    assert [state["episode"] for state in env.state()] == [-1, -1]
    env.reset(seed=0)
    env.step([0, 0])
    env.reset(options={"reset_mask": np.array([True, False])})
    assert [(state["episode"], state["step_count"]) for state in env.state()] == [(1, 0), (0, 1)]
    assert set(env.state()[0]) == {"episode", "step_count", "place", "goal", "length"}


def test_closing_twice_is_allowed() -> None:
    env = native()
    env.close()
    env.close()
    assert env.closed


# Lazy streams


def lazy(rows: int = 4) -> tuple[LazyStreams, list[int]]:
    built: list[int] = []

    def build(row: int) -> Stream:
        built.append(row)
        return Stream((), (message("user", str(row)),))

    return LazyStreams(build, np.arange(rows) == 1), built


def test_an_index_builds_one_stream() -> None:
    streams, built = lazy()
    assert streams[2].events[0].data["content"] == "2"
    assert streams[-1].events[0].data["content"] == "3"
    assert streams[np.int64(0)].events[0].data["content"] == "0"
    assert built == [2, 3, 0]
    for outside in (4, -5):
        with pytest.raises(IndexError):
            streams[outside]


def test_what_needs_no_stream_builds_none() -> None:
    streams, built = lazy()
    assert (len(streams), streams.shape, streams.ndim, streams.dtype) == (4, (4,), 1, np.dtype(object))
    assert isinstance(streams, np.ndarray)
    assert isinstance(streams, LazyStreams)
    assert repr(streams) == str(streams) == "LazyStreams(4 streams)"
    assert trainable({"stream": streams}).tolist() == [True, False, True, True]
    assert built == []


def test_whatever_else_an_array_does_builds_all_of_them_once() -> None:
    streams, built = lazy()
    plain = np.array([lazy()[0][row] for row in range(4)] + [None], dtype=object)[:4]
    expect_equal(np.asarray(streams), plain)
    expect_equal(np.array(streams), plain)
    expect_equal(streams[1:3], plain[1:3])
    expect_equal(streams[np.array([True, False, False, True])], plain[[0, 3]])
    expect_equal(streams[[2, 0]], plain[[2, 0]])
    expect_equal(np.concatenate([streams, plain])[4:], plain)
    assert list(streams) == streams.tolist() == plain.tolist()
    assert streams.size == 4
    assert (streams == plain).tolist() == (plain == streams).tolist() == [True] * 4
    assert (streams != plain).tolist() == [False] * 4
    assert np.array_equal(streams, plain)
    assert streams[1] in streams
    assert built == [0, 1, 2, 3]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_of_streams_are_plain_arrays(duplicate: Any) -> None:
    streams, _ = lazy()
    again = duplicate(streams)
    assert type(again) is np.ndarray
    expect_equal(again, streams.eager())
    again[0] = None
    assert streams[0] is not None


def test_a_stream_can_be_replaced() -> None:
    streams, _ = lazy()
    streams[1] = None
    assert [stream is None for stream in streams] == [False, True, False, False]


def test_asking_for_what_no_array_has_is_an_attribute_error() -> None:
    streams, _ = lazy()
    assert not hasattr(streams, "no_such_thing")
    assert not hasattr(streams, "__no_such_protocol__")


# A vector environment of one's own


class Offset(NativeVectorEnv):
    """Choices count from -10, everything pays its choice, ``steps`` are observed, and openings are told."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        spaces = Box(-100, 100, (), np.int64), Discrete(21, start=-10)
        super().__init__(*spaces, num_envs=num_envs, **kwargs)
        self.seen = np.zeros(num_envs, np.int64)

    def begin(self, rows: Any, seeds: Any, options: dict[str, Any]) -> None:
        if options.keys() - {"seen"}:
            raise InvalidArgument(f"{sorted(options)} are unknown; there is 'seen'")
        self.seen[rows] = options.get("seen", 0)

    def advance(self, actions: Any) -> Any:
        self.seen += 1
        return (actions - 10).astype(float), actions == 20

    def observe(self) -> Any:
        return self.seen.copy()

    opening_events = 2

    def opening(self, seed: int) -> tuple[Event, ...]:
        return message("system", "add"), message("user", str(seed))


def test_choices_that_do_not_start_at_zero_are_told_as_chosen() -> None:
    env = Offset(3, autoreset_mode="SameStep")
    _, infos = env.reset(seed=5)
    assert [event.kind for event in infos["stream"][1].events] == ["episode_start", "message", "message"]
    assert infos["stream"][1].events[2].data["content"] == "6"
    assert infos["seq"].tolist() == [2, 2, 2]
    for given in (np.array([-10, 0, 10], np.int8), [-10, 0, 10]):
        _, rewards, terminated, _, infos = env.step(given)
        assert rewards.tolist() == [-10, 0, 10]
        assert terminated.tolist() == [False, False, True]
    acted = [stream.of_kind(EventKind.ACT)[0].data["action"] for stream in stream_of(infos)]
    assert acted == [-10, 0, 10]
    for bad in ([-11, 0, 0], [0, 0, 11]):
        with pytest.raises(
            InvalidAction, match=r"^Offset: action -?11 of row \d is not in Discrete\(21, start=-10\)"
        ):
            env.step(bad)


def test_options_reach_the_rows_that_are_reset_and_no_later_episode() -> None:
    env = Offset(3)
    assert env.reset(seed=0, options={"seen": 7})[0].tolist() == [7, 7, 7]
    env.step([0, 10, 0])
    observations, *_, infos = env.step([0, 0, 0])
    assert observations.tolist() == [9, 0, 9]
    assert infos["stream"][1].events[0].kind == EventKind.EPISODE_START
    mask = np.array([True, False, False])
    assert env.reset(options={"reset_mask": mask, "seen": 3})[0].tolist() == [3, 0, 9]


def test_a_refused_option_leaves_the_episodes_as_they_are() -> None:
    env = Offset(2)
    env.reset(seed=0)
    env.step([0, 0])
    before = env.state()
    with pytest.raises(InvalidArgument, match=r"'index'.* are unknown"):
        env.reset(options={"index": 3})
    assert env.state() == before
    assert env.step([0, 0])[0].tolist() == [2, 2]


@pytest.mark.parametrize("env_id", [LINE, FIX])
def test_unknown_options_are_refused_as_the_single_environments_refuse_them(env_id: str) -> None:
    for env in (native(env_id), sync(env_id), gym.make(env_id)):
        with pytest.raises(InvalidArgument, match=f"{env_id}: reset takes no option 'index'"):
            env.reset(seed=3, options={"index": 3})
        env.reset(seed=3, options={})


def test_a_plain_subclass_has_no_state_of_its_own() -> None:
    env = Offset(1)
    env.reset(seed=0)
    assert env.state() == ({"episode": 0, "step_count": 0},)


def test_vectors_are_made_by_every_way_in() -> None:
    for env in (
        gym.make_vec(LINE, num_envs=2),
        gym.make_vec(LINE, num_envs=2, vectorization_mode="vector_entry_point"),
        envweave_gym.make(LINE, num_envs=2),
    ):
        assert isinstance(env, NativeVectorEnv)
        assert env.unwrapped.spec.id == LINE
