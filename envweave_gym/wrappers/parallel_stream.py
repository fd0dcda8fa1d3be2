"""The stream of PettingZoo's parallel environments, whose agents all act at once."""

from __future__ import annotations

from typing import Any

from pettingzoo.utils.wrappers import BaseParallelWrapper

from envweave_gym.core.call_results import NOT_UNPACKED, wrong_result
from envweave_gym.episode.emitter import drain
from envweave_gym.episode.game_record import Infos, ParallelStep
from envweave_gym.wrappers.game_stream import GameStream


class ParallelStream(GameStream, BaseParallelWrapper[str, Any, Any]):
    """Wrapper that adds the stream to a ParallelEnv: an agent's info has the events of the last step that it may see.

    Wrong actions, calls out of order and exceptions of the environment have the same effects as in
    :class:`envweave_gym.wrappers.AECStream`.
    """

    @property
    def agents(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The live agents; empty before the first reset, and after a failure."""
        record = self.record
        return [] if record.failed or record.episode < 0 else self.env.agents

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Start an episode; its seed is in the ``episode_start`` event."""
        return self.record.run(self._begin, self._reset_env(seed, options))

    def _begin(self, reply: Any) -> tuple[dict[str, Any], Infos]:
        try:
            observations, infos = reply
        except NOT_UNPACKED as error:
            raise wrong_result(self.name, "reset", reply) from error
        return observations, self._with_stream(infos, -1)

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Let every live agent act; actions of agents that are done are ignored and recorded."""
        record, live = self.record, list(self.agents)
        if not live:
            return record.step_after_end(actions)
        return record.run(self._act, live, actions, self.agent_actions.admit_all(self.env, live, actions))

    def _act(self, live: list[str], actions: dict[str, Any], admitted: dict[str, Any]) -> ParallelStep:
        record, chosen = self.record, {agent: actions[agent] for agent in live}
        result = self.env.step(chosen)
        try:
            observations, rewards, terminations, truncations, infos = result
        except NOT_UNPACKED as error:
            raise wrong_result(self.name, "step", result) from error
        before = record.seq
        if len(actions) > len(live):
            record.ignored({agent: action for agent, action in actions.items() if agent not in chosen})
        record.acted(admitted, rewards, drain(self._emitter))
        for agent in live:
            if terminations[agent] or truncations[agent]:
                record.ended(agent, terminations[agent], truncations[agent])
        return observations, rewards, terminations, truncations, self._with_stream(infos, before)

    def _with_stream(self, infos: Infos, since: int) -> Infos:
        record, agents = self.record, self.agents
        requests = record.requests(agents, over=not agents)
        everybody = {**{agent: {} for agent in agents}, **infos}  # a game may leave agents out of its infos
        return {agent: record.info(own, agent, requests, since) for agent, own in everybody.items()}
