"""Episodes of a language model in one environment: prompt, reply, action, step, until the end or a limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import envweave_gym
from envweave_gym.core.faults import Fault, FaultKind, InvalidAction, fault_of
from envweave_gym.episode.stream import EventKind, stream_of
from envweave_gym.training.tinker.datums import TokenRow
from envweave_gym.training.tinker.instructions import with_instruction
from envweave_gym.training.tinker.prompt_cutting import cut_to
from envweave_gym.training.tinker.prompts import Conversation, Message, Prompts
from envweave_gym.training.tinker.sampling import (
    PromptRequests,
    PromptTooLong,
    Sampler,
    SharedRequest,
    seed_of,
)

AGENT = "agent"
"""The name of the only agent of a Gymnasium environment."""


@dataclass(frozen=True)
class Limits:
    """Limits of an episode, and the reward of one that a reply without an action ends."""

    max_turns: int = 16
    max_prompt_tokens: int = 0
    """Tokens to which the first prompt is cut; 0 for no limit."""
    invalid_replies: int = 0
    """Replies that name no action after which the agent is asked again; one more ends the episode."""
    invalid_reward: float = 0.0


@dataclass(frozen=True)
class Task:
    """One episode to play: member ``member`` of the group that resets with ``seed``."""

    key: tuple[object, ...]
    """Parts of the seeds of its requests; equal for the members of a group."""
    group: int
    member: int
    seed: int
    opening: SharedRequest
    """The request for the first reply of the episode."""
    later: PromptRequests | None = None
    """The requests for later replies, if members of the group with the same prompt share them."""
    options: Mapping[str, Any] | None = None
    """Options of the reset."""


@dataclass
class Trajectory:
    """An agent's part of an episode."""

    agent: str
    rows: list[TokenRow]
    messages: list[Message]
    reward: float = 0.0
    invalid: int = 0
    """The number of replies that named no action."""
    actions: int = 0
    """The number of replies whose action the environment played."""
    counts: bool = True
    """Whether its reward is the agent's own doing: not if another agent's reply ended the game."""


@dataclass
class Episode:
    """A task with the trajectory of each agent, or with the fault by which it was lost."""

    task: Task
    trajectories: dict[str, Trajectory] = field(default_factory=dict[str, Trajectory])
    fault: Fault | None = None


@dataclass(frozen=True)
class Policies:
    """The prompts, and the sampler of each agent."""

    prompts: Prompts
    sampler_of: Callable[[str], Sampler]
    limits: Limits
    instruction: str = ""
    """Text before the first message of an episode."""
    default_instructions: Mapping[str, str] = field(default_factory=dict[str, str])
    """The instruction of each agent where none is given and the environment writes no messages."""


