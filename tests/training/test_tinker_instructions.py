"""Instructions: the text that the options give, else a sentence made from the action space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from absent import needs_module
from fake_tinker import FakeClient, group, policies
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space

import envweave_gym
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.training.tinker.episodes import AGENT, play
from envweave_gym.training.tinker.instructions import default_instruction, with_instruction
from envweave_gym.training.tinker.rollouts import Rollouts

needs_module("tinker", "tinker")
needs_module("jinja2")


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


def test_a_space_that_no_reply_can_name_is_refused():
    class Objects(Space[Any]):
        def sample(self, mask: Any = None, probability: Any = None) -> Any:
            return object()

        def contains(self, x: Any) -> bool:
            return type(x) is object

    with pytest.raises(InvalidArgument, match=r"no reply can name an action of Foreign.*parse_action$"):
        default_instruction(Foreign(Objects()))


def test_a_system_message_is_extended():
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}
    assert with_instruction("Answer 1.", [user])[0] == {"role": "system", "content": "Answer 1."}
    assert with_instruction("Answer 1.", [system, user]) == [
        {"role": "system", "content": "Answer 1.\nBe brief."},
        user,
    ]


@pytest.mark.usefixtures("registries")
def test_an_episode_begins_with_the_given_instruction_or_with_the_form_of_an_action():
    envweave_gym.register("local://foreign", factory=lambda: Foreign(Discrete(2)))
    default = default_instruction(Foreign(Discrete(2)))
    chosen = policies(FakeClient(lambda *args: "1"))
    for given, shown in (("", default), ("Say 1.", "Say 1.")):
        instructed = type(chosen)(chosen.prompts, chosen.sampler_of, chosen.limits, given, {AGENT: default})
        with Rollouts(lambda: envweave_gym.make("local://foreign"), play, num_envs=1) as pool:
            (episode,) = pool.play(group(1), instructed).episodes
        trajectory = episode.trajectories[AGENT]
        assert [one["content"] for one in trajectory.messages] == [shown, "[3.]", "1", "[4.]"]
        assert trajectory.reward == 1.0


@pytest.mark.usefixtures("registries")
def test_an_environment_that_writes_messages_gets_no_default_instruction():
    chosen = policies(FakeClient(lambda *args: "A"))
    instructed = type(chosen)(chosen.prompts, chosen.sampler_of, chosen.limits, "", {AGENT: "Answer 1."})
    with Rollouts(lambda: envweave_gym.make("envweave/PickLetter-v0"), play, num_envs=1) as pool:
        (episode,) = pool.play(group(1), instructed).episodes
    assert episode.trajectories[AGENT].messages[0]["role"] == "user"
