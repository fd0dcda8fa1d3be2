"""The bases of games: spaces by agent, text rendering, argument checks, and the bookkeeping of turns."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space
from pettingzoo import AECEnv

from envweave_gym.core.arguments import check_int, check_render_mode
from envweave_gym.episode.emitter import Emitter

RESET_OPTIONS = ("options",)
"""Name of the reset option that PettingZoo's own tests pass; games ignore it."""


def check_arguments(name: str, game: Any, max_cycles: Any, render_mode: Any) -> None:
    """Raise ``InvalidArgument`` for an unknown render mode, or ``max_cycles`` that is no positive int or ``None``.

    ``max_cycles`` is PettingZoo's name for the limit of each agent's actions; ``None`` means no limit.
    """
    check_int(f"{name}: max_cycles", max_cycles, "not a number of cycles", 1, or_none=True)
    check_render_mode(name, game, render_mode)


class Game:
    """Mixin of games: looks up spaces by agent, and renders as text, which ``"ansi"`` returns and ``"human"`` prints.

    A game lists this class before its other bases, so that these methods override theirs.
    """

    observation_spaces: dict[str, Any]
    action_spaces: dict[str, Any]
    render_mode: str | None

    def observation_space(self, agent: str) -> Space[Any]:
        """Return the space of the observations of ``agent``."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """Return the space of the actions of ``agent``."""
        return self.action_spaces[agent]

    def picture(self) -> str:
        """Return the state of the game as text."""
        raise NotImplementedError

    def render(self) -> Any:
        """Return the picture in mode ``"ansi"``, print it in mode ``"human"``."""
        if self.render_mode == "ansi":
            return self.picture()
        if self.render_mode == "human":
            print(self.picture())
        return None

    def show(self) -> None:
        """Print the picture in mode ``"human"``; games call this after every change."""
        if self.render_mode == "human":
            self.render()

    def close(self) -> None:
        """Do nothing: games hold no resources."""


class TurnBasedGame(Game, AECEnv[str, Any, Any], Emitter):
    """A game whose agents act in turn, with PettingZoo's bookkeeping of agents, rewards and ends."""

    def _start(self) -> None:
        """Begin the bookkeeping of an episode: all agents are in the game, and none has earned anything."""
        agents = self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        self.infos = {agent: {} for agent in agents}

    def step(self, action: Any) -> None:
        """Let the selected agent act; an agent that is done takes ``None``, which removes it."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        # PettingZoo sums up the rewards of an agent from its own last step on.
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._act(agent, action)
        self._accumulate_rewards()
        self.show()

    def _act(self, agent: str, action: Any) -> None:
        """Apply an action of ``agent``: set the rewards, the ends, and the agent whose turn is next."""
        raise NotImplementedError
