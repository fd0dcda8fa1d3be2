"""Games of several agents: each reads its own messages and answers by its own adapter, or by one for all."""

from __future__ import annotations

from typing import Any

from pettingzoo import AECEnv

import envweave_gym
from envweave_gym.core.faults import Fault, FaultKind, InvalidAction
from envweave_gym.training.tinker.episodes import (
    EpisodeLost,
    Policies,
    Seat,
    Stopwatch,
    Task,
    Trajectory,
    checked_reward,
    raise_fault,
)
from envweave_gym.training.tinker.sampling import PromptTooLong
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel


def is_game(env: Any) -> bool:
    """Return whether an environment has several agents."""
    return hasattr(env, "possible_agents")


def as_parallel(env: Any) -> Any:
    """Return a game as a ``ParallelEnv``, in which agents that are not active have no turn."""
    return TurnBasedParallel(env) if isinstance(env, AECEnv) else env


def play_game(env: Any, task: Task, policies: Policies, watch: Stopwatch) -> dict[str, Trajectory]:
    """Play one episode of a ``ParallelEnv``; raise ``EpisodeLost`` if it was lost.

    A reply without an action, beyond the limit, ends the game: its agent gets the reward for that, and the other
    agents' parts do not count.
    """
    with watch:
        observations, infos = env.reset(seed=task.seed, options=task.options)
    seats: dict[str, Seat] = {}
    _read(seats, task, policies, observations, infos, acted=())
    opens = True
    while acting := [agent for agent in env.agents if infos[agent].get("active", True)]:
        actions = _actions(env, seats, acting, opens and len(acting) == 1)
        if actions is None:
            break
        opens = False
        try:
            with watch:
                observations, rewards, _, _, infos = env.step(actions)
        except InvalidAction as error:  # such as a move that the rules forbid now; nothing was played
            if not _refuse(seats, acting, error):
                break
            continue
        _read(seats, task, policies, observations, infos, acted=acting)
        for agent, reward in rewards.items():
            seats[agent].reward += checked_reward(reward)
    return {agent: seat.trajectory() for agent, seat in seats.items()}


def _actions(env: Any, seats: dict[str, Seat], acting: list[str], opens: bool) -> dict[str, Any] | None:
    """Return the actions of the acting agents, or ``None`` if one of them ended the game without one."""
    actions: dict[str, Any] = {}
    for agent in acting:
        seat = seats[agent]
        while agent not in actions:
            if not seat.may_act:
                return None
            try:
                actions[agent] = envweave_gym.parse_action(env, seat.reply(opens=opens), agent)
            except InvalidAction as error:
                if not _refuse(seats, [agent], error):
                    return None
            except PromptTooLong as error:
                raise EpisodeLost(Fault(FaultKind.CAPACITY, str(error), retryable=False)) from error
    return actions


def _refuse(seats: dict[str, Seat], agents: list[str], error: InvalidAction) -> bool:
    """Count an invalid reply of each of the agents; return whether the game goes on.

    Of actions that are refused together nobody says which one is wrong. If the game ends, only the parts of those
    who ended it count.
    """
    ended = [agent for agent in agents if not seats[agent].refuse(error)]
    if ended:
        for agent, seat in seats.items():
            seat.counts = agent in ended
    return not ended


def _read(
    seats: dict[str, Seat],
    task: Task,
    policies: Policies,
    observations: dict[str, Any],
    infos: dict[str, Any],
    *,
    acted: tuple[str, ...] | list[str],
) -> None:
    """Let every agent read its own messages; raise ``EpisodeLost`` for a fault of any of them."""
    for agent, info in infos.items():
        raise_fault(info, acted=agent in acted)
        if agent not in seats:
            seats[agent] = Seat(agent, task, policies)
        seats[agent].read(info, observations[agent])
