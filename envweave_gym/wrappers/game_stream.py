"""The base class of the wrappers that add streams (events and open requests) to PettingZoo games, AEC and parallel."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.actions import AgentActions
from envweave_gym.core.arguments import check_options, check_reproducible
from envweave_gym.core.protocols import check_agent, own_state
from envweave_gym.core.seeding import Seeds
from envweave_gym.episode.emitter import Emitter, drain
from envweave_gym.episode.game_record import GameRecord


class GameStream:
    """Mixin for wrappers of games: gives every reset a seed, keeps the game's record, and refuses wrong calls.

    A subclass lists it before the PettingZoo wrapper class, so that its methods override those.
    """

    env: Any

    def __init__(self, env: Any, *, name: str | None = None, reproducible: bool = True) -> None:
        """Wrap ``env``; ``name`` is the name of the environment in errors, by default its ID.

        With ``reproducible=False`` only the first reset without a seed draws one. Later ones pass ``None``,
        so that the environment goes on with its own generator.
        """
        super().__init__(env)  # pyright: ignore[reportCallIssue] - the wrapper class of PettingZoo
        self._core: Any = env.unwrapped
        self.name = name or str(self._core)
        check_reproducible(self.name, reproducible)
        self.reproducible, self._keeps_generator = reproducible, False
        self.record = GameRecord(self.name)
        """The record of the episode; its events include those that are hidden from some agents."""
        self.agent_actions = AgentActions(self.name)
        self._seeds = Seeds(self.name)
        self._emitter = (self._core if isinstance(self._core, Emitter) else Emitter()).listen()

    def _reset_env(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the environment with a given or drawn seed, record the start, and return what ``reset`` returned."""
        check_options(self.name, options, getattr(self._core, "metadata", None) or {})
        chosen = None if seed is None and self._keeps_generator else self._seeds.next(seed)
        self.record.abandon()
        drain(self._emitter)  # events between two episodes belong to neither
        reply = self.env.reset(seed=chosen, options=options)
        self.record.began(chosen, options, drain(self._emitter))
        self._keeps_generator = not self.reproducible
        return reply

    def observation_space(self, agent: str) -> Space[Any]:
        """Return the space of the observations of ``agent``."""
        check_agent(self.name, self.env, agent)
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> Space[Any]:
        """Return the space of the actions of ``agent``."""
        check_agent(self.name, self.env, agent)
        return self.env.action_space(agent)

    def render(self) -> Any:
        """Return the result of the environment's own ``render``."""
        self.record.check_begun("render")
        return self.env.render()

    def stream_state(self) -> dict[str, Any]:
        """Return the state that :func:`envweave_gym.state_of` shows."""
        counters = self.record.counters()
        return {**counters, **own_state(self._core), **counters}
