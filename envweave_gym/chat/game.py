"""Plays environments and PettingZoo games as chats: each role reads messages, and replies when it must act."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium.error
from gymnasium.vector import VectorEnv

from envweave_gym.chat.history import ChatHistory, ChatMessage
from envweave_gym.chat.instructions import default_instruction
from envweave_gym.chat.results import (
    EpisodeLost,
    check_info,
    check_observation,
    checked_flag,
    checked_reward,
    numbers_of,
)
from envweave_gym.chat.rules import ChatRules, ChatTurn, Ending
from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.protocols import AGENT, name_of
from envweave_gym.core.reply_parsing import parse_action
from envweave_gym.wrappers.turn_based_parallel import parallel_form


@dataclass
class _RoleState:
    """One role in an episode: its history, and the results of its replies since they were last taken."""

    history: ChatHistory
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    refused: int = 0
    actions: int = 0
    turns: int = 0
    """Replies in the whole episode."""
    invalid: int = 0
    """Replies that were refused in the whole episode."""
    has_joined: bool = False
    ending: Ending | None = None


class ChatGame:
    """One episode after another of an environment or a game, which models play by replies.

    A PettingZoo game, AEC or parallel, has a role for each agent; a Gymnasium environment has the role ``"agent"``.

        game.reset(seed=0)
        while roles := game.to_reply():
            game.reply(roles[0], model(game.messages(roles[0])))
        rewards = {role: game.take_turn(role).reward for role in game.roles}

    Faults are no rewards: :meth:`reset` and :meth:`reply` raise :class:`EpisodeLost` for a fault and for results of
    wrong types, and pass on exceptions of the environment; then :meth:`reset` begins another episode. A reply without
    an action is answered with the reason, and beyond the limit of the rules it ends the episode. Not for use by two
    threads at once.
    """

    def __init__(
        self,
        env: Any,
        rules: ChatRules | None = None,
        *,
        instruction: str = "",
        explain: Callable[[Any, str], str] = default_instruction,
    ) -> None:
        """Play ``env``, which :meth:`close` closes.

        ``instruction`` is the text before the first message. Without one, a role to which the environment writes no
        messages reads the result of ``explain(env, role)``: the form of an action.
        """
        if isinstance(env, VectorEnv):
            raise InvalidArgument(
                f"{name_of(env)} is a vector; a chat plays one environment: leave num_envs out"
            )
        self.env = env
        self.is_single = not hasattr(env, "possible_agents")
        """Whether it is an environment of one agent."""
        self._game: Any = _OneAgent(env) if self.is_single else parallel_form(env)
        self._source: Any = env if self.is_single else self._game
        """The environment that has the spaces, and parses replies."""
        self.roles: tuple[str, ...] = tuple(self._game.possible_agents)
        self._rules = rules or ChatRules()
        self._instruction, self._explain = instruction, explain
        self._forms: dict[str, str] = {}
        self._states: dict[str, _RoleState] = {}
        self._actions: dict[str, Any] = {}
        self._active: list[str] = []
        self._joint_refusals = 0
        self._is_open = True

    def check(self) -> None:
        """Raise ``InvalidArgument`` if no reply can name an action of a role."""
        for role in self.roles:
            self._form(role)

    def _form(self, role: str) -> str:
        if role not in self._forms:
            self._forms[role] = self._explain(self._source, role)
        return self._forms[role]

    # The episode

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Begin an episode, and let every role read its first messages."""
        self._states = {
            role: _RoleState(ChatHistory(self._instruction, partial(self._form, role))) for role in self.roles
        }
        self._actions, self._active, self._joint_refusals = {}, [], 0
        observations, infos = self._game.reset(seed=seed, options=None if options is None else dict(options))
        for info in infos.values():
            check_info(info)
        self._read(observations, infos, {})

    def to_reply(self) -> list[str]:
        """Return the roles that must act and have not replied yet; empty if the episode is over."""
        return [role for role in self._active if self.must_reply(role)]

    def must_reply(self, role: str) -> bool:
        """Return whether the role must act and has not replied yet."""
        return role in self._active and role not in self._actions and self.ending(role) is None

    def ending(self, role: str) -> Ending | None:
        """Return why the role's part of the episode is over, ``None`` if it is not."""
        return self._states[role].ending

    def history(self, role: str) -> ChatHistory:
        """Return the messages of the role in this episode, to which later ones are added."""
        return self._states[role].history

    def messages(self, role: str) -> list[ChatMessage]:
        """Return all that the role has read and written."""
        return self._states[role].history.messages

    def take_turn(self, role: str) -> ChatTurn:
        """Return what the role has earned since the last call, or since the reset."""
        state = self._states[role]
        metrics = {**state.metrics, "invalid_reply": float(state.refused > 0)}
        turn = ChatTurn(state.reward, state.ending, metrics, state.refused, state.actions)
        state.reward, state.metrics, state.refused, state.actions = 0.0, {}, 0, 0
        return turn

    def reply(self, role: str, text: str) -> None:
        """Take the reply of a role that must act; with the last one of a round, play the round.

        After the end of the role's part, as by the reply of another, this does nothing.
        """
        state = self._states[role]
        if state.ending is not None:
            return
        if not self.must_reply(role):
            raise InvalidArgument(f"{role} has no turn; those who must reply are {shown(self.to_reply())}")
        state.turns += 1
        state.history.answer(text)
        try:
            self._actions[role] = parse_action(self._source, text, None if self.is_single else role)
        except InvalidAction as error:
            self._refuse([role], error)
            return
        if not self.to_reply():
            self._play()

    def leave(self, role: str) -> None:
        """End the episode because this role cannot go on, as after a reply that was too long."""
        if self.ending(role) is None:
            self._end_all(Ending.PARSE_ERROR, [role])

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        is_open, self._is_open = self._is_open, False
        if is_open:
            self._game.close()

    # Rounds

    def _play(self) -> None:
        actions, self._actions = self._actions, {}
        active, self._active = self._active, []  # after an exception nobody has a turn
        try:
            observations, rewards, terminated, truncated, infos = self._game.step(actions)
        except gymnasium.error.InvalidAction as error:
            # Nothing was played: it is a move that the rules forbid now, say.
            self._active = active
            self._refuse([*actions], error)
            return
        for role, info in infos.items():
            check_info(info, acted=role in actions)
        flags = _flags(terminated, truncated)
        for role, reward in rewards.items():
            self._states[role].reward += checked_reward(reward)
        for role in actions:
            self._states[role].actions += 1
        self._read(observations, infos, flags)
        self._stop_at_limit()

    def _read(
        self,
        observations: Mapping[str, Any],
        infos: Mapping[str, Any],
        flags: Mapping[str, tuple[bool, bool]],
    ) -> None:
        """End the parts that are over, and let the roles read what is new."""
        agents = self._game.agents
        active = [role for role in agents if self.is_single or infos.get(role, {}).get("active", True)]
        open_roles = [role for role in self.roles if self.ending(role) is None]
        self._end_parts(flags)
        for role in open_roles:
            if role in observations or role in infos:
                self._read_as(role, role in active, observations, infos.get(role, {}))
        self._active = active
        if not self.to_reply() and any(self.ending(role) is None for role in agents):
            raise EpisodeLost("the episode was lost: it is not over, and no agent must act")

    def _read_as(
        self, role: str, acts: bool, observations: Mapping[str, Any], info: Mapping[str, Any]
    ) -> None:
        """Let a role read; it sees its observation if it ``acts`` next, or if its part has ended now."""
        state = self._states[role]
        shows = acts or (state.ending is not None and role in observations)
        if shows:
            spaces = self._source.observation_space
            space = spaces if self.is_single else spaces(role)
            check_observation(space, observations[role])
        state.metrics |= numbers_of(info)
        state.history.read(info, observations.get(role), acts=shows)

    def _end_parts(self, flags: Mapping[str, tuple[bool, bool]]) -> None:
        agents = self._game.agents
        for role, state in self._states.items():
            terminated, truncated = flags.get(role, (False, False))
            state.has_joined |= role in agents
            is_gone = role not in agents and (state.has_joined or not agents)
            if state.ending is None and (terminated or truncated or is_gone):
                state.ending = Ending.MAX_TURNS if truncated and not terminated else Ending.COMPLETED

    def _refuse(self, roles: list[str], error: Exception) -> None:
        """Answer refused replies with the reason, or end the episode if there were too many.

        Nobody knows which of several actions that are refused together was wrong, so then no role pays.
        """
        if len(roles) == 1:
            state = self._states[roles[0]]
            state.refused, state.invalid = state.refused + 1, state.invalid + 1
            refusals = state.invalid
        else:
            self._joint_refusals = refusals = self._joint_refusals + 1
        if refusals > self._rules.invalid_replies:
            culprits = roles if len(roles) == 1 else []
            for role in culprits:
                self._states[role].reward += self._rules.invalid_reward
            self._end_all(Ending.PARSE_ERROR, culprits)
            return
        for role in roles:
            self._states[role].history.tell(str(error))
        self._stop_at_limit()

    def _stop_at_limit(self) -> None:
        if any(self._states[role].turns >= self._rules.max_turns for role in self.to_reply()):
            self._end_all(Ending.MAX_TURNS, self.roles)

    def _end_all(self, why: Ending, culprits: Collection[str]) -> None:
        for role, state in self._states.items():
            state.ending = state.ending or (why if role in culprits else Ending.OTHERS)


class _OneAgent:
    """A Gymnasium environment with the methods of a ``ParallelEnv`` whose only agent is ``"agent"``."""

    possible_agents = (AGENT,)

    def __init__(self, env: Any) -> None:
        self._env = env
        self.agents: list[str] = []

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        observation, info = self._env.reset(seed=seed, options=options)
        self.agents = [AGENT]
        return {AGENT: observation}, {AGENT: info}

    def step(self, actions: dict[str, Any]) -> Any:
        observation, reward, terminated, truncated, info = self._env.step(actions[AGENT])
        self.agents = [] if terminated or truncated else [AGENT]
        return tuple({AGENT: one} for one in (observation, reward, terminated, truncated, info))

    def close(self) -> None:
        self._env.close()


def _flags(terminated: Mapping[str, Any], truncated: Mapping[str, Any]) -> dict[str, tuple[bool, bool]]:
    """Return the checked flags of each role."""
    roles = dict.fromkeys([*terminated, *truncated])
    return {
        role: (
            checked_flag("terminated", terminated.get(role, False)),
            checked_flag("truncated", truncated.get(role, False)),
        )
        for role in roles
    }
