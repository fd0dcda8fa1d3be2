"""Rollouts with a fake sampler: shared first requests, seeds, limits, faults, hung episodes."""

from __future__ import annotations

import math
import queue
import threading
from typing import Any

import gymnasium as gym
import pytest
from absent import needs_module
from fake_tinker import FakeClient, group, policies, sampler

import envweave_gym
from envweave_gym.chat import ChatGame, ChatRules
from envweave_gym.core.faults import Fault, FaultStorm, InvalidArgument
from envweave_gym.core.protocols import AGENT
from envweave_gym.training.tinker.episodes import Episode, Policies
from envweave_gym.training.tinker.rollouts import EpisodeBatch, Rollouts, RolloutWorker, _Job
from envweave_gym.training.tinker.sampling import Sampler, SharedRequest
from envweave_gym.training.tinker.update_metrics import episode_metrics

needs_module("tinker", "tinker")
needs_module("jinja2")


class Sums(gym.Env[str, int]):
    """Each of two turns asks for a digit; the reward is 1 for the right one."""

    observation_space = envweave_gym.Unicode(64)
    action_space = gym.spaces.Discrete(10)

    def __init__(self, before_step: Any = None) -> None:
        self._before_step = before_step

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn, self.right = 0, int(self.np_random.integers(10))
        return self._shown()

    def _shown(self) -> tuple[str, dict[str, Any]]:
        return f"digit {self.turn}: {self.right}", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._before_step is not None:
            self._before_step(self)
        reward = float(action == self.right)
        self.turn += 1
        observation, info = self._shown()
        return observation, reward, self.turn == 2, False, info


def rollouts(make: Any = Sums, rules: ChatRules | None = None, **settings: Any) -> Rollouts:
    envweave_gym.register("local://sums", factory=make)
    return Rollouts(
        lambda: ChatGame(envweave_gym.make("local://sums"), rules),
        **{"num_envs": 3, "deadline_s": 30.0, **settings},
    )


def last_digit(prompt: str, seed: int, index: int) -> str:
    return next(char for char in reversed(prompt) if char.isdigit())


def rewards(episodes: list[Episode]) -> list[float]:
    return [one.trajectories[AGENT].reward for one in episodes]


@pytest.mark.usefixtures("registries")
def test_the_first_turn_of_a_group_is_one_request_and_every_later_one_has_its_own_seed():
    client = FakeClient(last_digit)
    tasks = [*group(4), *group(4, seed=8, index=1)]
    with rollouts() as pool:
        played = pool.play(tasks, policies(client))
    assert rewards(played.episodes) == [2.0] * 8
    assert [one.task for one in played.episodes] == tasks
    counts = sorted(request.count for request in client.requests)
    assert counts == [1] * 8 + [4] * 2
    seeds = [request.seed for request in client.requests]
    assert len(set(seeds)) == len(seeds)
    trajectory = played.episodes[0].trajectories[AGENT]
    assert [len(row.spans) for row in trajectory.rows] == [2]
    roles = ["system", *["user", "assistant"] * 2, "user"]
    assert [message["role"] for message in trajectory.messages] == roles


@pytest.mark.usefixtures("registries")
def test_the_same_tasks_make_the_same_requests_with_one_environment_or_many():
    made: list[set[Any]] = []
    for num_envs in (1, 5):
        client = FakeClient(lambda prompt, seed, index: str((seed + index) % 10))
        with rollouts(num_envs=num_envs) as pool:
            played = pool.play([*group(3), *group(3, seed=9, index=1)], policies(client))
        rows = {tuple(row.tokens) for one in played.episodes for row in one.trajectories[AGENT].rows}
        made.append(
            {(tuple(request.prompt), request.seed, request.count) for request in client.requests} | rows
        )
    assert made[0] == made[1]


@pytest.mark.usefixtures("registries")
def test_replies_without_an_action_are_asked_for_again_up_to_a_limit_and_then_end_the_episode():
    client = FakeClient(
        lambda prompt, seed, index: "well" if prompt.count("well") < 4 else last_digit(prompt, 0, 0)
    )
    with rollouts(rules=ChatRules(invalid_replies=9), num_envs=1) as pool:
        (patient,) = pool.play(group(1), policies(client)).episodes
    with rollouts(rules=ChatRules(invalid_replies=1, invalid_reward=-1.0), num_envs=1) as pool:
        (strict,) = pool.play(group(1), policies(client)).episodes
    assert patient.trajectories[AGENT].invalid >= 2
    assert patient.trajectories[AGENT].reward == 2.0
    assert strict.trajectories[AGENT].invalid == 2
    assert strict.trajectories[AGENT].reward == -1.0
    assert strict.fault is None


