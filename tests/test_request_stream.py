"""What RequestStream adds to one environment: numbers, seeds, an order of calls, honest faults."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import (
    NormalizeReward,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TransformAction,
    TransformObservation,
    TransformReward,
)
from scripted_envs import Reused, Scripted

from envweave_gym import (
    Event,
    EventKind,
    Fault,
    FaultKind,
    FaultStorm,
    InvalidAction,
    InvalidArgument,
    MissingExtra,
    Request,
    RequestKind,
    RequestStream,
    ResetNeeded,
    Stream,
    message,
    state_of,
    stream_of,
    trainable,
)
from envweave_gym.seeding import draw_seed

NAME = "test/Scripted-v0"


def scripted(steps: Sequence[Any] = (), resets: Sequence[Any] = (), **kwargs: Any) -> RequestStream:
    return RequestStream(Scripted(steps, resets), name=NAME, **{"reset_deadline": 0, **kwargs})


def faulty(steps: Sequence[Any] = (), resets: Sequence[Any] = (), **kwargs: Any) -> RequestStream:
    return scripted(steps, resets, on_fault="truncate", **kwargs)


def seed_of(info: dict[str, Any]) -> int:
    return stream_of(info).events[0].data["seed"]


def kinds(info: dict[str, Any]) -> list[EventKind]:
    return [event.kind for event in stream_of(info).events]


# The stream


def test_an_episode_is_numbered_from_its_start_to_its_end() -> None:
    env = scripted([0.5, message("user", "well?"), "end"])
    _, info = env.reset(seed=7, options={"index": np.int64(3)})
    start = Event(0, EventKind.EPISODE_START, None, None, {"seed": 7, "options": {"index": 3}})
    assert info["stream"] == Stream((Request(0, RequestKind.ACT, "agent", 0),), (start,))
    _, _, _, _, info = env.step(np.int64(2))
    acted = Event(1, EventKind.ACT, "agent", None, {"action": 2})
    earned = Event(2, EventKind.REWARD, "agent", None, {"reward": 0.5})
    assert info["stream"] == Stream((Request(2, RequestKind.ACT, "agent", 1),), (acted, earned))
    _, _, _, _, info = env.step(0)
    assert [(event.seq, event.kind) for event in info["stream"].events] == [(3, "act"), (4, "message")]
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (True, False)
    ended = Event(6, EventKind.EPISODE_END, None, None, {"terminated": True, "truncated": False})
    assert info["stream"].events[-1] == ended
    assert info["stream"].requests == (Request(6, RequestKind.RESET, None, 3),)
    assert type(info["seq"]) is int
    assert info["seq"] == 6
    _, info = env.reset()
    assert info["seq"] == 0


def test_the_step_limit_truncates_and_the_stream_says_so() -> None:
    env = scripted(["end", 0.0, 0.0], max_steps=2)
    env.reset(seed=0)
    *_, terminated, truncated, _ = env.step(0)
    assert (terminated, truncated) == (True, False)
    env.reset()
    assert env.step(0)[2:4] == (False, False)
    *_, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (False, True)
    assert stream_of(info).events[-1].data == {"terminated": False, "truncated": True}
    assert stream_of(info).requests[0].kind == RequestKind.RESET


def test_what_was_told_between_episodes_is_of_neither() -> None:
    env = scripted()
    env.reset(seed=0)
    env.unwrapped.tell(message("user", "late"))
    _, info = env.reset()
    assert kinds(info) == ["episode_start"]


def test_the_environments_own_info_stays_as_it_is() -> None:
    env = RequestStream(Reused())
    _, first = env.reset(seed=0)
    *_, second = env.step(0)
    *_, third = env.step(0)
    assert env.unwrapped.info == {"taken": 2}
    assert [info["taken"] for info in (first, second, third)] == [0, 1, 2]
    assert [info["seq"] for info in (first, second, third)] == [0, 1, 2]


def test_the_keys_of_the_stream_are_its_own() -> None:
    env = scripted([{"stream": "mine", "seq": "mine", "other": "mine"}])
    env.reset(seed=0)
    *_, info = env.step(0)
    assert isinstance(info["stream"], Stream)
    assert (info["seq"], info["other"]) == (1, "mine")


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        (1.5, [1.5]),
        (np.float32(0.5), [0.5]),
        (np.float64(-2), [-2.0]),
        (True, [1.0]),
        (0, []),
        (-0.0, []),
        (np.float32(0), []),
        (np.array(3), [3.0]),
        (float("nan"), ["nan"]),
        (float("-inf"), ["-inf"]),
        (np.float32("nan"), ["nan"]),
    ],
)
def test_rewards_are_handed_on_and_told_as_json(reward: Any, told: list[Any]) -> None:
    env = scripted([reward])
    env.reset(seed=0)
    _, given, _, _, info = env.step(0)
    assert given is reward
    assert [event.data["reward"] for event in stream_of(info).of_kind(EventKind.REWARD)] == told
    json.dumps([event.data for event in stream_of(info).events], allow_nan=False)


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


class Malformed(Scripted):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def step(self, action: int) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [None, (0, 0.0, False, {}), (0, 0.0, False, False, None)])
def test_an_answer_of_the_wrong_form_is_a_fault(answer: Any) -> None:
    env = RequestStream(Malformed(answer), on_fault="truncate")
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(0)
    assert (observation, reward, terminated, truncated) == (0, 0.0, False, True)
    assert "fault" in info


# Seeds


def test_every_reset_has_a_seed_and_tells_it() -> None:
    env = scripted()
    told = [seed_of(env.reset(seed=seed)[1]) for seed in (5, None, None, 6, None, 5, None)]
    assert told == env.unwrapped.seeds
    assert told == [5, draw_seed(5, 1), draw_seed(5, 2), 6, draw_seed(6, 1), 5, draw_seed(5, 1)]
    assert len(set(told)) == 5


def test_the_draw_depends_on_resets_alone() -> None:
    quiet, busy = scripted(), scripted([0.0, "end"] * 9)
    quiet.reset(seed=1)
    busy.reset(seed=1)
    for _ in range(4):
        busy.step(0)
        busy.step(0)
        assert seed_of(quiet.reset()[1]) == seed_of(busy.reset()[1])


def test_unseeded_first_resets_differ() -> None:
    assert seed_of(scripted().reset()[1]) != seed_of(scripted().reset()[1])


def test_wrappers_do_not_change_the_seeds() -> None:
    outside = RecordEpisodeStatistics(TransformReward(scripted(), lambda reward: reward))
    inside = RequestStream(RecordEpisodeStatistics(Scripted()))
    for seed in (3, None, None):
        assert seed_of(outside.reset(seed=seed)[1]) == seed_of(inside.reset(seed=seed)[1])


@pytest.mark.parametrize(
    "seed",
    [-1, 1.5, "a", True, [1], 2**64, np.int64(-1), np.bool_(True), pytest.param(10**5000, id="5000 digits")],
)
def test_a_bad_seed_is_refused_and_the_episode_goes_on(seed: Any) -> None:
    env = scripted()
    env.reset(seed=4)
    env.step(0)
    with pytest.raises(InvalidArgument, match=rf"{NAME}: reset\(seed=.*is not a seed; give None or an int"):
        env.reset(seed=seed)
    *_, info = env.step(0)
    assert info["seq"] == 2
    assert seed_of(env.reset()[1]) == draw_seed(4, 1)


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1, 2**63, 2**64 - 1, np.int64(7), np.uint64(2**64 - 1)])
def test_seeds_of_64_bits_are_taken_as_python_ints(seed: Any) -> None:
    _, info = scripted().reset(seed=seed)
    assert type(seed_of(info)) is int
    assert seed_of(info) == int(seed)


# Misuse


def test_calls_out_of_order_are_refused_in_one_sentence() -> None:
    env = scripted(["end"])
    with pytest.raises(ResetNeeded, match=rf"^{NAME}: step\(\) was called before reset\(\); call reset\(\)$"):
        env.step(0)
    env.reset(seed=0)
    env.step(0)
    for _ in range(2):
        with pytest.raises(
            ResetNeeded, match=r"step\(\) was called after the episode ended; call reset\(\)$"
        ):
            env.step(0)
    env.reset()
    assert env.step(0)[0] == 1


@pytest.mark.parametrize(
    "action", [3, -1, 0.5, "x", None, np.float32(1), [0], {"a": 1}, pytest.param(10**5000, id="5000 digits")]
)
def test_an_invalid_action_names_the_environment_and_changes_nothing(action: Any) -> None:
    env = scripted()
    with pytest.raises(ResetNeeded):
        env.step(action)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=rf"^{NAME}: action .* is not in Discrete\(3\)$") as caught:
        env.step(action)
    assert isinstance(caught.value, gym.error.InvalidAction)
    assert len(str(caught.value)) < 150
    observation, *_, info = env.step(0)
    assert (observation, info["seq"]) == (1, 1)
    assert state_of(env)["step_count"] == 1


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("max_steps", 0),
        ("max_steps", -1),
        ("max_steps", 2.0),
        ("max_steps", True),
        ("on_fault", "ignore"),
        ("on_fault", None),
        ("reset_deadline", -1),
        ("reset_deadline", "soon"),
        ("reset_deadline", float("nan")),
    ],
)
def test_wrong_arguments_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"{NAME}: {argument}="):
        RequestStream(Scripted(), name=NAME, **{argument: value})


def test_a_second_stream_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has its stream already"):
        RequestStream(RecordEpisodeStatistics(gym.make("envweave/Echo-v0")))


def test_a_refusal_of_the_environments_own_is_no_fault() -> None:
    for refusal in (InvalidAction("full"), gym.error.InvalidAction("full"), MissingExtra("pip install")):
        env = faulty([refusal, 1.0])
        env.reset(seed=0)
        with pytest.raises(type(refusal), match=re.escape(str(refusal))):
            env.step(0)
        assert env.step(0)[1] == 1.0
    env = faulty(resets=[InvalidArgument("no such index")])
    with pytest.raises(InvalidArgument, match="no such index"):
        env.reset(seed=0)
    env.reset()


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
    env.unwrapped.tell(message("user", "last words"))
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


def test_a_fault_the_environment_reports_itself_is_told() -> None:
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


def test_what_a_failing_reset_told_is_dropped() -> None:
    class Talker(Scripted):
        def reset(self, **kwargs: Any) -> Any:
            self.tell(message("user", "hello"))
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


# Copies


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_in_mid_episode(duplicate: Any) -> None:
    env = scripted([0.5, message("user", "x"), 1.0, "end"])
    env.reset(seed=3)
    env.step(0)
    env.unwrapped.tell(message("user", "on my mind"))
    other = duplicate(env)
    for _ in range(3):
        assert str(env.step(1)) == str(other.step(1))
    assert str(env.reset()) == str(other.reset())
    assert state_of(env) == state_of(other)


def test_a_copy_before_the_first_reset_draws_its_own_seed() -> None:
    env = scripted()
    other = copy.deepcopy(env)
    assert seed_of(env.reset()[1]) != seed_of(other.reset()[1])


# Among other wrappers


def test_third_party_wrappers_work_inside_and_outside() -> None:
    def stacked(stream_inside: bool) -> Any:
        env: Any = Scripted([1.0] * 9)
        env = RequestStream(env) if stream_inside else env
        env = TransformAction(env, lambda action: action - 5, Discrete(3, start=5))
        env = TransformObservation(env, lambda taken: 10 * taken, Discrete(10000))
        env = NormalizeReward(RecordEpisodeStatistics(env))
        return env if stream_inside else RequestStream(env)

    for inside in (True, False):
        env = stacked(inside)
        env.reset(seed=0)
        observation, _, _, _, info = env.step(6)
        assert observation == 10
        acted = stream_of(info).of_kind(EventKind.ACT)[0]
        assert acted.data["action"] == (1 if inside else 6)
        with pytest.raises(InvalidAction):
            env.step(2)


def test_actions_of_nested_spaces_are_told_as_json() -> None:
    class Nested(Scripted):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Dict(move=Box(-1, 1, (2,), np.float32), kind=Discrete(2))

    env = RequestStream(Nested())
    env.reset(seed=0)
    *_, info = env.step({"move": np.array([0.5, -1], np.float32), "kind": np.int64(1)})
    assert stream_of(info).events[0].data == {"action": {"move": [0.5, -1.0], "kind": 1}}


def test_a_stream_put_on_by_hand_is_in_the_spec() -> None:
    env = RequestStream(gym.make("CartPole-v1"), max_steps=3, on_fault="truncate")
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert isinstance(again, RequestStream)
    assert again.name == "CartPole-v1"
    again.reset(seed=0)
    assert [again.step(0)[3] for _ in range(3)] == [False, False, True]


def test_the_stream_of_an_id_is_not_in_its_spec() -> None:
    env = gym.make("envweave/Counter-v0", max_steps=3)
    assert env.spec.additional_wrappers == ()
    assert gym.make(env.spec.to_json() and EnvSpec.from_json(env.spec.to_json())).spec == env.spec


def test_the_checker_checks_once_and_is_stepped_around() -> None:
    class Shifty(Scripted):
        def step(self, action: int) -> Any:
            observation, *rest = super().step(action)
            return (observation + 0.5 if self.taken > 1 else observation), *rest

    env = RequestStream(PassiveEnvChecker(Shifty()))
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step(0)[0] for _ in range(3)] == [1, 2.5, 3.5]
    wrong = RequestStream(PassiveEnvChecker(Malformed((0, 0.0, False, False, None))))
    wrong.reset(seed=0)
    with pytest.raises(AssertionError, match=r"`info` returned by `step\(\)`"):
        wrong.step(0)


def test_state_counts_episodes_and_steps_and_shows_own_fields() -> None:
    env = RecordEpisodeStatistics(scripted())
    assert state_of(env) == {"episode": -1, "step_count": 0, "taken": 0}
    env.reset(seed=0)
    env.step(0)
    env.reset()
    env.step(0)
    env.step(0)
    assert state_of(env) == {"episode": 1, "step_count": 2, "taken": 2}
    assert env.env.state() == state_of(env)