class EpisodeLost(Exception):
    """Raised by the play functions when the environment reports a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


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


class Seat:
    """One agent in one episode: its conversation, the sampler that answers for it, and its reward."""

    def __init__(self, agent: str, task: Task, policies: Policies) -> None:
        self.agent, self._task, self._limits = agent, task, policies.limits
        self._sampler = policies.sampler_of(agent)
        self._prompts = policies.prompts
        self._instruction = policies.instruction
        self._default_instruction = policies.default_instructions.get(agent, "")
        self.conversation = Conversation(self._prompts)
        self.reward, self.turns, self.invalid = 0.0, 0, 0
        self.counts = True
        self._writes_messages = False

    def read(self, info: Any, observation: Any) -> None:
        """Append the new messages of an info to the history; an environment without messages shows its observation."""
        messages = envweave_gym.messages_of(info)
        self._writes_messages |= bool(messages)
        if not self._writes_messages:
            messages = [{"role": "user", "content": str(observation)}]
        anew = _begins_anew(stream_of(info))
        instruction = self._instruction or ("" if self._writes_messages else self._default_instruction)
        if instruction and (anew or not self.conversation.messages):
            messages = with_instruction(instruction, messages)
        if self._limits.max_prompt_tokens and not self.conversation.messages:
            messages = cut_to(self._prompts, messages, self._limits.max_prompt_tokens)
        self.conversation.read(messages, anew=anew)

    def reply(self, *, opens: bool = False) -> str:
        """Sample the next reply; ``opens`` marks the first of the episode, which is in the group's shared request."""
        task, prompt = self._task, self.conversation.prompt()
        seed = seed_of(*task.key, self.agent, task.member, self.turns)
        if opens and self.turns == 0:
            reply = task.opening.reply(self._sampler, prompt, task.member, seed)
        elif task.later is not None:
            reply = task.later.reply(self.agent, self._sampler, prompt, task.member)
        else:
            reply = self._sampler.replies(self._sampler.submit(prompt, 1, seed))[0]
        self.turns += 1
        return self.conversation.answer(reply.tokens, reply.logprobs)

    def refuse(self, error: InvalidAction) -> bool:
        """Count a reply that named no action; return whether the agent may reply again, and let it read why."""
        self.invalid += 1
        if self.invalid > self._limits.invalid_replies:
            self.reward += self._limits.invalid_reward
            return False
        self.conversation.read([{"role": "user", "content": str(error)}])
        return True

    @property
    def may_act(self) -> bool:
        """Whether the limit of turns is not reached yet."""
        return self.turns < self._limits.max_turns

    def trajectory(self) -> Trajectory:
        """Return what was played, without rows in which nothing was sampled."""
        rows = [row.until_last_reply() for row in self.conversation.rows if row.spans]
        return Trajectory(
            self.agent,
            rows,
            self.conversation.messages,
            self.reward,
            self.invalid,
            self.turns - self.invalid,
            self.counts and bool(rows),
        )


def play(env: Any, task: Task, policies: Policies, watch: Stopwatch) -> dict[str, Trajectory]:
    """Play one episode of a Gymnasium environment; raise ``EpisodeLost`` if it was lost."""
    seat = Seat(AGENT, task, policies)
    with watch:
        observation, info = env.reset(seed=task.seed, options=task.options)
    raise_fault(info)
    seat.read(info, observation)
    over = False
    while not over and seat.may_act:
        try:
            action = envweave_gym.parse_action(env, seat.reply(opens=True))
            with watch:
                observation, reward, terminated, truncated, info = env.step(action)
        except InvalidAction as error:
            over = not seat.refuse(error)
            continue
        except PromptTooLong as error:
            if not seat.turns:
                raise EpisodeLost(Fault(FaultKind.CAPACITY, str(error), retryable=False)) from error
            break
        raise_fault(info, acted=True)
        seat.read(info, observation)
        seat.reward += checked_reward(reward)
        over = bool(terminated or truncated)
    return {AGENT: seat.trajectory()}


def raise_fault(info: Any, *, acted: bool = False) -> None:
    """Raise ``EpisodeLost`` for the info of a lost episode, or of a step (``acted``) that was no transition."""
    if isinstance(fault := info.get("fault"), Fault):
        raise EpisodeLost(fault)
    if acted and not envweave_gym.trainable(info):
        raise EpisodeLost(
            Fault(FaultKind.LOST, "a step of the environment was no transition", retryable=True)
        )


def checked_reward(reward: Any) -> float:
    """Return a reward as a float; raise ``EpisodeLost`` for NaN or infinity, which would spoil its whole group."""
    value = float(reward)
    if not math.isfinite(value):
        raise EpisodeLost(Fault(FaultKind.CRASH, f"the environment gave the reward {value}", retryable=True))
    return value


def lost(task: Task, error: BaseException) -> Episode:
    """Return the episode of a task that an exception ended."""
    return Episode(task, fault=error.fault if isinstance(error, EpisodeLost) else fault_of(error))


def _begins_anew(stream: Any) -> bool:
    """Return whether the messages of a stream replace the history, or begin an episode."""
    for event in () if stream is None else stream.events:
        if event.kind is EventKind.EPISODE_START:
            return True
        if event.kind is EventKind.MESSAGE and event.data.get("replace"):
            return True
    return False
