"""One episode of an environment as a chat: messages for a model, its replies, and its rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from envweave_gym.core.faults import EnvweaveError, Fault, InvalidAction, InvalidArgument, shown
from envweave_gym.core.reply_parsing import parse_action
from envweave_gym.episode.message import messages_of
from envweave_gym.episode.stream import EventKind, stream_of
from envweave_gym.episode.trainable import trainable

ChatMessage = dict[str, Any]
"""A message as :func:`envweave_gym.messages_of` returns it."""


class EpisodeLost(EnvweaveError):
    """Raised if the environment reports a fault: the episode was not played to its end, so it has no reward."""


class Ending(StrEnum):
    """Why an episode is over."""

    COMPLETED = "completed"
    """The environment terminated it."""
    MAX_TURNS = "max_turns"
    """The environment truncated it, or the model has given as many replies as the rules allow."""
    PARSE_ERROR = "parse_error"
    """Too many replies named no action."""
    OTHERS = "others"
    """Another agent of the game could not go on."""


@dataclass(frozen=True)
class ChatRules:
    """Limits of an episode, and the reward of one that a reply without an action ends."""

    max_turns: int = 16
    """Limit of replies."""
    invalid_replies: int = 0
    """Replies that name no action after which the model is asked again; one more ends the episode."""
    invalid_reward: float = 0.0

    def __post_init__(self) -> None:
        """Raise ``InvalidArgument`` for limits that are out of range."""
        for name, least in (("max_turns", 1), ("invalid_replies", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidArgument(f"{name}={shown(value)} is no limit; give a number from {least} on")


@dataclass(frozen=True)
class ChatTurn:
    """The result of one reply."""

    reward: float
    ending: Ending | None
    """``None`` if the model must reply again."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """The numbers that the environment reports, and ``invalid_reply``, which is 1 if the reply named no action."""


class ChatHistory:
    """What one agent has read and written."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._has_messages = False

    def read(self, info: Any, observation: Any, *, acts: bool = True) -> None:
        """Append the new messages of an info.

        An environment that never sends messages shows its observation as text to an agent that ``acts`` next.
        """
        new = messages_of(info)
        self._has_messages |= bool(new)
        if acts and not self._has_messages:
            new = [{"role": "user", "content": str(observation)}]
        self.messages = new if _begins_anew(info) else [*self.messages, *new]

    def tell(self, text: str) -> None:
        """Append a message to the model."""
        self.messages = [*self.messages, {"role": "user", "content": text}]

    def answer(self, text: str) -> None:
        """Append a reply of the model."""
        self.messages = [*self.messages, {"role": "assistant", "content": text}]


class ChatEpisode:
    """One episode of a Gymnasium environment that a model plays by replies; not for use by two threads at once."""

    def __init__(
        self,
        make: Callable[[], Any],
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        rules: ChatRules | None = None,
    ) -> None:
        """Take what :meth:`begin` needs; nothing is made yet."""
        self._make, self._seed, self._options = make, seed, options
        self._rules = rules or ChatRules()
        self._env: Any = None
        self._turns, self._invalid = 0, 0
        self.history = ChatHistory()

    def begin(self) -> list[ChatMessage]:
        """Make the environment, reset it and return the prompt; raise :class:`EpisodeLost` if that fails."""
        self._env = env = self._make()
        if hasattr(env, "possible_agents"):
            raise InvalidArgument("a game of several agents is not one chat; use the adapter of games")
        observation, info = env.reset(seed=self._seed, options=self._options)
        check_played(info)
        self.history.read(info, observation)
        return self.history.messages

    def reply(self, text: str) -> ChatTurn:
        """Play the action that the reply names; raise :class:`EpisodeLost` if the episode was lost."""
        self._turns += 1
        self.history.answer(text)
        try:
            action = parse_action(self._env, text)
            observation, reward, terminated, truncated, info = self._env.step(action)
        except InvalidAction as error:
            return self._refuse(error)
        check_played(info, acted=True)
        numbers = {**numbers_of(info), "invalid_reply": 0.0}
        ending = Ending.COMPLETED if terminated else Ending.MAX_TURNS if truncated else None
        if ending is None:
            self.history.read(info, observation)
            ending = self._limit()
        return ChatTurn(checked_reward(reward), ending, numbers)

    def _refuse(self, error: InvalidAction) -> ChatTurn:
        self._invalid += 1
        if self._invalid > self._rules.invalid_replies:
            return ChatTurn(self._rules.invalid_reward, Ending.PARSE_ERROR, {"invalid_reply": 1.0})
        self.history.tell(str(error))
        return ChatTurn(0.0, self._limit(), {"invalid_reply": 1.0})

    def _limit(self) -> Ending | None:
        return Ending.MAX_TURNS if self._turns >= self._rules.max_turns else None

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


def check_played(info: Any, *, acted: bool = False) -> None:
    """Raise :class:`EpisodeLost` for an info with a fault, or of a step (``acted``) that was no transition."""
    fault = info.get("fault")
    if isinstance(fault, Fault):
        raise EpisodeLost(f"the episode was lost ({fault.kind}): {fault.message}")
    if acted and not trainable(info):
        raise EpisodeLost("the episode was lost: a step of the environment was no transition of the model")


def checked_reward(reward: Any) -> float:
    """Return a reward as a float; raise :class:`EpisodeLost` for NaN or infinity, from which nothing can be learnt."""
    value = float(reward)
    if not math.isfinite(value):
        raise EpisodeLost(f"the episode was lost: the environment gave the reward {value}")
    return value


def numbers_of(info: Any) -> dict[str, float]:
    """Return the numbers in the ``metrics`` events of an info; of two with one name, the later one."""
    stream = stream_of(info)
    numbers: dict[str, float] = {}
    for event in () if stream is None else stream.of_kind(EventKind.METRICS):
        numbers |= {name: float(value) for name, value in event.data.items()}
    return numbers


def _begins_anew(info: Any) -> bool:
    """Return whether the messages of an info begin an episode, or replace the history."""
    stream = stream_of(info)
    return any(
        event.kind == EventKind.EPISODE_START
        or (event.kind == EventKind.MESSAGE and bool(event.data.get("replace")))
        for event in (() if stream is None else stream.events)
    )
