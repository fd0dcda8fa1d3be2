"""The game REPLTeam: the agent ``root`` plays the REPL, and other agents answer the sub-calls of its programs."""

from __future__ import annotations

from typing import Any

import msgspec
from gymnasium.spaces import Dict

from envweave_gym.core.arguments import call
from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.protocols import no_agent
from envweave_gym.core.seeding import Seeds
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.games.base import RESET_OPTIONS as GAME_OPTIONS
from envweave_gym.envs.games.base import TurnBasedGame, check_arguments
from envweave_gym.envs.repl.pausing_repl import MAX_PROMPT, PausingREPL
from envweave_gym.envs.repl.repl_config import RESET_OPTIONS, ReplTeamConfig
from envweave_gym.envs.repl.repl_env import Stepped
from envweave_gym.episode.emitter import drain
from envweave_gym.episode.message import message
from envweave_gym.tools.json_values import readable
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

_NAME = "envweave/REPLTeam-v0"
ROOT = "root"
MAX_ANSWER = 1 << 20
"""Limit of an answer's length in characters."""
_OUTCOMES = ("success", "wrong", "failure")
"""Names of the reward parts that the answering agents get with ``rewards="roles"``."""


class REPLTeam(TurnBasedGame):
    """Game in which ``root`` plays ``envweave/REPL-v0``, and other agents answer the sub-calls of its programs.

    The argument ``subs`` is the number of the other agents, ``sub_0``, ``sub_1``, …. While agents answer, the program
    waits. Prompts of a batch go to several agents at the same time; if a batch has more prompts than agents, the next
    round starts when all of them have answered. ``rlm_query`` does the same as ``llm_query``.

    With ``rewards="shared"`` all agents get root's rewards. With ``"roles"`` the agents that answered in the episode
    get the reward for its outcome, without the penalties for errors of programs.
    """

    name = _NAME
    metadata: dict[str, Any] = {
        "name": "repl_team_v0",
        "render_modes": ["human", "ansi"],
        "render_fps": 1,
        "is_parallelizable": False,
        "ignores_seed": True,  # the seed is that of the programs' module random
        "reset_options": (*GAME_OPTIONS, *RESET_OPTIONS),
    }

    @configured(ReplTeamConfig)
    def __init__(self, config: ReplTeamConfig) -> None:
        super().__init__()
        check_arguments(_NAME, self, config.max_cycles, config.render_mode)
        self.render_mode, self._is_shared = config.render_mode, config.rewards == "shared"
        self._max_cycles = config.max_cycles
        self._env = PausingREPL(config.for_root())
        self.subs = tuple(f"sub_{i}" for i in range(config.subs))
        self.possible_agents = [ROOT, *self.subs]
        self.observation_spaces: dict[str, Any] = {
            sub: Dict({"prompt": Unicode(MAX_PROMPT)}) for sub in self.subs
        }
        self.observation_spaces[ROOT] = self._env.observation_space
        self.action_spaces: dict[str, Any] = {sub: Unicode(MAX_ANSWER) for sub in self.subs}
        self.action_spaces[ROOT] = self._env.action_space
        self.agents: list[str] = []
        self._seeds = Seeds(_NAME)
        self._observation: Any = None
        self._begin()

    def _begin(self) -> None:
        self.agent_selection = ROOT
        self._queued: list[str] = []
        self._answers: list[str] = []
        self._answering: dict[str, int] = {}
        """The index in ``_answers`` of each agent that must answer now."""
        self._prompts = dict.fromkeys(self.subs, "")
        self._contributors: set[str] = set()
        """The agents that have answered in this episode."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode with an empty namespace; ``root`` acts first."""
        given = {name: value for name, value in (options or {}).items() if name in RESET_OPTIONS}
        if self._max_cycles is not None and type(given.get("max_iterations")) is int:
            given["max_iterations"] = min(given["max_iterations"], self._max_cycles)
        self._env.listen()
        self._observation, _ = self._env.reset(seed=self._seeds.next(seed), options=given)
        self._begin()
        self._start()
        self._forward_events()
        self.show()

    def agents_to_act(self) -> list[str]:
        """Return the agents that must act now: those with a sub-call to answer, or ``root`` if there are none."""
        return list(self._answering) or [ROOT]

    def _act(self, agent: str, action: Any) -> None:
        """Apply a program of ``root``, or another agent's answer."""
        if agent == ROOT:
            self._continue(self._env.begin(action))
        else:
            self._accept_answer(agent, action)

    def _accept_answer(self, agent: str, answer: str) -> None:
        self._answers[self._answering.pop(agent)] = answer
        self._contributors.add(agent)
        if self._answering:
            self.agent_selection = next(iter(self._answering))
        elif self._queued:
            self._request_answers()
        else:
            self._continue(self._env.answer(self._answers))

    def _continue(self, stepped: Stepped | None) -> None:
        """Request answers to the sub-calls of a paused program, or give root the result of its step."""
        if stepped is None:
            self._queued = [readable(prompt) for prompt in self._env.prompts]
            self._answers = []
            self._request_answers()
            return
        self._observation, reward, ended, _, info = stepped
        self.agent_selection = ROOT
        self.infos[ROOT] = info
        self._forward_events()
        self._reward(reward, info["reward_parts"], ended=ended)
        if ended:
            self.terminations = dict.fromkeys(self.agents, True)

    def _request_answers(self) -> None:
        """Request answers to queued prompts, one of each agent."""
        now, self._queued = self._queued[: len(self.subs)], self._queued[len(self.subs) :]
        for sub, prompt in zip(self.subs, now, strict=False):
            self._answering[sub] = len(self._answers)
            self._answers.append("")
            self._prompts[sub] = prompt
            self.emit(message("user", prompt, to=(sub,)))
        self.agent_selection = self.subs[0]

    def _forward_events(self) -> None:
        """Emit the events of root's REPL, visible to ``root`` only."""
        self.emit(*(msgspec.structs.replace(event, to=(ROOT,)) for event in drain(self._env)))

    def _reward(self, reward: float, parts: dict[str, float], *, ended: bool) -> None:
        outcome = sum(parts.get(part, 0.0) for part in _OUTCOMES) if ended else 0.0
        for sub in self.subs:
            self.rewards[sub] = reward if self._is_shared else outcome * (sub in self._contributors)
        self.rewards[ROOT] = reward

    def observe(self, agent: str) -> Any:
        """Return the result of root's last program, or another agent's last prompt."""
        return dict(self._observation) if agent == ROOT else {"prompt": self._prompts[agent]}

    def parse_action(self, text: str, agent: str | None = None) -> str:
        """Return the program in root's reply, or another agent's reply as it is."""
        if agent == ROOT:
            return self._env.parse_action(text)
        if agent not in self.subs:
            raise InvalidArgument(no_agent(_NAME, agent, self.possible_agents))
        if not self.action_spaces[agent].contains(text):
            raise InvalidAction(f"{shown(text)} is not in {self.action_spaces[agent]}")
        return text

    def picture(self) -> str:
        """Return the output of root's last program, and the open prompts."""
        lines = [f"{sub}: {self._prompts[sub]}" for sub in self._answering]
        return "\n".join([str(self._env.render() or ""), *lines])

    def episode_state(self) -> dict[str, Any]:
        """Return the state of root's episode, and the agents that must answer now."""
        return {**self._env.episode_state(), "asked": list(self._answering)}

    def close(self) -> None:
        """End the episode with its processes."""
        self._env.close()


raw_env = REPLTeam


def env(**kwargs: Any) -> AECStream:
    """Make the game as an ``AECEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return AECStream(call(_NAME, raw_env, kwargs), name=_NAME)


def parallel_env(**kwargs: Any) -> TurnBasedParallel:
    """Make the game as a ``ParallelEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return TurnBasedParallel(env(**kwargs))
