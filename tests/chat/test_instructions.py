"""Instructions: the text that the options give, else a sentence made from the action space."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space

import envweave_gym
from envweave_gym.chat import ChatGame
from envweave_gym.chat.history import with_instruction
from envweave_gym.chat.instructions import default_instruction
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.protocols import AGENT


class Foreign(gym.Env[Any, Any]):
    """Shows a number, has no messages, and ends after one step."""

    observation_space = Box(0, 9, (1,), np.float32)

    def __init__(self, space: Space[Any]) -> None:
        self.action_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.array([3], np.float32), {}

    def step(self, action: Any) -> Any:
        return np.array([4], np.float32), float(action == 1), True, False, {}


@pytest.mark.parametrize(
    ("space", "form"),
    [
        (Discrete(4), "one whole number from 0 to 3"),
        (Discrete(2, start=-1), "one whole number from -1 to 0"),
        (Box(-2, 2, (1,)), "a JSON list of 1 number, from -2 to 2"),
        (Box(-np.inf, np.inf, (3,)), "a JSON list of 3 numbers"),
        (
            Box(np.array([0, -1], np.int8), np.array([1, 1], np.int8), dtype=np.int8),
            "a JSON list of 2 whole numbers: from 0 to 1; from -1 to 1",
        ),
        (Box(0, 255, (), np.uint8), "one number from 0 to 255"),
        (MultiDiscrete([2, 3]), "a JSON list of 2 whole numbers: from 0 to 1; from 0 to 2"),
        (MultiBinary(3), "a JSON list of 3 whole numbers, each from 0 to 1"),
    ],
)
def test_the_form_of_an_action_is_made_from_its_space(space: Space[Any], form: str):
    assert default_instruction(Foreign(space)) == f"Answer with {form}, and nothing else."


def test_the_example_of_a_composed_action_is_one():
    space = Dict(gas=Box(0, 1, (1,)), gear=Discrete(5))
    before = space.np_random.bit_generator.state
    text = default_instruction(Foreign(space))
    example = text.removeprefix("Answer with JSON of the form ").removesuffix(", and nothing else.")
    assert envweave_gym.parse_action(Foreign(space), example) in space
    assert space.np_random.bit_generator.state == before
    assert default_instruction(Foreign(space)) == text


def test_texts_need_no_form_and_words_are_not_overridden():
    assert default_instruction(Foreign(envweave_gym.Unicode(64))) == ""

    class Words(Foreign):
        def parse_action(self, text: str, agent: str | None = None) -> int:
            return ["stay", "go"].index(text)

    assert default_instruction(Words(Discrete(2))) == ""
    assert "from 0 to 1" in default_instruction(envweave_gym.make("envweave/LineWorld-v0"))


class Objects(Space[Any]):
    """A space whose members have no text."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return object()

    def contains(self, x: Any) -> bool:
        return type(x) is object


def test_a_space_that_no_reply_can_name_is_refused():
    with pytest.raises(InvalidArgument, match=r"no reply can name an action of Foreign.*parse_action$"):
        default_instruction(Foreign(Objects()))


def test_a_system_message_is_extended():
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}
    assert with_instruction("Answer 1.", [user])[0] == {"role": "system", "content": "Answer 1."}
    assert with_instruction("Answer 1.", [system, user]) == [
        {"role": "system", "content": "Answer 1.\nBe brief."},
        user,
    ]


def begun(env: Any, **settings: Any) -> list[Any]:
    game = ChatGame(env, **settings)
    game.reset(seed=0)
    return game.messages(AGENT)


def test_an_episode_begins_with_the_given_instruction_or_with_the_form_of_an_action():
    default = default_instruction(Foreign(Discrete(2)))
    for given, shown in (("", default), ("Say 1.", "Say 1.")):
        game = ChatGame(Foreign(Discrete(2)), instruction=given)
        game.reset(seed=0)
        game.reply(AGENT, "1")
        assert [one["content"] for one in game.messages(AGENT)] == [shown, "[3.]", "1", "[4.]"]
        assert game.take_turn(AGENT).reward == 1.0


def test_a_trainer_may_explain_the_form_in_its_own_words():
    explain = partial(default_instruction, sentence="The action is {form}.")
    [first, _] = begun(Foreign(Discrete(2)), explain=explain)
    assert first["content"] == "The action is one whole number from 0 to 1."


def test_an_environment_that_writes_messages_gets_only_an_instruction_that_is_given():
    env = envweave_gym.make("envweave/PickLetter-v0")
    assert [one["role"] for one in begun(env)] == ["user"]
    assert [one["role"] for one in begun(env, instruction="Be brief.")] == ["system", "user"]


def test_a_game_is_refused_before_its_first_episode():
    with pytest.raises(InvalidArgument, match="no reply can name an action"):
        ChatGame(Foreign(Objects())).check()
