"""Episodes of language models in an environment or a game, as token rows for training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envweave_gym.chat import ChatGame, ChatHistory, ChatMessage, ChatTurn, EpisodeLost
from envweave_gym.chat.results import fault_from
from envweave_gym.core.faults import Fault, FaultKind
from envweave_gym.training.tinker.datums import TokenRow
from envweave_gym.training.tinker.prompt_cutting import cut_to
from envweave_gym.training.tinker.prompts import Conversation, Prompts
from envweave_gym.training.tinker.sampling import (
    PromptRequests,
    PromptTooLong,
    Sampler,
    SharedRequest,
    seed_of,
)


@dataclass(frozen=True)
class Task:
    """One episode to play: member ``member`` of the group that resets with ``seed``."""

    key: tuple[object, ...]
    """Parts of the seeds of its requests; equal for the members of a group."""
    group: int
    member: int
    seed: int
    first_request: SharedRequest
    """The request for the first reply of the episode, which the group shares."""
    later_requests: PromptRequests | None = None
    """The requests for later replies, if members of the group with the same prompt share them."""
    options: Mapping[str, Any] | None = None
    """Options of the reset."""


@dataclass
class Trajectory:
    """A role's part of an episode."""

    agent: str
    rows: list[TokenRow]
    messages: list[ChatMessage]
    reward: float = 0.0
    invalid: int = 0
    """The number of replies that named no action."""
    actions: int = 0
    """The number of replies whose action the environment played."""
    trainable: bool = True
    """Whether a trainer may learn from it: not if another role's reply ended the game, or several replies together."""
    overflowed: bool = False
    """Whether it ended because the next prompt did not fit the model's context."""


@dataclass
class Episode:
    """A task with the trajectory of each role, or with the fault by which it was lost."""

    task: Task
    trajectories: dict[str, Trajectory] = field(default_factory=dict[str, Trajectory])
    fault: Fault | None = None


@dataclass(frozen=True)
class Policies:
    """The prompts, and the sampler of each role."""

    prompts: Prompts
    sampler_of: Callable[[str], Sampler]
    max_prompt_tokens: int = 0
    """Tokens to which the first prompt is cut; 0 for no limit."""


class Stopwatch:
    """Accumulates the time that an episode has spent in its environment; safe to read from another thread.

    Waiting for replies does not count: a busy model is no fault of the environment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds in calls of the environment so far."""
        since = self._since
        return self._before + (0.0 if since is None else self._clock() - since)

    def __enter__(self) -> Stopwatch:
        self._since = self._clock()
        return self

    def __exit__(self, *error: object) -> None:
        self._before, self._since = self.seconds, None


class RolePolicy:
    """The policy of one role in one episode: its token rows, and the sampler that replies."""

    def __init__(
        self, role: str, history: ChatHistory, task: Task, policies: Policies, *, replies_first: bool
    ) -> None:
        """A role that ``replies_first``, alone, takes its first reply from the request that the group shares."""
        self._role, self._task, self._replies_first = role, task, replies_first
        self._policies, self._sampler = policies, policies.sampler_of(role)
        self.conversation = Conversation(policies.prompts, history)
        self.turns = 0

    def reply(self) -> str:
        """Sample the next reply."""
        task, prompt = self._task, self._prompt()
        seed = seed_of(*task.key, self._role, task.member, self.turns)
        if self._replies_first and self.turns == 0:
            reply = task.first_request.reply(self._sampler, prompt, task.member, seed)
        elif task.later_requests is not None:
            reply = task.later_requests.reply(self._role, self._sampler, prompt, task.member)
        else:
            reply = self._sampler.replies(self._sampler.submit(prompt, 1, seed))[0]
        self.turns += 1
        return self.conversation.answer(reply.tokens, reply.logprobs)

    def _prompt(self) -> list[int]:
        """Return the next prompt; the first one is cut to the limit."""
        limit, history = self._policies.max_prompt_tokens, self.conversation.history
        if limit and not self.turns:
            history.messages = cut_to(self._policies.prompts, history.messages, limit)
        return self.conversation.prompt()

    def trajectory(self, result: ChatTurn) -> Trajectory:
        """Return the role's part of the episode, without rows in which nothing was sampled."""
        rows = [row.until_last_reply() for row in self.conversation.rows if row.spans]
        return Trajectory(
            self._role,
            rows,
            self.conversation.history.messages,
            result.reward,
            result.refused,
            result.actions,
            result.trainable and bool(rows),
        )


def play(game: ChatGame, task: Task, policies: Policies, watch: Stopwatch) -> dict[str, Trajectory]:
    """Play one episode, and return the trajectory of each role; raise ``EpisodeLost`` if it was lost.

    An episode of a single agent that outgrows the context after its first turn ends there with its reward so far.
    """
    with watch:
        game.reset(task.seed, task.options)
    first = game.to_reply()
    role_policies = {
        role: RolePolicy(role, game.history(role), task, policies, replies_first=first == [role])
        for role in game.roles
    }
    overflowed = False
    while roles := game.to_reply():
        role_policy = role_policies[roles[0]]
        try:
            text = role_policy.reply()
        except PromptTooLong as error:
            if game.is_single and role_policy.turns:
                overflowed = True
                break
            raise EpisodeLost(str(error), Fault(FaultKind.CAPACITY, str(error), retryable=False)) from error
        with watch:
            game.reply(roles[0], text)
    trajectories = {role: one.trajectory(game.take_turn(role)) for role, one in role_policies.items()}
    for trajectory in trajectories.values():
        trajectory.overflowed = overflowed
    return trajectories


def lost(task: Task, error: BaseException) -> Episode:
    """Return the episode of a task that an exception ended."""
    return Episode(task, fault=fault_from(error))