@pytest.mark.usefixtures("registries")
def test_a_lost_episode_is_played_again_with_the_same_seeds_and_counts_as_a_fault():
    broken = iter([True, False, True, False])

    def crash(env: Sums) -> None:
        if env.turn == 1 and next(broken, False):
            raise ConnectionError("the simulator is gone")

    client = FakeClient(last_digit)
    with rollouts(lambda: Sums(crash), num_envs=1) as pool:
        played = pool.play(group(2), policies(client))
    assert rewards(played.episodes) == [2.0, 2.0]
    assert played.faults == 2
    assert played.messages == ["ConnectionError: the simulator is gone"]
    later = [request.seed for request in client.requests if request.count == 1]
    assert len(later) == 4
    assert len(set(later)) == 2


@pytest.mark.usefixtures("registries")
def test_an_episode_that_stays_lost_has_a_fault_and_no_reward():
    def crash_on_seed(env: Sums) -> None:
        if env.np_random_seed == 7:
            raise OSError("disk full")

    client = FakeClient(last_digit)
    tasks = [*group(2), *group(2, seed=8, index=1)]
    with rollouts(lambda: Sums(crash_on_seed), attempts=2) as pool:
        played = pool.play(tasks, policies(client))
    assert [one.fault is None for one in played.episodes] == [False, False, True, True]
    assert all(not one.trajectories for one in played.episodes[:2])
    assert played.faults == 4


@pytest.mark.usefixtures("registries")
def test_faults_in_a_row_end_the_run_with_one_sentence():
    def crash(env: Sums) -> None:
        raise OSError("disk full")

    with (
        rollouts(lambda: Sums(crash), num_envs=2) as pool,
        pytest.raises(FaultStorm, match=r"10 episodes were lost, .*; the last fault: OSError: disk full"),
    ):
        pool.play(group(8), policies(FakeClient(last_digit)))


@pytest.mark.usefixtures("registries")
def test_replies_without_an_action_do_not_hide_that_every_step_crashes():
    def crash(env: Sums) -> None:
        raise OSError("disk full")

    client = FakeClient(lambda prompt, seed, index: "well" if index % 2 else last_digit(prompt, seed, index))
    with rollouts(lambda: Sums(crash), num_envs=1, attempts=1) as pool:
        assert pool.play(group(18), policies(client)).faults == 9
        with pytest.raises(FaultStorm, match=r"no episode played an action without a fault; .*disk full"):
            pool.require_actions()
        with pytest.raises(FaultStorm, match="10 episodes were lost"):
            pool.play(group(2), policies(client))


@pytest.mark.usefixtures("registries")
def test_a_hung_episode_is_a_fault_that_holds_up_no_other():
    release, hung = threading.Event(), threading.Event()

    def hang(env: Sums) -> None:
        if not hung.is_set():
            hung.set()
            release.wait(60)

    with rollouts(lambda: Sums(hang), num_envs=2, deadline_s=0.3) as pool:
        played = pool.play(group(6), policies(FakeClient(last_digit)))
        assert rewards(played.episodes) == [2.0] * 6
        assert played.faults == 1
        assert "more than 0.3 s in its environment" in played.messages[0]
        release.set()
        again = pool.play(group(2), policies(FakeClient(last_digit)))
    assert rewards(again.episodes) == [2.0, 2.0]


@pytest.mark.usefixtures("registries")
def test_a_wrong_argument_of_the_environment_ends_the_run_and_the_next_tasks_are_played():
    def refuse(env: Sums) -> None:
        if env.np_random_seed == 7:
            raise InvalidArgument("no such data set")

    with rollouts(lambda: Sums(refuse)) as pool:
        with pytest.raises(InvalidArgument, match="no such data set"):
            pool.play(group(6), policies(FakeClient(last_digit)))
        assert rewards(pool.play(group(2, seed=8), policies(FakeClient(last_digit))).episodes) == [2.0, 2.0]


@pytest.mark.usefixtures("registries")
def test_a_fault_that_the_environment_reports_is_no_reward():
    class Reports(Sums):
        def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
            fault = Fault(envweave_gym.FaultKind.LOST, "its server is gone", retryable=False)
            return "", 0.0, False, True, {"fault": fault}

    with rollouts(Reports, num_envs=1) as pool:
        (episode,) = pool.play(group(1), policies(FakeClient(last_digit))).episodes
    assert episode.fault is not None
    assert "its server is gone" in episode.fault.message


@pytest.mark.usefixtures("registries")
def test_an_episode_that_exits_the_process_is_a_fault_and_the_others_are_played():
    def leave(env: Sums) -> None:
        if env.np_random_seed == 7:
            raise SystemExit(3)

    tasks = [*group(2), *group(2, seed=8, index=1)]
    with rollouts(lambda: Sums(leave)) as pool:
        played = finished(lambda: pool.play(tasks, policies(FakeClient(last_digit))))
    assert [one.fault is None for one in played.episodes] == [False, False, True, True]
    assert "SystemExit: 3" in played.messages


