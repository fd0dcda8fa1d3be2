"""What RequestStream makes of an environment that fails: honest faults, or the exception itself."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from scripted_envs import Scripted
from scripted_streams import NAME, Malformed, faulty, kinds, scripted, seed_of

from envweave_gym import (
    Event,
    EventKind,
    Fault,
    FaultKind,
    InvalidAction,
    Request,
    ResetNeeded,
    Stream,
    message,
    stream_of,
    trainable,
)
from envweave_gym.core.faults import FaultStorm
from envweave_gym.episode.stream import RequestKind
from envweave_gym.wrappers import RequestStream


@pytest.mark.parametrize("reward", [None, np.zeros(2), "much", [], 1j])
def test_a_reward_that_is_no_number_is_a_fault(reward: Any) -> None:
    env = scripted([reward])
    env.reset(seed=0)
    with pytest.raises((TypeError, ValueError)):
        env.step(0)
    env = faulty([reward])
    env.reset(seed=0)
    _, given, _, truncated, info = env.step(0)
    assert (given, truncated) == (0.0, True)
    assert info["fault"].kind == FaultKind.CRASH


@pytest.mark.parametrize("reward", [math.nan, -math.inf, np.float32("nan"), np.array(math.inf)])
def test_a_reward_that_is_not_finite_is_a_fault_that_names_it(reward: Any) -> None:
    env = scripted([reward])
    env.reset(seed=0)
    with pytest.raises(
        ValueError, match=rf"^{NAME}: the reward .*(nan|inf).* is no finite number; "
    ) as refused:
        env.step(0)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env = faulty([reward, 1.0])
    env.reset(seed=0)
    _, given, terminated, truncated, info = env.step(0)
    assert (given, terminated, truncated) == (0.0, False, True)
    assert info["fault"] == Fault(FaultKind.CRASH, f"ValueError: {refused.value}", retryable=True)
    assert kinds(info) == ["act", "fault", "episode_end"]


@pytest.mark.parametrize("reward", [1.7e308, -1.7e308, 5e-324, 10**300, np.float32(3e38)])
def test_the_largest_and_smallest_rewards_are_finite(reward: Any) -> None:
    env = scripted([reward])
    env.reset(seed=0)
    assert env.step(0)[1] is reward


@pytest.mark.parametrize(
    ("call", "answer", "said"),
    [
        (
            "step",
            (0, 0.0, False, {}),
            r"step\(\) returned 4 values: \(0, 0.0, False, \{\}\); .* 5 values: observation, ",
        ),
        (
            "step",
            7,
            r"step\(\) returned no tuple: 7; it must return 5 values: observation, reward, terminated, ",
        ),
        (
            "step",
            (0, 0.0, False, False, None),
            r"step\(\) returned an info that is no dict: None; .* 5 values",
        ),
        ("reset", 0, r"reset\(\) returned no tuple: 0; it must return 2 values: observation, info$"),
        ("reset", (0, {}, 1), r"reset\(\) returned 3 values: \(0, \{\}, 1\); .* 2 values"),
    ],
)
@pytest.mark.parametrize("checked", [False, True])
def test_a_result_of_the_wrong_form_names_the_environment(
    call: str, answer: Any, said: str, checked: bool
) -> None:
    core = Malformed(answer)
    if call == "reset":
        core.reset = lambda *, seed=None, options=None: answer
    # As gymnasium.make puts them: they unpack the result before our wrapper does.
    env: Any = TimeLimit(OrderEnforcing(PassiveEnvChecker(core)), 5) if checked else core
    env = RequestStream(env, name=NAME)
    said = (
        f"^{NAME}: (?s:.*)must return {2 if call == 'reset' else 5} values: "
        if checked
        else f"^{NAME}: {said}"
    )
    if call == "step":
        env.reset(seed=0)
    with pytest.raises(TypeError, match=said), warnings.catch_warnings(action="ignore"):
        env.step(0) if call == "step" else env.reset(seed=0)


def test_an_exception_of_the_environment_itself_keeps_its_type_inside_wrappers_of_gymnasium() -> None:
    env = RequestStream(
        TimeLimit(OrderEnforcing(PassiveEnvChecker(scripted([ValueError("to unpack")]).env)), 5)
    )
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"^to unpack$"):
        env.step(0)


@pytest.mark.parametrize(
    "answer",
    [None, (0, 0.0, False, {}), (0, 0.0, False, False, None), (0, 0.0, False, False, ["no dict"])],
)
def test_an_answer_of_the_wrong_form_is_a_fault(answer: Any) -> None:
    env = RequestStream(Malformed(answer), on_fault="truncate")
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(0)
    assert (observation, reward, terminated, truncated) == (0, 0.0, False, True)
    assert "fault" in info


def test_an_info_of_the_wrong_form_ends_the_episode_where_faults_are_raised() -> None:
    env = RequestStream(Malformed((0, 0.0, False, False, ["no dict"])))
    env.reset(seed=0)
    with pytest.raises(TypeError):
        env.step(0)
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_an_info_of_the_wrong_form_is_a_fault_of_the_reset() -> None:
    core = Scripted()
    core.reset = lambda **kwargs: (0, ["no dict"])
    assert RequestStream(core, on_fault="truncate").reset(seed=0)[1]["fault"].kind == FaultKind.CRASH
    with pytest.raises(TypeError):
        RequestStream(core).reset(seed=0)


# Faults in a step


def test_an_exception_is_raised_and_ends_the_episode() -> None:
    env = scripted([RuntimeError("boom")])
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"^boom$"):
        env.step(0)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset()
    assert env.step(0)[0] == 1


def test_an_exception_ends_the_episode_as_a_fault() -> None:
    env = faulty([1.0, RuntimeError("boom")])
    env.reset(seed=0)
    last, *_ = env.step(2)
    env.unwrapped.emit(message("user", "last words"))
    observation, reward, terminated, truncated, info = env.step(1)
    assert (observation, reward, terminated, truncated) == (last, 0.0, False, True)
    assert info["fault"] == Fault(FaultKind.CRASH, "RuntimeError: boom", True)
    assert info["stream"] == Stream(
        (Request(6, RequestKind.RESET, None, 2),),
        (
            Event(3, EventKind.ACT, "agent", None, {"action": 1}),
            Event(4, EventKind.MESSAGE, None, None, {"role": "user", "content": "last words"}),
            Event(
                5,
                EventKind.FAULT,
                data={"kind": "crash", "message": "RuntimeError: boom", "retryable": True},
            ),
            Event(6, EventKind.EPISODE_END, data={"terminated": False, "truncated": True}),
        ),
    )
    assert info["seq"] == 6
    assert trainable(info) is False
    with pytest.raises(ResetNeeded):
        env.step(0)
    _, info = env.reset()
    assert "fault" not in info


def test_sys_exit_is_a_fault_and_keyboard_interrupt_is_not() -> None:
    env = faulty([SystemExit(3), KeyboardInterrupt()], [None, None, SystemExit("bye")])
    env.reset(seed=0)
    *_, truncated, info = env.step(0)
    assert truncated
    assert info["fault"].message == "SystemExit: 3"
    env.reset()
    with pytest.raises(KeyboardInterrupt):
        env.step(0)
    with pytest.raises(ResetNeeded):
        env.step(0)  # nobody knows how far the interrupted step came
    _, info = env.reset()
    assert info["fault"].message == "SystemExit: bye"


def test_sys_exit_passes_where_faults_are_raised() -> None:
    env = scripted([SystemExit(3)], [None, KeyboardInterrupt()])
    env.reset(seed=0)
    with pytest.raises(SystemExit):
        env.step(0)
    with pytest.raises(KeyboardInterrupt):
        env.reset()


def test_a_fault_that_the_environment_reports_is_in_the_stream() -> None:
    fault = Fault(FaultKind.LOST, "the sandbox is gone", True)
    env = faulty([{"fault": fault}], max_steps=1)
    env.reset(seed=0)
    *_, truncated, info = env.step(0)
    assert truncated
    assert info["fault"] == fault
    assert kinds(info) == ["act", "fault", "episode_end"]
    assert trainable(info) is False


# Faults in a reset


def test_a_failing_reset_is_tried_again_with_the_same_seed() -> None:
    env = faulty(resets=[OSError("busy"), OSError("busy")], reset_deadline=5)
    observation, info = env.reset(seed=9)
    assert env.unwrapped.seeds == [9, 9, 9]
    assert observation == 0
    assert "fault" not in info
    assert env.step(0)[3] is False


def test_a_reset_that_trying_again_cannot_help_is_tried_once() -> None:
    env = faulty(resets=[ImportError("no module 'physics'")] * 2, reset_deadline=5)
    _, info = env.reset(seed=9)
    assert env.unwrapped.seeds == [9]
    assert info["fault"] == Fault(FaultKind.CRASH, "ImportError: no module 'physics'", False)


def test_events_of_a_failing_reset_are_dropped() -> None:
    class Talker(Scripted):
        def reset(self, **kwargs: Any) -> Any:
            self.emit(message("user", "hello"))
            return super().reset(**kwargs)

    env = RequestStream(Talker(resets=[OSError("busy")]), on_fault="truncate")
    _, info = env.reset(seed=0)
    assert kinds(info) == ["episode_start", "message"]


def test_a_lost_reset_gives_a_placeholder_and_the_next_step_truncates() -> None:
    env = faulty(resets=[TimeoutError("no answer")])
    observation, info = env.reset(seed=9)
    assert observation in env.observation_space
    assert info["fault"] == Fault(FaultKind.TIMEOUT, "TimeoutError: no answer", True)
    assert kinds(info) == ["episode_start", "fault"]
    assert stream_of(info).agents() == ("agent",)
    assert seed_of(info) == 9
    with pytest.raises(InvalidAction):
        env.step("nonsense")
    again, reward, terminated, truncated, info = env.step(1)
    assert (again, reward, terminated, truncated) == (observation, 0.0, False, True)
    assert info["fault"].kind == FaultKind.TIMEOUT
    assert kinds(info) == ["ignored", "fault", "episode_end"]
    assert trainable(info) is False
    with pytest.raises(ResetNeeded):
        env.step(1)
    _, info = env.reset()
    assert "fault" not in info
    assert env.unwrapped.taken == 0


def test_a_failing_reset_is_raised() -> None:
    env = scripted(resets=[OSError("busy")])
    with pytest.raises(OSError, match="busy"):
        env.reset(seed=0)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    assert env.step(0)[0] == 1


# Storms


def test_ten_faults_in_a_row_are_a_storm() -> None:
    env = faulty([RuntimeError("boom")] * 5, [None] * 5 + [OSError("busy")] * 6)
    for _ in range(5):
        env.reset(seed=0)
        assert env.step(0)[3]
    for _ in range(4):
        assert "fault" in env.reset()[1]
        assert env.step(0)[3]
    with pytest.raises(FaultStorm, match=rf"^{NAME}: 10 faults in a row, the last: OSError: busy$"):
        env.reset()


def test_a_good_episode_ends_a_storm() -> None:
    env = faulty(([RuntimeError("boom")] * 9 + ["end"]) * 3)
    for _ in range(30):
        env.reset(seed=0)
        env.step(0)
    env.reset()
    assert env.step(0)[0] == 1
