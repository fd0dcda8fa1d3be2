"""TextArena's games as one PettingZoo game, whose observations and actions are texts."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from gymnasium.spaces import Dict

from envweave_gym.core.arguments import call
from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument, NotAvailable, nearest, need, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.seeding import Seeds
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.games.base import RESET_OPTIONS, TurnBasedGame, check_arguments
from envweave_gym.envs.language.own_generators import SEEDS_END, OwnGenerators
from envweave_gym.envs.language.text_arena_config import MAX_PLAYERS, TextArenaConfig
from envweave_gym.episode.message import message
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

_NAME = "envweave/TextArena-v0"
MAX_OBSERVATION, MAX_REPLY = 1 << 20, 1 << 16  # characters
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PLAYER_COUNTS_TO_TRY = range(1, MAX_PLAYERS + 1)


class TextArena(TurnBasedGame):
    """A game of TextArena: the agents ``player_0``, ``player_1``, … write texts in turn.

    The observation has ``"prompt"``, the text of the game's own observation wrapper for the agent's last turn. What is
    new in it is also emitted as a message that the agent alone sees. Rewards come with the last step, and so do
    ``role``, ``reason``, ``turn_count`` and ``invalid_move`` in the infos.
    """

    name = _NAME
    metadata: dict[str, Any] = {
        "name": "text_arena_v0",
        "render_modes": ["human", "ansi"],
        "render_fps": 1,
        "is_parallelizable": False,
        "reset_options": RESET_OPTIONS,
    }

    @configured(TextArenaConfig)
    def __init__(self, config: TextArenaConfig) -> None:
        super().__init__()
        check_arguments(_NAME, self, None, config.render_mode)
        self._config, self.render_mode = config, config.render_mode
        self._generators, self._seeds = OwnGenerators(_NAME), Seeds(_NAME)
        need("textarena", "language", _NAME)
        self._players = _players_of(config, self._generators)
        self.possible_agents = [f"player_{i}" for i in range(self._players)]
        self.observation_spaces: dict[str, Any] = {
            agent: Dict({"prompt": Unicode(MAX_OBSERVATION)}) for agent in self.possible_agents
        }
        self.action_spaces: dict[str, Any] = {agent: Unicode(MAX_REPLY) for agent in self.possible_agents}
        self.agents: list[str] = []
        self.agent_selection = self.possible_agents[0]
        self._texts = dict.fromkeys(self.possible_agents, "")
        self._game: Any = None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a game that was made anew, so that nothing of an earlier one is left in it."""
        chosen = self._seeds.next(seed)
        self._generators.seed(chosen)
        self._start()
        self._texts = dict.fromkeys(self.possible_agents, "")
        with self._generators.in_place():
            self._game = _game_of(self._config)
            self._game.reset(num_players=self._players, seed=chosen % SEEDS_END)
            self._show_turn(*self._game.get_observation())
        self.show()

    def _act(self, agent: str, action: Any) -> None:
        with self._generators.in_place():
            done, _ = self._game.step(action=action)
            if not done:
                self._show_turn(*self._game.get_observation())
                return
            self._finish(*self._game.close())

    def _show_turn(self, player: int, observation: Any) -> None:
        """Select a player, and emit what is new in its observation; wrappers of games may write it anew."""
        agent = self.agent_selection = self.possible_agents[player]
        text = observation if isinstance(observation, str) else _text_of(observation)
        before, self._texts[agent] = self._texts[agent], text
        if text.startswith(before):
            self.emit(message("user", text[len(before) :], to=(agent,)))
        else:
            self.emit(message("user", text, to=(agent,), replace=True))

    def _finish(self, rewards: Any, infos: Any) -> None:
        for player, agent in enumerate(self.possible_agents):
            paid = (rewards or {}).get(player)
            if not isinstance(
                paid, int | float | np.number
            ):  # some games set the reason in place of the reward
                game = self._config.game
                raise RuntimeError(f"{_NAME}: {game} has ended with {shown(paid)} as the reward of {agent}")
            self.rewards[agent] = float(paid)
            self.infos[agent] = jsonable(infos.get(player, {}))
        self.terminations = dict.fromkeys(self.possible_agents, True)

    def observe(self, agent: str) -> dict[str, str]:
        """Return the text of the agent's last turn as ``"prompt"``; an empty one before its first."""
        return {"prompt": self._texts[agent]}

    def picture(self) -> str:
        """Return the text of the agent whose turn it is."""
        return self._texts[self.agent_selection]

    def episode_state(self) -> dict[str, Any]:
        """Return the name of the game and the number of players."""
        return {"game": self._config.game, "players": self._players}

    def __getstate__(self) -> dict[str, Any]:
        # TextArena's wrappers cannot be unpickled: they look attributes up in an env that they do not have yet.
        wrapper = need("textarena", "language", _NAME).Wrapper
        wrappers: list[tuple[type[Any], dict[str, Any]]] = []
        game: Any = self._game
        while isinstance(game, wrapper):
            wrappers.append((type(game), {name: one for name, one in vars(game).items() if name != "env"}))
            game = vars(game)["env"]
        return {**vars(self), "_game": (wrappers, game)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        wrappers, game = state["_game"]
        for kind, own in reversed(wrappers):
            wrapped = kind.__new__(kind)
            vars(wrapped).update(own, env=game)
            game = wrapped
        vars(self).update(state, _game=game)


def _game_of(config: TextArenaConfig) -> Any:
    return need("textarena", "language", _NAME).make(config.game, **(config.options or {}))


def _players_of(config: TextArenaConfig, generators: OwnGenerators) -> int:
    """Return the number of players; raise ``InvalidArgument`` for one that the game refuses.

    TextArena does not declare the numbers that a game takes: its ``reset`` raises for others. So games are reset here
    for the sole purpose of finding out.
    """
    with generators.in_place():
        _check_name(config)
        try:
            call(_NAME, lambda: _game_of(config), {})
        except (ImportError, LookupError, OSError, SyntaxError) as error:
            # NLTK raises LookupError for data that it lacks; some modules of games need a newer Python.
            raise NotAvailable(f"game={shown(config.game)} cannot be made: {_in_one_line(error)}") from error
        counts = _PLAYER_COUNTS_TO_TRY if config.players is None else [config.players]
        error = None
        for count in counts:
            if (error := _refusal(config, count)) is None:
                return count
        allowed = [count for count in _PLAYER_COUNTS_TO_TRY if _refusal(config, count) is None]
    if not allowed:
        raise NotAvailable(f"game={shown(config.game)} cannot be started: {_in_one_line(error)}")
    there_are = ", ".join(map(str, allowed))
    raise InvalidArgument(f"players={config.players} is refused by {config.game}; it takes {there_are}")


def _check_name(config: TextArenaConfig) -> None:
    registry = need("textarena.envs.registration", "language", _NAME).ENV_REGISTRY
    if config.game not in registry:
        hint = nearest(config.game, registry)
        raise InvalidArgument(
            f"game={shown(config.game)} is none of TextArena's {len(registry)} games{hint}; "
            "give a name of textarena.envs.registration.ENV_REGISTRY"
        )


def _refusal(config: TextArenaConfig, players: int) -> Exception | None:
    try:
        _game_of(config).reset(num_players=players, seed=0)
    except Exception as error:  # noqa: BLE001 - games refuse by assertions, and by whatever fails without a player
        return error
    return None


def _in_one_line(error: Exception | None) -> str:
    """Return the first line of an error that has words; NLTK's begins with a frame, and has colours of a terminal."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip(" *")]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _text_of(observation: Any) -> str:
    """Return the observation of a game without an observation wrapper, a list of messages, as text."""
    return "\n".join(text for _, text, *_ in observation)


raw_env = TextArena


def env(**kwargs: Any) -> AECStream:
    """Make the game as an ``AECEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return AECStream(call(_NAME, raw_env, kwargs), name=_NAME)


def parallel_env(**kwargs: Any) -> TurnBasedParallel:
    """Make the game as a ``ParallelEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return TurnBasedParallel(env(**kwargs))
