"""Vectors of single environments refuse a bad call as one, before any row has moved."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envweave_gym as ew
from envweave_gym.vector.singles import AsyncVector, SyncVector, vector_of_singles
from envweave_gym.wrappers import RequestStream

COUNTER, CODEFIX, LINE, ECHO = (f"envweave/{name}-v0" for name in ("Counter", "CodeFix", "LineWorld", "Echo"))
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


class FailsOn(gym.Env[int, int]):
    """Raises what it is told to when it gets a 1."""

    observation_space = action_space = gym.spaces.Discrete(3)

    def __init__(self, error: type[Exception] = OSError) -> None:
        self.error = error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> Any:
        if action == 1:
            raise self.error("the disk is full")
        return 0, 0.0, False, False, {}


class AtHome(FailsOn):
    """Can be made in one process alone."""

    def __init__(self, home: int) -> None:
        super().__init__()
        if os.getpid() != home:
            raise RuntimeError("only where it was born")


@pytest.fixture(params=["sync", "async"])
def how(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def vector(how: str) -> Iterator[Any]:
    env = ew.make(COUNTER, num_envs=2, vectorization_mode=how)
    yield env
    env.close()


def steps(vector: Any) -> list[int]:
    return [state["step_count"] for state in ew.state_of(vector)]


def deltas(*values: Any) -> dict[str, Any]:
    return {"delta": np.array(values)}


BAD_ACTIONS: list[Any] = [5, None, {}, "ab", deltas(1), deltas(1, 1, 1), deltas(1.0, 2.0), [{"delta": 1}] * 2]


class TestABadCall:
    @pytest.mark.parametrize("actions", BAD_ACTIONS, ids=repr)
    def test_of_the_wrong_form_moves_no_row(self, vector: Any, actions: Any) -> None:
        vector.reset(seed=0)
        with pytest.raises(ew.InvalidAction, match=f"{COUNTER}: action"):
            vector.step(actions)
        assert steps(vector) == [0, 0]
        vector.step(deltas(1, 1))
        assert steps(vector) == [1, 1]

    def test_names_the_row_of_a_wrong_action(self, vector: Any) -> None:
        vector.reset(seed=0)
        with pytest.raises(ew.InvalidAction, match=r"50\)} of row 1 is not in Dict"):
            vector.step(deltas(1, 50))
        assert steps(vector) == [0, 0]

    @pytest.mark.parametrize("actions", [None, 5, "ab", ["a"], ["a", 5], ["a", "\ud800"]], ids=repr)
    def test_with_texts_moves_no_row(self, how: str, actions: Any) -> None:
        env = ew.make(ECHO, num_envs=2, vectorization_mode=how)
        env.reset(seed=0)
        with pytest.raises(ew.InvalidAction, match=f"{ECHO}: action"):
            env.step(actions)
        assert steps(env) == [0, 0]
        env.close()

    def test_takes_any_iterator_of_actions(self, how: str) -> None:
        env = ew.make(ECHO, num_envs=2, vectorization_mode=how)
        env.reset(seed=0)
        assert env.step(word for word in ("a", "bc"))[0] == ("a", "bc")
        env.close()

    @pytest.mark.parametrize("seed", ["a", 1.5, True, -1, 2**64 - 1, [1], [1, "b"]], ids=repr)
    def test_with_a_seed_that_is_none_keeps_the_episodes(self, vector: Any, seed: Any) -> None:
        vector.reset(seed=0)
        vector.step(deltas(0, 0))
        with pytest.raises(ew.InvalidArgument, match=f"{COUNTER}: .*seed"):
            vector.reset(seed=seed)
        assert steps(vector) == [1, 1]
        vector.step(deltas(0, 0))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (3, "neither a dict nor None"),
            ({"index": 1}, "takes no option 'index'; it takes 'reset_mask'"),
            ({"reset_maks": 1}, "did you mean 'reset_mask'"),
            ({"reset_mask": [True, False]}, r"give a bool array of shape \(2,\)"),
            ({"reset_mask": np.zeros(2, np.bool_)}, "names no row"),
        ],
    )
    def test_with_wrong_options_keeps_the_episodes(self, vector: Any, options: Any, message: str) -> None:
        vector.reset(seed=0)
        vector.step(deltas(0, 0))
        with pytest.raises(ew.InvalidArgument, match=message):
            vector.reset(options=options)
        assert steps(vector) == [1, 1]

    def test_out_of_order_is_refused(self, vector: Any) -> None:
        with pytest.raises(ew.ResetNeeded, match=f"{COUNTER}: step.. was called before reset"):
            vector.step(deltas(1, 1))
        with pytest.raises(ew.InvalidArgument, match="rows that never began"):
            vector.reset(options={"reset_mask": np.array([True, False])})
        vector.reset(seed=0)
        vector.step(deltas(1, 1))

    def test_the_error_after_the_end_names_the_rows_without_autoreset(self, how: str) -> None:
        env = ew.make(LINE, num_envs=2, vectorization_mode=how, autoreset_mode="Disabled", max_steps=2)
        env.reset(seed=0)
        for _ in range(2):
            ended = env.step([1, 1])
        over = ended[2] | ended[3]
        assert over.all()
        with pytest.raises(ew.ResetNeeded, match=r"of rows \[0, 1\] ended"):
            env.step([1, 1])
        env.reset(options={"reset_mask": np.array([True, False])})
        with pytest.raises(ew.ResetNeeded, match=r"of rows \[1\] ended"):
            env.step([1, 1])
        env.reset(options={"reset_mask": np.array([False, True])})
        env.step([1, 1])
        env.close()


def test_a_reset_leaves_the_options_it_was_given_as_they_are(vector: Any) -> None:
    vector.reset(seed=0)
    options = {"reset_mask": np.array([True, False])}
    vector.reset(options=options)
    assert list(options) == ["reset_mask"]
    assert steps(vector) == [0, 0]


class TestAnErrorOfARow:
    def test_in_turn_leaves_the_others_halfway_so_that_a_reset_is_asked_for(self) -> None:
        ew.register("local://fails-on", factory=FailsOn)
        env = ew.make("local://fails-on", num_envs=2)
        env.reset(seed=0)
        with pytest.raises(OSError, match="the disk is full"):
            env.step([0, 1])
        with pytest.raises(ew.ResetNeeded, match="OSError stopped the last call halfway; call reset"):
            env.step([0, 0])
        env.reset()
        assert env.step([0, 0])[1].tolist() == [0.0, 0.0]
        env.close()

    @pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")
    def test_in_a_process_ends_it_which_the_next_call_says(self) -> None:
        ew.register("local://fails-on", factory=FailsOn)
        env = ew.make("local://fails-on", num_envs=2, vectorization_mode="async")
        env.reset(seed=0)
        with pytest.raises(OSError, match="the disk is full"):
            env.step([0, 1])
        for call in (env.reset, lambda: env.step([0, 0])):
            with pytest.raises(ew.NotAvailable, match=r"processes of rows \[1\] ended .* make another"):
                call()
        env.close()

    @pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")
    def test_an_error_of_a_row_process_is_raised_by_the_constructor_of_the_vector(self) -> None:
        ew.register("local://at-home", factory=partial(AtHome, os.getpid()))
        with pytest.raises(ew.NotAvailable, match=r"row \d cannot be made .*: only where it was born"):
            ew.make("local://at-home", num_envs=2, vectorization_mode="async")
        assert [one for one in multiprocessing.active_children() if "AsyncVector" in one.name] == []

    def test_is_a_fault_of_that_row_where_faults_truncate(self, how: str) -> None:
        ew.register("local://fails-on", factory=FailsOn)
        env = ew.make("local://fails-on", num_envs=2, vectorization_mode=how, on_fault="truncate")
        env.reset(seed=0)
        _, _, _, truncated, infos = env.step([0, 1])
        assert truncated.tolist() == [False, True]
        assert ew.trainable(infos).tolist() == [True, False]
        env.step([0, 0])
        env.close()


class TestWhereTheNativeFormCannot:
    def test_show_text_single_environments_do(self) -> None:
        env = ew.make(CODEFIX, num_envs=2, observation="text")
        assert isinstance(env, SyncVector)
        assert all(text.startswith("def ") for text in env.reset(seed=0)[0])
        assert isinstance(gym.make_vec(CODEFIX, num_envs=2, observation="text"), SyncVector)

    def test_render_single_environments_do(self) -> None:
        env = ew.make(LINE, num_envs=2, render_mode="ansi")
        env.reset(seed=0)
        assert [len(line) for line in env.render()] == [11, 11]

    def test_and_neither_can_single_environments_that_is_said(self) -> None:
        with pytest.raises(ew.InvalidArgument, match=r"render_mode='ascii' is unknown; there are ansi"):
            ew.make(LINE, num_envs=2, render_mode="ascii")
        with pytest.raises(ew.InvalidArgument, match="observation='smell'"):
            ew.make(CODEFIX, num_envs=2, observation="smell")


def test_the_spec_of_such_a_vector_makes_it_again(how: str) -> None:
    env = ew.make(CODEFIX, num_envs=2, vectorization_mode=how, autoreset_mode="SameStep", observation="text")
    assert isinstance(env, SyncVector if how == "sync" else AsyncVector)
    again = gym.make_vec(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.num_envs == 2
    assert again.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
    assert again.reset(seed=3)[0] == env.reset(seed=3)[0]
    assert gym.spec(CODEFIX).kwargs == {}
    env.close()
    again.close()


class Slow(FailsOn):
    """Takes a second for a 1, and its process with it for a 2."""

    def step(self, action: int) -> Any:
        if action == 1:
            time.sleep(1.0)
        if action == 2:
            os._exit(7)
        return 0, 0.0, False, False, {}


class TestAVectorOfProcesses:
    @pytest.mark.filterwarnings("ignore:.*WARN:UserWarning")
    def test_that_was_interrupted_says_so_and_closes(self) -> None:
        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        ew.register("local://slow", factory=Slow)
        env = ew.make("local://slow", num_envs=2, vectorization_mode="async")
        env.reset(seed=0)
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            env.step([0, 1])
        signal.signal(signal.SIGALRM, before)
        for call in (env.reset, lambda: env.step([0, 0])):
            with pytest.raises(
                ew.NotAvailable, match="KeyboardInterrupt came while its processes moved; close"
            ):
                call()
        env.close()

    def test_one_of_which_dies_says_which_and_closes(self) -> None:
        ew.register("local://slow", factory=Slow)
        env = ew.make("local://slow", num_envs=2, vectorization_mode="async", on_fault="truncate")
        env.reset(seed=0)
        with pytest.raises(
            ew.NotAvailable, match=r"local://slow: the processes of rows \[1\] died with exit codes"
        ):
            env.step([0, 2])
        with pytest.raises(ew.NotAvailable, match="make another"):
            env.reset()
        env.close()


def test_a_vector_in_turn_can_be_pickled_in_mid_episode() -> None:
    env = ew.make(COUNTER, num_envs=2)
    env.reset(seed=0)
    env.step(deltas(1, 1))
    again = pickle.loads(pickle.dumps(env))
    np.testing.assert_equal(again.step(deltas(1, 2))[0], env.step(deltas(1, 2))[0])


@pytest.mark.parametrize("how", [None, "sync"])
@pytest.mark.parametrize("actions", [{0, 1}, frozenset({0, 1}), {0: 1, 1: 0}, {0: 1, 1: 0}.keys()])
def test_a_batch_without_an_order_of_rows_is_no_action(how: str | None, actions: Any) -> None:
    env = ew.make("envweave/LineWorld-v0", num_envs=2, vectorization_mode=how)
    env.reset(seed=0)
    with pytest.raises(ew.InvalidAction, match="are not in"):
        env.step(actions)
    env.close()


@pytest.mark.parametrize("how", [None, "sync", "async"])
def test_a_mask_that_is_none_masks_nothing(how: str | None) -> None:
    env = ew.make("envweave/LineWorld-v0", num_envs=2, vectorization_mode=how)
    env.reset(seed=0)
    options = {"reset_mask": None}
    env.reset(options=options)
    assert options == {"reset_mask": None}
    env.step([0, 1])
    env.close()


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_reset_after_the_end_is_the_only_one(shared_memory: bool) -> None:
    makers = [partial(gym.make, "envweave/PickLetter-v0")] * 2
    with closing(AsyncVector(makers, shared_memory=shared_memory)) as env:
        for seed in range(2):
            env.reset(seed=seed)
            assert env.step(env.action_space.sample())[2].all(), "the step was another reset"
        assert not env.step(env.action_space.sample())[2].any(), "this step is the reset"


class Misshapen(gym.Env[Any, int]):
    """Observes an array of the wrong shape when it gets a 1, and at resets with ``{"wrong": True}``."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata = {"reset_options": ("wrong",)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.ones(3 if (options or {}).get("wrong") else 2, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(3 if action else 2, np.float32), 1.0, False, False, {}