@pytest.mark.usefixtures("registries")
@pytest.mark.usefixtures("registries")
def test_an_episode_that_outgrows_the_context_ends_with_its_reward_so_far_and_is_counted():
    client = FakeClient(last_digit)
    with rollouts() as pool:
        whole = pool.play(group(2), policies(client))
        [first, *_, last] = sorted(len(request.prompt) for request in client.requests)
        assert first < last
        one = sampler(client, context=last + 63)  # the second prompt and a reply of 64 tokens do not fit
        cut = pool.play(group(2), Policies(policies(client).prompts, lambda agent: one))
    assert (rewards(whole.episodes), rewards(cut.episodes)) == ([2.0] * 2, [1.0] * 2)
    counted = [episode_metrics(played, 1.0)["context_overflow"] for played in (whole, cut)]
    assert (counted, cut.faults) == ([0, 2], 0)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_finite_number_is_a_fault(reward: float):
    class Spoilt(gym.Env[str, int]):
        observation_space, action_space = envweave_gym.Unicode(64), gym.spaces.Discrete(10)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
            return "a digit?", {}

        def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return "", reward, True, False, {}

    with Rollouts(lambda: ChatGame(Spoilt()), num_envs=1, attempts=1) as pool:
        (episode,) = pool.play(group(1), policies(FakeClient(lambda *args: "7"))).episodes
    assert episode.fault is not None
    assert episode.fault.message == f"the environment gave the reward {reward}"


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("wrong", [{"terminated": "yes"}, {"observation": None}])
def test_results_of_wrong_types_are_no_episodes_to_train_on(wrong: dict[str, Any]):
    class Strange(Sums):
        def step(self, action: int) -> Any:
            results = {"observation": "", "reward": 1.0, "terminated": True, "truncated": False, **wrong}
            return *results.values(), {}

    with rollouts(Strange, num_envs=1) as pool:
        played = pool.play(group(1), policies(FakeClient(last_digit)))
    (episode,) = played.episodes
    assert episode.fault is not None
    assert not episode.fault.retryable
    assert episode.trajectories == {}
    assert played.faults == 1


def test_an_environment_that_exits_when_it_is_closed_holds_up_nothing():
    class Leaves(Sums):
        def reset(self, **settings: Any) -> Any:
            raise OSError("disk full")

        def close(self) -> None:
            raise SystemExit

    with Rollouts(lambda: ChatGame(Leaves()), num_envs=1, attempts=1) as pool:
        played = finished(lambda: pool.play(group(2), policies(FakeClient(last_digit))))
    assert played.messages == ["OSError: disk full"]


def test_a_job_taken_while_its_player_is_abandoned_goes_to_another_player():
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    worker = RolloutWorker(lambda: ChatGame(Sums()), jobs, queue.SimpleQueue())
    assert worker.abandon()  # while it waits for a job
    job = object()
    jobs.put(job)
    worker.thread.join(30)
    assert not worker.thread.is_alive()
    assert jobs.get_nowait() is job


def test_a_player_that_has_ended_its_late_episode_is_not_abandoned():
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
    worker = RolloutWorker(lambda: ChatGame(Sums()), jobs, outcomes)
    (late, task) = group(2)
    jobs.put(_Job(0, late, policies(FakeClient(last_digit))))
    ended = outcomes.get(timeout=30)
    assert not worker.abandon(ended.job)
    jobs.put(_Job(1, task, ended.job.policies))
    assert outcomes.get(timeout=30).episode.task is task
    jobs.put(None)


def finished(play: Any) -> EpisodeBatch:
    """Return what ``play()`` returns, in a thread that a hang does not hold up."""
    done: list[EpisodeBatch] = []
    thread = threading.Thread(target=lambda: done.append(play()), daemon=True)
    thread.start()
    thread.join(30)
    assert done, "still waiting"
    return done[0]


def test_a_shared_request_that_failed_is_sent_again():
    client = FakeClient(last_digit)
    failures = [ConnectionError("the reply was lost")]

    def wait(future: Any) -> Any:
        if failures:
            raise failures.pop()
        return future.result()

    one = Sampler(client, wait, max_tokens=4, stop=[])
    shared = SharedRequest(2, 5)
    prompt = [ord("7")]
    with pytest.raises(ConnectionError):
        shared.reply(one, prompt, 0, 1)
    assert shared.reply(one, prompt, 0, 1).tokens[:1] == [ord("7")]
    assert shared.reply(one, prompt, 1, 2).tokens[:1] == [ord("7")]
    assert [(request.count, request.seed) for request in client.requests] == [(2, 5), (2, 5)]
