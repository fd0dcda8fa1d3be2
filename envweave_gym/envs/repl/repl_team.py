"""REPL as a team: root writes programs, and other agents answer what these ask of language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from gymnasium.spaces import Dict, Space
from pettingzoo import AECEnv

from envweave_gym.core.arguments import call
from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.protocols import no_agent
from envweave_gym.core.seeding import Seeds
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.games.base import RESET_OPTIONS as GAME_OPTIONS
from envweave_gym.envs.games.base import TextRendering, check_arguments
from envweave_gym.envs.repl.asked_repl import MOST_PROMPT, AskedREPL
from envweave_gym.envs.repl.repl import Stepped
from envweave_gym.envs.repl.repl_task import RESET_OPTIONS
from envweave_gym.episode.emitter import Emitter, drain
from envweave_gym.episode.message import message
from envweave_gym.tools.json_values import readable
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

_NAME = "envweave/REPLTeam-v0"
ROOT = "root"
MOST_SUBS = 256
MOST_ANSWER = 1 << 20
"""So many characters an answer has at most."""
_OUTCOMES = ("success", "wrong", "failure")


class REPLTeam(TextRendering, AECEnv[str, Any, Any], Emitter):
    """Root plays ``envweave/REPL-v0``; each prompt of its programs is a request to another agent.

    There are ``subs`` agents ``sub_0``, ``sub_1``, …. Prompts that wait at the same time, as those of a batch
    do, are asked of as many agents at once; where there are more, the next are asked when all have answered.
    The program waits meanwhile. ``rlm_query`` is as ``llm_query`` here.

    With ``rewards="shared"`` everybody has the rewards of root; with ``"roles"`` those who have answered in
    the episode share its outcome, and nothing else: the errors of programs are not theirs.
    """

    metadata: dict[str, Any] = {
        "name": "repl_team_v0",
        "render_modes": ["human", "ansi"],
        "render_fps": 1,
        "is_parallelizable": False,
        "ignores_seed": True,  # it seeds the module random of programs, and nothing of the game
        "reset_options": (*GAME_OPTIONS, *RESET_OPTIONS),
    }

    def __init__(
        self,
        subs: int = 4,
        rewards: str = "shared",
        subcalls: str = "agents",
        max_cycles: int | None = None,
        context: Any = "",
        task_prompt: str = "",
        max_iterations: int = 30,
        expected_answer: str | None = None,
        match: str = "exact",
        compat: str = "control",
        max_output_length: int = 8192,
        context_preview_length: int = 500,
        reward_on_success: float = 1.0,
        reward_on_iteration: float = 0.0,
        reward_on_failure: float = -0.1,
        reward_on_error: float = -0.05,
        reward_on_wrong: float = 0.0,
        step_timeout: float = 30.0,
        on_lost: str = "restart",
        isolation: str = "landlock",
        memory: int | str = "512m",
        python: str | None = None,
        warm: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        """``max_cycles`` is PettingZoo's limit of actions, here as ``max_iterations``."""
        super().__init__()
        check_arguments(_NAME, self, max_cycles, render_mode)
        _check(subs, rewards, subcalls)
        self.render_mode, self._is_shared, self._most = render_mode, rewards == "shared", max_cycles
        self._env = AskedREPL(
            context=context,
            task_prompt=task_prompt,
            max_iterations=max_iterations if max_cycles is None else min(max_iterations, max_cycles),
            expected_answer=expected_answer,
            match=match,
            compat=compat,
            max_output_length=max_output_length,
            context_preview_length=context_preview_length,
            reward_on_success=reward_on_success,
            reward_on_iteration=reward_on_iteration,
            reward_on_failure=reward_on_failure,
            reward_on_error=reward_on_error,
            reward_on_wrong=reward_on_wrong,
            step_timeout=step_timeout,
            on_lost=on_lost,
            isolation=isolation,
            memory=memory,
            python=python,
            warm=warm,
            render_mode="ansi",
        )
        self.subs = tuple(f"sub_{i}" for i in range(subs))
        self.possible_agents = [ROOT, *self.subs]
        self.observation_spaces: dict[str, Any] = {
            sub: Dict({"prompt": Unicode(MOST_PROMPT)}) for sub in self.subs
        }
        self.observation_spaces[ROOT] = self._env.observation_space
        self.action_spaces: dict[str, Any] = {sub: Unicode(MOST_ANSWER) for sub in self.subs}
        self.action_spaces[ROOT] = self._env.action_space
        self.agents: list[str] = []
        self._seeds = Seeds(_NAME)
        self._observation: Any = None
        self._begin()

    def _begin(self) -> None:
        self.agent_selection = ROOT
        self._questions: list[str] = []
        self._answers: list[str] = []
        self._asked: dict[str, int] = {}
        """Who is asked now, and the number of the question."""
        self._prompts = dict.fromkeys(self.subs, "")
        self._helpers: set[str] = set()
        """Who has answered in this episode."""

    def observation_space(self, agent: str) -> Space[Any]:
        """What root sees of its programs; the prompt of another agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """A program of root; an answer of another agent."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin with an empty namespace."""
        given = {name: value for name, value in (options or {}).items() if name in RESET_OPTIONS}
        if self._most is not None and type(given.get("max_iterations")) is int:
            given["max_iterations"] = min(given["max_iterations"], self._most)
        self._env.listen()
        self._observation, _ = self._env.reset(seed=self._seeds.next(seed), options=given)
        self._begin()
        everybody = self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(everybody, 0.0)
        self._cumulative_rewards = dict.fromkeys(everybody, 0.0)
        self.terminations = dict.fromkeys(everybody, False)
        self.truncations = dict.fromkeys(everybody, False)
        self.infos = {agent: {} for agent in everybody}
        self._pass_on()
        self.show()

    def agents_to_act(self) -> list[str]:
        """Who is asked now."""
        return list(self._asked) or [ROOT]

    def step(self, action: Any) -> None:
        """Let the selected agent act."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        if agent == ROOT:
            self._go_on(self._env.begin(action))
        else:
            self._take(agent, action)
        self._accumulate_rewards()
        self.show()

    def _take(self, agent: str, answer: str) -> None:
        self._answers[self._asked.pop(agent)] = answer
        self._helpers.add(agent)
        if self._asked:
            self.agent_selection = next(iter(self._asked))
        elif self._questions:
            self._ask()
        else:
            self._go_on(self._env.answer(self._answers))

    def _go_on(self, stepped: Stepped | None) -> None:
        """Ask what the program asks, or tell root what came of it."""
        if stepped is None:
            self._questions = [readable(prompt) for prompt in self._env.prompts]
            self._answers = []
            self._ask()
            return
        self._observation, reward, ended, _, info = stepped
        self.agent_selection = ROOT
        self.infos[ROOT] = info
        self._pass_on()
        self._pay(reward, info["reward_parts"], ended=ended)
        if ended:
            self.terminations = dict.fromkeys(self.agents, True)

    def _ask(self) -> None:
        """Ask as many questions as there are agents to answer them."""
        now, self._questions = self._questions[: len(self.subs)], self._questions[len(self.subs) :]
        for sub, prompt in zip(self.subs, now, strict=False):
            self._asked[sub] = len(self._answers)
            self._answers.append("")
            self._prompts[sub] = prompt
            self.emit(message("user", prompt, to=(sub,)))
        self.agent_selection = self.subs[0]

    def _pass_on(self) -> None:
        """Tell root, and nobody else, what its programs have come to."""
        self.emit(*(msgspec.structs.replace(event, to=(ROOT,)) for event in drain(self._env)))

    def _pay(self, reward: float, parts: dict[str, float], *, ended: bool) -> None:
        outcome = sum(parts.get(part, 0.0) for part in _OUTCOMES) if ended else 0.0
        for sub in self.subs:
            self.rewards[sub] = reward if self._is_shared else outcome * (sub in self._helpers)
        self.rewards[ROOT] = reward

    def observe(self, agent: str) -> Any:
        """What root's last program came to; the last prompt of another agent."""
        return dict(self._observation) if agent == ROOT else {"prompt": self._prompts[agent]}

    def parse_action(self, text: str, agent: str | None = None) -> str:
        """The program in root's reply; the reply itself of another agent."""
        if agent == ROOT:
            return self._env.parse_action(text)
        if agent not in self.subs:
            raise InvalidArgument(no_agent(_NAME, agent, self.possible_agents))
        if not self.action_spaces[agent].contains(text):
            raise InvalidAction(f"{shown(text)} is not in {self.action_spaces[agent]}")
        return text

    def picture(self) -> str:
        """What root's last program has shown, and what is asked."""
        asked = [f"{sub}: {self._prompts[sub]}" for sub in self._asked]
        return "\n".join([str(self._env.render() or ""), *asked])

    def episode_state(self) -> dict[str, Any]:
        """How root's episode stands, and who is asked."""
        return {**self._env.episode_state(), "asked": list(self._asked)}

    def close(self) -> None:
        """End the episode and its processes."""
        self._env.close()


def _check(subs: Any, rewards: Any, subcalls: Any) -> None:
    if type(subs) is not int or not 1 <= subs <= MOST_SUBS:
        raise InvalidArgument(
            f"{_NAME}: subs={shown(subs)} is no number of agents; give an int from 1 to {MOST_SUBS}"
        )
    if rewards not in ("shared", "roles"):
        raise InvalidArgument(f"{_NAME}: rewards={shown(rewards)} is unknown; there are 'shared' and 'roles'")
    if subcalls != "agents":
        raise InvalidArgument(
            f"{_NAME}: subcalls={shown(subcalls)}: agents answer here; models do in envweave/REPL-v0"
        )


raw_env = REPLTeam


def env(**kwargs: Any) -> AECStream:
    """The game, one agent at a time, with its stream; it takes the arguments of the game itself."""
    return AECStream(call(_NAME, raw_env, kwargs), name=_NAME)


def parallel_env(**kwargs: Any) -> TurnBasedParallel:
    """The game as a ParallelEnv, with its stream; it takes the arguments of the game itself."""
    return TurnBasedParallel(env(**kwargs))
