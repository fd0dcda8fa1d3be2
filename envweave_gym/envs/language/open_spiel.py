"""OpenSpiel's games as one PettingZoo game, through the adapter of Shimmy."""

from __future__ import annotations

from typing import Any

from envweave_gym.core.arguments import call
from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidAction, InvalidArgument, nearest, need, shown
from envweave_gym.core.protocols import no_agent
from envweave_gym.core.seeding import Seeds
from envweave_gym.envs.games.base import RESET_OPTIONS, TurnBasedGame, check_arguments
from envweave_gym.envs.language.open_spiel_config import OpenSpielConfig
from envweave_gym.episode.message import message
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

_NAME = "envweave/OpenSpiel-v0"
_ADAPTER = "shimmy.openspiel_compatibility"
_NEVER_TOO_LONG = -(1 << 62)


class OpenSpiel(TurnBasedGame):
    """A game of OpenSpiel with numbered moves: agents ``player_0``, …, whose infos have an ``action_mask``.

    Observations are those of Shimmy: the observation tensor, else the information-state tensor, else a text. At each
    turn the agent gets a message with the game's own text for it and the names of the legal moves, and
    ``parse_action`` reads such a name. A move that is not legal raises ``InvalidAction`` and has no effect.
    """

    name = _NAME
    metadata: dict[str, Any] = {
        "name": "open_spiel_v0",
        "render_modes": ["human", "ansi"],
        "render_fps": 1,
        "is_parallelizable": False,
        "reset_options": RESET_OPTIONS,
    }

    @configured(OpenSpielConfig)
    def __init__(self, config: OpenSpielConfig) -> None:
        super().__init__()
        check_arguments(_NAME, self, None, config.render_mode)
        self._config, self.render_mode = config, config.render_mode
        self._seeds = Seeds(_NAME)
        self._adapter = _adapter_of(config)
        self.possible_agents = list(self._adapter.possible_agents)
        # The adapter makes new spaces at every step, without the seeds of these.
        self.observation_spaces: dict[str, Any] = dict(self._adapter.observation_spaces)
        self.action_spaces: dict[str, Any] = dict(self._adapter.action_spaces)
        if "DETERMINISTIC" in str(self._adapter.game_type.chance_mode):
            self.metadata = {**self.metadata, "ignores_seed": True}
        self.agents: list[str] = []
        self.agent_selection = self.possible_agents[0]
        self._returns: list[float] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a game; the seed decides what chance does."""
        self._adapter.reset(seed=self._seeds.next(seed))
        # The adapter counts moves of chance too, and truncates at OpenSpiel's limit, which leaves them out.
        self._adapter.game_length = _NEVER_TOO_LONG
        self._start()
        self._returns = self._adapter.game_state.returns()
        self._mirror()
        self._prompt()
        self.show()

    def _act(self, agent: str, action: Any) -> None:
        self._check_legal(agent, action)
        self._adapter.step(int(action))
        self._mirror()
        self._prompt()

    def _mirror(self) -> None:
        """Take over ends, infos and the next agent of the adapter, and compute the rewards.

        The adapter's own rewards are those of the last transition: it repeats them while a simultaneous round is open
        and when an agent leaves, and it drops those before a move of chance. Differences of the returns do not.
        """
        adapter, before = self._adapter, self._returns
        self._returns = adapter.game_state.returns()
        for agent, now, earlier in zip(self.possible_agents, self._returns, before, strict=True):
            self.rewards[agent] = now - earlier
        self.terminations, self.truncations = dict(adapter.terminations), dict(adapter.truncations)
        self.infos = {agent: dict(info) for agent, info in adapter.infos.items()}
        self.agent_selection = adapter.agent_selection

    def agents_to_act(self) -> list[str]:
        """Return the agents that must move now: one, or all that have not moved in a simultaneous round."""
        if not self._adapter.game_state.is_simultaneous_node():
            return [self.agent_selection]
        return [agent for agent in self.agents if agent not in self._adapter.simultaneous_actions]

    def _legal(self, agent: str) -> dict[str, int]:
        """Return the legal moves of an agent by their names; equal names get their numbers."""
        state, player = self._adapter.game_state, self.possible_agents.index(agent)
        names: dict[str, int] = {}
        for move in state.legal_actions(player):
            name = state.action_to_string(player, move)
            names[f"{name} ({move})" if name in names else name] = move
        return names

    def _check_legal(self, agent: str, action: Any) -> None:
        legal = self._legal(agent)
        if action not in legal.values():
            moves = ", ".join(f"{move} {name}" for name, move in legal.items())
            raise InvalidAction(f"{_NAME}: {shown(action)} is no legal move of {agent}; there are {moves}")

    def _prompt(self) -> None:
        """Emit the prompts of the agents that must move; those of a simultaneous round come when it begins."""
        adapter = self._adapter
        has_begun = any(move is not None for move in adapter.simultaneous_actions.values())
        if not self.agents or adapter.game_state.is_terminal() or has_begun:
            return
        for agent in self.agents_to_act():
            legal = ", ".join(self._legal(agent))
            text = f"{self._text_for(agent)}\n\nYou are {agent}. Your legal moves: {legal}"
            self.emit(message("user", text, to=(agent,)))

    def _text_for(self, agent: str) -> str:
        """Return the game's text for an agent; it has nothing that this agent does not know."""
        state, kind, player = (
            self._adapter.game_state,
            self._adapter.game_type,
            self.possible_agents.index(agent),
        )
        if kind.provides_observation_string:
            return state.observation_string(player)
        return state.information_state_string(player) if kind.provides_information_state_string else ""

    def parse_action(self, text: str, agent: str | None = None) -> int:
        """Parse a move from its name or number, the last line of a reply."""
        if agent not in self.possible_agents:
            raise InvalidArgument(no_agent(_NAME, agent, self.possible_agents))
        legal = self._legal(agent)
        lines = [line.strip(" `'\".*") for line in text.splitlines() if line.strip(" `'\".*")]
        last = lines[-1] if lines else ""
        if last in legal:
            return legal[last]
        if last.isdecimal() and int(last) in legal.values():
            return int(last)
        raise InvalidAction(f"{shown(text)} names no legal move; answer with one of {', '.join(legal)}")

    def observe(self, agent: str) -> Any:
        """Return the observation of an agent; of an ended game, the one before its last move."""
        return self._adapter.observe(agent)

    def picture(self) -> str:
        """Return the state of the game as OpenSpiel prints it."""
        return str(self._adapter.game_state)

    def episode_state(self) -> dict[str, Any]:
        """Return the name of the game and the number of moves so far."""
        return {"game": self._config.game, "moves": len(self._adapter.game_state.history())}

    def __getstate__(self) -> dict[str, Any]:
        # The adapter's own pickle makes a new game without its config; its attributes continue in mid-game.
        return {**vars(self), "_adapter": vars(self._adapter)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        kind = need(_ADAPTER, "openspiel", _NAME).OpenSpielCompatibilityV0
        self._adapter = kind.__new__(kind)
        vars(self._adapter).update(state["_adapter"])


def _adapter_of(config: OpenSpielConfig) -> Any:
    pyspiel: Any = need("pyspiel", "openspiel", _NAME)
    kind = need(_ADAPTER, "openspiel", _NAME).OpenSpielCompatibilityV0
    known = pyspiel.registered_names()
    if config.game not in known:
        raise InvalidArgument(
            f"game={shown(config.game)} is none of OpenSpiel's {len(known)} games{nearest(config.game, known)}; "
            "pyspiel.registered_names() lists them"
        )
    try:
        return call(_NAME, kind, {"game_name": config.game, "config": config.config})
    except (pyspiel.SpielError, NotImplementedError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise InvalidArgument(
            f"game={config.game!r} with config={shown(config.config)} cannot be played: {first}"
        ) from error


raw_env = OpenSpiel


def env(**kwargs: Any) -> AECStream:
    """Make the game as an ``AECEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return AECStream(call(_NAME, raw_env, kwargs), name=_NAME)


def parallel_env(**kwargs: Any) -> TurnBasedParallel:
    """Make the game as a ``ParallelEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return TurnBasedParallel(env(**kwargs))
