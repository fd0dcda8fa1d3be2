"""One game of several agents as chats: each agent reads its own messages, and replies when it must act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pettingzoo import AECEnv

from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.core.reply_parsing import parse_action
from envweave_gym.integrations.chat_episode import (
    ChatHistory,
    ChatRules,
    ChatTurn,
    Ending,
    check_played,
    checked_reward,
    numbers_of,
)
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel


@dataclass
class _Seat:
    """One agent: its history, and what it has earned since its last turn was taken."""

    history: ChatHistory = field(default_factory=ChatHistory)
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    turns: int = 0
    invalid: int = 0
    refused: bool = False
    """Whether its last reply named no action."""
    ending: Ending | None = None


class ChatGame:
    """One episode of an AEC or parallel game that models play by replies; not for use by two threads at once."""

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
        self._game: Any = None
        self._seats: dict[str, _Seat] = {}
        self._actions: dict[str, Any] = {}
        self._active: set[str] = set()

    def begin(self) -> None:
        """Make the game and reset it; raise ``EpisodeLost`` if that fails."""
        game = self._make()
        self._game = TurnBasedParallel(game) if isinstance(game, AECEnv) else game
        if not hasattr(game, "possible_agents"):
            raise InvalidArgument("an environment of one agent is no game; use the adapter of single agents")
        self._seats = {agent: _Seat() for agent in game.possible_agents}
        observations, infos = self._game.reset(seed=self._seed, options=self._options)
        self._read(observations, infos, ())
        self._end_those_who_left({}, {})

    def must_reply(self, agent: str) -> bool:
        """Return whether the agent must act and has not replied yet."""
        return agent in self._active and agent not in self._actions and self.ending(agent) is None

    def ending(self, agent: str) -> Ending | None:
        """Return why the agent's part of the game is over, ``None`` if it is not."""
        return self._seats[agent].ending

    def messages(self, agent: str) -> list[dict[str, Any]]:
        """Return all that the agent has read and written."""
        return self._seats[agent].history.messages

    def take_turn(self, agent: str) -> ChatTurn:
        """Return what the agent has earned since the last call."""
        seat = self._seats[agent]
        turn = ChatTurn(seat.reward, seat.ending, {**seat.metrics, "invalid_reply": float(seat.refused)})
        seat.reward, seat.metrics, seat.refused = 0.0, {}, False
        return turn

    def reply(self, agent: str, text: str) -> None:
        """Take the reply of an agent that must act; with the last one of a round, play the round.

        After the end of the agent's part, as by the reply of another, this does nothing.
        """
        seat = self._seats[agent]
        if seat.ending is not None:
            return
        seat.turns += 1
        seat.history.answer(text)
        try:
            self._actions[agent] = parse_action(self._game, text, agent)
        except InvalidAction as error:
            self._refuse(agent, error)
            return
        if not any(self.must_reply(one) for one in self._active):
            self._play()

    def leave(self, agent: str) -> None:
        """End the game because this agent cannot go on, as after a reply that was too long."""
        self._end_all(agent, Ending.PARSE_ERROR)

    def close(self) -> None:
        """Close the game; a second call does nothing."""
        game, self._game = self._game, None
        if game is not None:
            game.close()

    def _refuse(self, agent: str, error: InvalidAction) -> None:
        seat = self._seats[agent]
        seat.refused = True
        seat.invalid += 1
        if seat.invalid > self._rules.invalid_replies:
            seat.reward += self._rules.invalid_reward
            self._end_all(agent, Ending.PARSE_ERROR)
        else:
            seat.history.tell(str(error))
            self._stop_at_limit(agent)

    def _play(self) -> None:
        actions, self._actions = self._actions, {}
        try:
            observations, rewards, terminated, truncated, infos = self._game.step(actions)
        except InvalidAction as error:  # such as a move that the rules forbid now; nothing was played
            for agent in actions:
                self._refuse(agent, error)
            return
        for agent, reward in rewards.items():
            self._seats[agent].reward += checked_reward(reward)
        self._end_those_who_left(terminated, truncated)
        self._read(observations, infos, tuple(actions))
        for agent in actions:
            self._stop_at_limit(agent)

    def _read(self, observations: Any, infos: Any, acted: tuple[str, ...]) -> None:
        self._active = {agent for agent in self._game.agents if infos[agent].get("active", True)}
        for agent, info in infos.items():
            check_played(info, acted=agent in acted)
            seat = self._seats[agent]
            seat.metrics |= numbers_of(info)
            if seat.ending is None:
                seat.history.read(info, observations[agent], acts=agent in self._active)

    def _end_those_who_left(self, terminated: dict[str, bool], truncated: dict[str, bool]) -> None:
        for agent, seat in self._seats.items():
            ended = terminated.get(agent) or truncated.get(agent) or agent not in self._game.agents
            if seat.ending is None and ended:
                seat.ending = Ending.MAX_TURNS if truncated.get(agent) else Ending.COMPLETED

    def _stop_at_limit(self, agent: str) -> None:
        if self.ending(agent) is None and self._seats[agent].turns >= self._rules.max_turns:
            for seat in self._seats.values():
                seat.ending = seat.ending or Ending.MAX_TURNS

    def _end_all(self, agent: str, why: Ending) -> None:
        for name, seat in self._seats.items():
            seat.ending = seat.ending or (why if name == agent else Ending.OTHERS)
