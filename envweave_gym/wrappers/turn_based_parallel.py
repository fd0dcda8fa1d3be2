"""A wrapper that plays any AEC environment as a ``ParallelEnv``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Space
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.protocols import layers
from envweave_gym.episode.game_record import Infos, ParallelStep
from envweave_gym.wrappers.aec_stream import AECStream


def parallel_form(game: Any) -> Any:
    """Return a game as a ``ParallelEnv`` in which agents that are not active have no turn.

    A game on a server, whose streams are made there, is closed, and another one there is returned.
    """
    if not isinstance(game, AECEnv):
        return game
    if not hasattr(type(game), "as_parallel"):
        return TurnBasedParallel(game)
    with closing(cast(Any, game)):
        return cast(Any, game).as_parallel()


def _plain(flag: Any) -> bool:
    """Return NumPy's bool as Python's, and anything else as it is: who reads a flag that is no bool sees that."""
    return flag.item() if isinstance(flag, np.bool_) else flag


_Outcome = tuple[Any, bool, bool, dict[str, Any]]
"""An agent's part of a step: observation, terminated, truncated, the environment's own info."""


class TurnBasedParallel(ParallelEnv[str, Any, Any]):
    """Adapter of an AEC environment to ``ParallelEnv``, in which only agents with an open request act.

    - One step plays the open round: the agents of the ``act`` requests act, in turn. From the reset on
      ``infos[agent]["active"]`` says whether the agent is one of them.
    - Actions of other agents are ignored, and recorded as ``ignored`` events that only they see. So a
      trainer may send an action for every agent at every step and mask with :func:`envweave_gym.trainable`.
    - Rewards are the sums over the AEC steps of the round; ``infos[agent]["stream"]`` has the events of the
      round that the agent may see.
    - A wrong or missing action raises :class:`InvalidAction` and has no effect. Agents that are done leave
      without a step of their own. After the end ``step({})`` returns five empty dicts, a step with actions
      raises :class:`ResetNeeded`.
    """

    def __init__(self, aec_env: AECEnv[str, Any, Any]) -> None:
        """Wrap ``aec_env`` in an :class:`AECStream`, unless it contains one already, and adapt it."""
        if not isinstance(aec_env, AECEnv):
            raise InvalidArgument(
                f"TurnBasedParallel takes a pettingzoo.AECEnv, not a {type(aec_env).__name__}"
            )
        stream = next((layer for layer in layers(aec_env) if isinstance(layer, AECStream)), None)
        if stream is None and any(hasattr(type(layer), "stream_state") for layer in layers(aec_env)):
            raise InvalidArgument(
                f"TurnBasedParallel({aec_env}) would lose the streams that its server writes; make the game with "
                "api='parallel'"
            )
        self._stream = AECStream(aec_env) if stream is None else stream
        self.aec_env = self._stream if stream is None else aec_env
        self._inside = self._stream.env if self.aec_env is self._stream else self.aec_env

    @property
    def agents(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The live agents; empty before the first reset, and after a failure."""
        return [] if self._stream.record.failed else self._stream.live_agents

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Start an episode; its seed is in the ``episode_start`` event."""
        self.aec_env.reset(seed=seed, options=options)
        return self._stream.record.run(self._begin)

    def _begin(self) -> tuple[dict[str, Any], Infos]:
        outcomes: dict[str, _Outcome] = {}
        self._remove_done_agents(outcomes)
        agents = self._stream.live_agents
        self._store_outcomes(agents, outcomes)
        observations, _, _, _, infos = self._results(agents, outcomes, {}, -1)
        return observations, infos

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Let the agents of the open requests act, in turn, and return the result for all live agents."""
        stream = self._stream
        if stream.record.failed or not stream.live_agents:
            return stream.record.step_after_end(actions)
        acting = stream.agent_actions.admit_all(self._inside, stream.to_act, actions)
        return stream.record.run(self._play, list(acting), actions)

    def _play(self, acting: list[str], actions: dict[str, Any]) -> ParallelStep:
        env, stream = self.aec_env, self._stream
        live, before = stream.live_agents, stream.record.seq
        if len(actions) > len(acting):
            stream.ignore({agent: action for agent, action in actions.items() if agent not in acting})
        waiting = {agent: actions[agent] for agent in acting}
        rewards: dict[str, float] = {}
        outcomes: dict[str, _Outcome] = {}
        # The round is over early if the environment selects an agent that is not waiting.
        while waiting and stream.to_act and (agent := stream.to_act[0]) in waiting:
            env.step(waiting.pop(agent))
            for earner, reward in env.rewards.items():
                rewards[earner] = rewards.get(earner, 0.0) + reward
            self._remove_done_agents(outcomes)
        if waiting:
            stream.ignore(waiting)
        self._store_outcomes(stream.agents, outcomes)
        born = [agent for agent in stream.live_agents if agent not in live]
        return self._results([*live, *born], outcomes, rewards, before)

    def _remove_done_agents(self, outcomes: dict[str, _Outcome]) -> None:
        """Let agents that are done leave the game, once their last observation and info are stored."""
        stream = self._stream
        if stream.to_act:
            return
        self._store_outcomes([agent for agent in stream.agents if agent not in stream.live_agents], outcomes)
        while stream.agents and not stream.to_act:
            self.aec_env.step(None)

    def _store_outcomes(self, agents: Iterable[str], outcomes: dict[str, _Outcome]) -> None:
        inside = self._inside
        terminated, truncated, infos = inside.terminations, inside.truncations, inside.infos
        for agent in agents:
            if agent not in outcomes:
                outcomes[agent] = inside.observe(agent), terminated[agent], truncated[agent], infos[agent]

    def _results(
        self, agents: list[str], outcomes: dict[str, _Outcome], rewards: dict[str, float], since: int
    ) -> ParallelStep:
        stream = self._stream
        requests, info = stream.requests(), stream.record.info
        return (
            {agent: outcomes[agent][0] for agent in agents},
            {agent: rewards.get(agent, 0.0) for agent in agents},
            {agent: _plain(outcomes[agent][1]) for agent in agents},
            {agent: _plain(outcomes[agent][2]) for agent in agents},
            {agent: info(outcomes[agent][3], agent, requests, since) for agent in agents},
        )

    def observation_space(self, agent: str) -> Space[Any]:
        """Return the observation space of ``agent``."""
        return self.aec_env.observation_space(agent)

    def action_space(self, agent: str) -> Space[Any]:
        """Return the action space of ``agent``."""
        return self.aec_env.action_space(agent)

    def state(self) -> Any:
        """Return PettingZoo's global state, if the environment has one."""
        return self.aec_env.state()

    def render(self) -> Any:
        """Return the result of the environment's own ``render``."""
        return self.aec_env.render()

    def close(self) -> None:
        """Close the environment."""
        self.aec_env.close()

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return self.aec_env.unwrapped

    def __getattr__(self, name: str) -> Any:
        # Copies look up attributes before aec_env is set, and forwarding would then recurse for ever.
        if name.startswith("_") or name == "aec_env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.aec_env, name)

    def __str__(self) -> str:
        return f"{type(self).__name__}<{self.aec_env}>"
