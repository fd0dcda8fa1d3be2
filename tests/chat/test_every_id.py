"""Every ID of the package is played as a chat, here and on a server, and none of its results is taken for a loss."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
from every_id import GAME_IDS, GYM_IDS, TRIAL

import envweave_gym
from envweave_gym.chat import ChatGame, ChatRules
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import AGENT

REPLIES = ("0", "1", "A", "bet", "check", "fold", "x = 1", "final_answer(1)", "FINAL(1)", "#### 1")
RULES = ChatRules(max_turns=12, invalid_replies=40)


def played(env: Any) -> int:
    """Play an episode with replies of which some name an action, and return the number of actions played."""
    actions = 0
    with closing(ChatGame(env, RULES)) as game:
        game.check()
        game.reset(seed=0)
        while roles := game.to_reply():
            role = roles[0]
            space = env.action_space if game.is_single else env.action_space(role)
            reply = REPLIES[actions % len(REPLIES)]
            if game.take_turn(role).refused:
                sample = space.sample()
                reply = sample if isinstance(sample, str) else json.dumps(jsonable(sample))
            game.reply(role, reply)
            actions += 1
        for role in game.roles:
            assert game.ending(role) is not None
            assert {message["role"] for message in game.messages(role)} <= {
                "system",
                "user",
                "assistant",
                "tool",
            }
    return actions


@pytest.mark.parametrize("env_id", GYM_IDS)
def test_an_environment_is_a_chat_of_one_role(env_id: str):
    env = envweave_gym.make(env_id, **TRIAL[env_id])
    assert ChatGame(env).roles == (AGENT,)
    assert played(env) > 0


@pytest.mark.parametrize("api", ["aec", "parallel"])
@pytest.mark.parametrize("env_id", GAME_IDS)
def test_a_game_is_a_chat_with_a_role_for_each_agent(env_id: str, api: str):
    game = envweave_gym.make(env_id, api=api, **TRIAL[env_id])
    assert played(game) > 0


@pytest.mark.parametrize("api", ["aec", "parallel"])
def test_a_game_on_a_server_is_the_same_chat(api: str):
    def talk(backend: str) -> list[Any]:
        env = envweave_gym.make("envweave/KuhnPoker-v0", api=api, backend=backend)
        with closing(ChatGame(env)) as game:
            game.reset(seed=3)
            while roles := game.to_reply():
                game.reply(
                    roles[0], "bet" if "bet" in game.messages(roles[0])[-1]["content"][-40:] else "call"
                )
            return [(game.messages(role), game.take_turn(role)) for role in game.roles]

    assert talk("subprocess") == talk("inproc")