def misshapen_row(on_fault: Any) -> Any:
    return RequestStream(Misshapen(), name="test/Misshapen", on_fault=on_fault)


def misshapen(on_fault: str, concurrent: bool = False) -> Any:
    make, options = partial(misshapen_row, on_fault), {"autoreset_mode": "SameStep"}
    return vector_of_singles("test/Misshapen", make, 3, "sync", options, concurrent=concurrent)


class TestAnObservationOfTheWrongShape:
    @pytest.mark.parametrize("concurrent", [False, True])
    def test_is_a_fault_of_its_row_alone(self, concurrent: bool) -> None:
        with closing(misshapen("truncate", concurrent)) as env:
            env.reset(seed=0)
            seen, rewards, _, truncated, infos = env.step([0, 1, 0])
            assert (rewards.tolist(), truncated.tolist()) == ([1.0, 0.0, 1.0], [False, True, False])
            assert seen.tolist() == [[0, 0], [1, 1], [0, 0]]
            fault = infos["final_info"]["fault"][1]
            assert fault.kind is ew.FaultKind.CRASH
            assert "test/Misshapen: step() returned an array of shape (3,)" in fault.message
            assert not env.step([0, 0, 0])[3].any()

    def test_of_a_reset_is_a_fault_of_its_row_alone(self) -> None:
        with closing(misshapen("truncate")) as env:
            seen, infos = env.reset(seed=0, options={"rows": [{}, {"wrong": True}, {}]})
            assert seen.tolist() == [[1, 1], [0, 0], [1, 1]]
            assert "reset() returned an array of shape (3,)" in infos["fault"][1].message
            assert env.step([0, 0, 0])[3].tolist() == [False, True, False]

    def test_raises_with_the_name_where_faults_are_raised(self) -> None:
        with closing(pickle.loads(pickle.dumps(misshapen("raise")))) as env:
            env.reset(seed=0)
            with pytest.raises(TypeError, match=r"^test/Misshapen: step\(\) returned an array of shape"):
                env.step([0, 1, 0])
            env.reset(seed=0)
            assert env.step([0, 0, 0])[0].tolist() == [[0, 0]] * 3
