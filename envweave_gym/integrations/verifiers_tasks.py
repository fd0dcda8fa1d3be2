"""Plays our environments and games in ``verifiers`` (0.4 or later): tasks are seeds, and agents are roles.

Packages written by ``envweave export verifiers`` use it. It needs ``verifiers``, which those packages require.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envweave_gym.chat import (
    AsyncChatGame,
    ChatGame,
    ChatMessage,
    ChatRules,
    Ending,
    EpisodeLost,
    messages_since,
    text_of,
)
from envweave_gym.core.faults import need
from envweave_gym.registry.make import make

vf: Any = need("verifiers.v1", None, "envweave_gym.integrations.verifiers_tasks", package="verifiers>=0.4")
_REWARD = "episode_return"
_PATIENCE_S = 86_400.0
"""Longest wait of a role for the others, whose models may be slow."""


class SeedsConfig(vf.TasksetConfig):
    """Which seeds are tasks."""

    first_seed: int = 0
    num_tasks: int = 100


class SeedsData(vf.TaskData):
    """One seed."""

    seed: int


class SeedsTask(vf.Task[SeedsData, vf.State, vf.TaskConfig]):
    """An episode of one seed; its reward is recorded when it is played."""


class SeedsTaskset:
    """Mixin of tasksets whose tasks are seeds."""

    config: Any

    def load(self) -> Iterator[Any]:
        """Yield a task for each seed."""
        for index in range(self.config.num_tasks):
            seed = self.config.first_seed + index
            # Without a prompt: the episode begins the conversation.
            data = SeedsData(idx=index, prompt=None, seed=seed)
            yield SeedsTask(data, self.config.task)


@dataclass(frozen=True)
class Episodes:
    """Settings of the episodes of one environment or game."""

    env_id: str
    kwargs: Mapping[str, Any]
    roles: tuple[str, ...]
    max_turns: int

    async def play(self, task: Any, agents: Mapping[str, Any]) -> None:
        """Play the episode of a task, with an agent of the library for each role.

        The return of a role is recorded as its reward. A lost episode raises ``EpisodeLost``: it has no reward.
        """
        game = AsyncChatGame(
            self._make, self.roles, name=self.env_id, seed=task.data.seed, patience=_PATIENCE_S
        )
        for role in self.roles:
            game.join(role)
        async with asyncio.TaskGroup() as group:
            for role in self.roles:
                group.create_task(self._play_role(game, role, task, agents[role]))

    def _make(self) -> ChatGame:
        return ChatGame(make(self.env_id, **self.kwargs), ChatRules(max_turns=self.max_turns))

    async def _play_role(self, game: AsyncChatGame, role: str, task: Any, agent: Any) -> None:
        over = False
        try:
            turn = await game.begin(role)
            total, ending = turn.reward, turn.ending
            messages = game.messages(role)
            system = "\n".join(text_of(one) for one in messages if one["role"] == "system")
            own_task = task.with_data(system_prompt=system or None)
            async with agent.interaction(own_task) as conversation:
                new = messages
                while ending is None:
                    segment = await conversation.turn(_text(new))
                    if segment.terminated:  # a limit of the library
                        await game.give_up(role)
                        break
                    turn = await game.reply(role, segment.last_reply)
                    total, ending = total + turn.reward, turn.ending
                    before, messages = messages, game.messages(role)
                    new = [*messages_since(before, messages)]
            if ending is Ending.OTHERS:
                raise EpisodeLost(f"{self.env_id}: {role} was not to blame for the end of its episode")
            over = True
            _record(conversation.trace, total, turn.metrics)
        finally:
            closing = game.leave(role, over=over)
            if closing is not None:
                await asyncio.wrap_future(closing)


def _text(messages: list[ChatMessage]) -> str:
    """Return messages to the model as one text."""
    return "\n\n".join(text_of(one) for one in messages if one["role"] not in ("system", "assistant"))


def _record(trace: Any, total: float, metrics: Mapping[str, float]) -> None:
    trace.record_reward(_REWARD, total)
    for name, value in metrics.items():
        trace.record_metric(name, value)


__all__ = ["Episodes", "SeedsConfig", "SeedsData", "SeedsTask", "SeedsTaskset"]
