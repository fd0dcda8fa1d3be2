"""Rollouts: a fixed number of environments, each in a thread, play the tasks of an update.

A slow episode holds up only its own thread. One that spends longer than its deadline in its environment is a fault;
its worker is abandoned, and another one with a new environment replaces it. A fault never reaches the trainer as
a reward: the task is played again, with the same seeds, a limited number of times.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from envweave_gym.chat import ChatGame
from envweave_gym.core.faults import (
    Fault,
    FaultKind,
    FaultStorm,
    InvalidArgument,
    NotAvailable,
    UnknownEnvironment,
)
from envweave_gym.training.tinker.connection import ServerLost
from envweave_gym.training.tinker.episodes import Episode, Policies, Stopwatch, Task, lost, play

POLL_S = 0.25
"""Interval at which deadlines are checked."""
CLOSE_S = 5.0
"""Time for environments to close at the end; threads that take longer are left behind."""


@dataclass
class _Job:
    index: int
    task: Task
    policies: Policies
    attempt: int = 1


@dataclass
class _Outcome:
    job: _Job
    episode: Episode
    fatal: BaseException | None = None


class RolloutWorker:
    """Thread with an environment of its own that plays the jobs of a queue."""

    def __init__(
        self,
        make: Callable[[], ChatGame],
        jobs: queue.SimpleQueue[_Job | None],
        outcomes: queue.SimpleQueue[_Outcome],
    ) -> None:
        self._make, self._jobs, self._outcomes = make, jobs, outcomes
        self._game: ChatGame | None = None
        self.watch = Stopwatch()
        self.job: _Job | None = None
        self._lock = threading.Lock()
        self._abandoned = False
        self.thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self.thread.start()

    def abandon(self, job: _Job | None = None) -> bool:
        """Ignore what the worker still returns and give it no more jobs, but only while it plays ``job``, if given.

        Return whether that was done.
        """
        with self._lock:
            if job is not None and self.job is not job:
                return False
            self._abandoned = True
            return True

    def _run(self) -> None:
        while not self._abandoned and (job := self._jobs.get()) is not None and self._begin(job):
            outcome = self._outcome(job)
            with self._lock:
                self.job = None
                if not self._abandoned:
                    self._outcomes.put(outcome)
        self._close()

    def _begin(self, job: _Job) -> bool:
        """Note a job that was taken, or return it to the queue if the worker was abandoned in the meantime."""
        with self._lock:
            if self._abandoned:
                self._jobs.put(job)
                return False
            self.watch = Stopwatch()
            self.job = job
            return True

    def _outcome(self, job: _Job) -> _Outcome:
        try:
            if self._game is None:
                with self.watch:
                    self._game = self._make()
            trajectories = play(self._game, job.task, job.policies, self.watch)
            return _Outcome(job, Episode(job.task, trajectories))
        except FATAL_ERRORS as error:
            return _Outcome(job, Episode(job.task), error)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: without an outcome, play() waits for ever
            self._close()
            return _Outcome(job, lost(job.task, error))

    def _close(self) -> None:
        game, self._game = self._game, None
        if game is not None:
            with suppress(BaseException):  # a broken environment may be unable to close, or call sys.exit()
                game.close()


FATAL_ERRORS = (InvalidArgument, NotAvailable, UnknownEnvironment, FaultStorm, ServerLost)
"""Exceptions of an episode that end the update: another attempt would end in the same way."""


@dataclass
class EpisodeBatch:
    """The episodes of an update in the order of their tasks, and the number of attempts that were lost."""

    episodes: list[Episode]
    faults: int = 0
    messages: list[str] = field(default_factory=list[str])
    """The messages of faults, each one once."""


class Rollouts:
    """Pool of environments that play tasks; use it as a context manager."""

    def __init__(
        self,
        make: Callable[[], ChatGame],
        *,
        num_envs: int,
        attempts: int = 3,
        deadline_s: float = 600.0,
    ) -> None:
        """Make environments with ``make``, as chats, when they are needed, at most ``num_envs`` at once.

        A task is tried ``attempts`` times; ``deadline_s`` limits the time in the environment of each.
        """
        self._make, self._num_envs = make, num_envs
        self._attempts, self._deadline_s = attempts, deadline_s
        self._fault_limit = max(10, 2 * num_envs)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._workers: list[RolloutWorker] = []
        self._in_a_row = 0
        self._last_message = ""
        self._acted = False

    def __enter__(self) -> Rollouts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def play(
        self, tasks: Sequence[Task], policies: Policies, on_episode: Callable[[], Any] = int
    ) -> EpisodeBatch:
        """Play the tasks; an episode that was lost at every attempt has a fault.

        Call ``on_episode`` after each. Raise ``FaultStorm`` if faults show that trying again does not help.
        """
        # The first member of every group first: its request has the replies of the others.
        order = sorted(range(len(tasks)), key=lambda index: (tasks[index].member, index))
        self._start(len(tasks))
        for index in order:
            self._jobs.put(_Job(index, tasks[index], policies))
        done: dict[int, Episode] = {}
        batch = EpisodeBatch([])
        try:
            while len(done) < len(tasks):
                for outcome in self._finished():
                    if (episode := self._settle(outcome, batch)) is not None:
                        done[outcome.job.index] = episode
                        on_episode()
        except BaseException:
            self._abandon_all()
            raise
        batch.episodes = [done[index] for index in range(len(tasks))]
        return batch

    def _start(self, jobs: int) -> None:
        while len(self._workers) < min(self._num_envs, jobs):
            self._workers.append(RolloutWorker(self._make, self._jobs, self._outcomes))

    def _finished(self) -> Iterable[_Outcome]:
        """Wait a moment for outcomes, and yield them, then those of workers beyond their deadline."""
        with suppress(queue.Empty):
            yield self._outcomes.get(timeout=POLL_S)
            while True:
                yield self._outcomes.get_nowait()
        for worker in list(self._workers):
            job, seconds = worker.job, worker.watch.seconds
            if job is not None and seconds > self._deadline_s and worker.abandon(job):
                self._replace(worker)
                message = f"an episode spent more than {self._deadline_s:g} s in its environment"
                fault = Fault(FaultKind.TIMEOUT, message, retryable=True)
                yield _Outcome(job, Episode(job.task, fault=fault))

    def _settle(self, outcome: _Outcome, batch: EpisodeBatch) -> Episode | None:
        """Return the episode of a task that is done, or put it into the queue again."""
        if outcome.fatal is not None:
            raise outcome.fatal
        fault = outcome.episode.fault
        if fault is None:
            # Episodes whose replies named no action never reached a step, and do not show that steps work.
            if any(one.actions for one in outcome.episode.trajectories.values()):
                self._in_a_row, self._acted = 0, True
            return outcome.episode
        self._count(fault, batch)
        if not fault.retryable or outcome.job.attempt >= self._attempts:
            return outcome.episode
        self._jobs.put(dataclasses.replace(outcome.job, attempt=outcome.job.attempt + 1))
        return None

    def _count(self, fault: Fault, batch: EpisodeBatch) -> None:
        batch.faults += 1
        self._in_a_row += 1
        self._last_message = fault.message
        if fault.message not in batch.messages:
            batch.messages.append(fault.message)
        if self._in_a_row >= self._fault_limit:
            raise FaultStorm(
                f"{self._in_a_row} episodes were lost, and none in between played an action; the last fault: "
                f"{fault.message}"
            )

    def require_actions(self) -> None:
        """Raise ``FaultStorm`` if there were faults and no episode has ever played an action without one."""
        if self._last_message and not self._acted:
            raise FaultStorm(f"no episode played an action without a fault; the last: {self._last_message}")

    def _replace(self, worker: RolloutWorker) -> None:
        self._workers.remove(worker)
        self._workers.append(RolloutWorker(self._make, self._jobs, self._outcomes))

    def _abandon_all(self) -> None:
        """Leave jobs that are not done to workers that nobody listens to; the next tasks get new ones."""
        for worker in self._workers:
            worker.abandon()
        self._end_workers()
        self._jobs, self._outcomes = queue.SimpleQueue(), queue.SimpleQueue()

    def _end_workers(self) -> list[RolloutWorker]:
        with suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        workers, self._workers = self._workers, []
        for _ in workers:
            self._jobs.put(None)
        return workers

    def close(self) -> None:
        """End the threads, which close their environments."""
        deadline = time.monotonic() + CLOSE_S
        for worker in self._end_workers():
            worker.thread.join(max(0.0, deadline - time.monotonic()))
