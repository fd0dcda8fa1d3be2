"""Episodes of hub packages played here and by the library itself, with the same replies, for comparing the rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from envweave_gym.programs.port.call import Call
from envweave_gym.programs.port.model_port import ModelPort
from envweave_gym.programs.reply import Reply

KEY = "TEST_MODEL_KEY"
Policy = Callable[[str, list[dict[str, Any]]], Any]
"""A function of the model's name and the messages, which returns an action."""


def reply_of(action: Any) -> Reply:
    return Reply(action) if isinstance(action, str) else msgspec.convert(action, Reply)


@contextmanager
def answering(policy: Policy, monkeypatch: Any) -> Iterator[ModelPort]:
    """A model port that answers each call at once by the policy."""

    def answer(call: Call) -> None:
        call.answer(reply_of(policy(call.request.model, call.request.chat())))

    port = ModelPort(answer)
    monkeypatch.setenv(KEY, port.token)
    try:
        yield port
    finally:
        port.close()


def played(env: Any, policy: Policy, index: int) -> tuple[float, dict[str, Any]]:
    """The return of an episode of a Gymnasium environment, and its last info."""
    messages, info = env.reset(seed=0, options={"index": index})
    total, over = 0.0, False
    while not over:
        messages, reward, terminated, truncated, info = env.step(policy("agent", messages))
        total, over = total + reward, terminated or truncated
    return total, info


def played_game(game: Any, policy: Policy, index: int) -> tuple[dict[str, float], list[set[str]]]:
    """The returns of the agents of a parallel game, and who acted in each step."""
    observations, infos = game.reset(seed=0, options={"index": index})
    totals, rounds = dict.fromkeys(game.agents, 0.0), []
    while game.agents:
        acting = {agent for agent in game.agents if infos[agent]["active"]}
        rounds.append(acting)
        actions = {agent: policy(agent, observations[agent]) for agent in acting}
        observations, rewards, _, _, infos = game.step(actions)
        for agent, reward in rewards.items():
            totals[agent] += reward
    return totals, rounds
