"""The constructor arguments of the word problems, and the rewards of replies."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from envweave_gym.core.config import Config, local, one_of, wire
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.spaces import encodable
from envweave_gym.data.gsm8k import GSM8K
from envweave_gym.data.sources import SYNTHETIC
from envweave_gym.envs.tasks.choice_config import ChoiceConfig

SYSTEM_PROMPT = (
    "Solve the problem step by step. Then write the answer, which is a number, on a last line behind '#### '."
)
MAX_PROMPT = 65_536
"""Limit of a system prompt in characters: every observation has it, and clients of servers may give it."""
_DATASET = wire('a name on the hub, a path, or `"synthetic"`', only=(GSM8K.hub, SYNTHETIC))
_SPLIT = wire('`"train"` or `"test"`')


class GSM8KConfig(Config, frozen=True, kw_only=True):
    """The arguments of ``envweave/GSM8K-v0``."""

    dataset: Annotated[str, _DATASET] = GSM8K.hub
    split: Annotated[str, _SPLIT] = "train"
    observation: Annotated[
        Literal["text", "chat"], wire('`"text"`, the prompt, or `"chat"`, a list of messages')
    ] = "text"
    system_prompt: Annotated[str, wire('text before the question; `""` for none')] = SYSTEM_PROMPT
    hint_turns: Annotated[int, wire("with 1 a wrong first reply gets a hint and a second try")] = 0
    reward_on_correct: Annotated[float, wire("the right number")] = 1.0
    reward_on_hinted: Annotated[float, wire("the right number after a hint")] = 0.5
    reward_on_wrong: Annotated[float, wire("another number, or none")] = 0.0
    reward_on_format: Annotated[
        float, wire(r"added if the last reply gives its answer behind `####` or in `\boxed{…}`")
    ] = 0.0
    render_mode: Annotated[str | None, local('`"ansi"` or none')] = None

    def __post_init__(self) -> None:
        one_of("observation", self.observation, ("text", "chat"))
        prompt = self.system_prompt
        if not (isinstance(prompt, str) and len(prompt) <= MAX_PROMPT and encodable(prompt)):
            raise InvalidArgument(
                f"system_prompt={shown(prompt)} is no text of at most {MAX_PROMPT} characters; give '' for none"
            )
        if type(self.hint_turns) is not int or self.hint_turns not in (0, 1):
            raise InvalidArgument(f"hint_turns={shown(self.hint_turns)} is neither 0 nor 1")
        for name in ("reward_on_correct", "reward_on_hinted", "reward_on_wrong", "reward_on_format"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise InvalidArgument(f"{name}={shown(value)} is no finite number")

    def reward(self, *, correct: bool, formatted: bool, hinted: bool) -> float:
        """Return the reward of the reply that ends the episode; ``hinted`` if it came after a hint."""
        right = self.reward_on_hinted if hinted else self.reward_on_correct
        earned = right if correct else self.reward_on_wrong
        return float(earned + self.reward_on_format if formatted else earned)


class GSM8KMCQConfig(ChoiceConfig, frozen=True, kw_only=True):
    """The arguments of ``envweave/GSM8KMCQ-v0``."""

    dataset: Annotated[str, _DATASET] = GSM8K.hub
    split: Annotated[str, _SPLIT] = "train"
