"""The constructor arguments of questions with options."""

from __future__ import annotations

from typing import Annotated, Literal

from envweave_gym.core.config import Config, local, one_of, wire

Observation = Literal["text", "chat"]
Action = Literal["index", "text"]
Reward = Literal["dense", "sparse"]

REWARDS = {"dense": (1.0, 0.1, 0.0), "sparse": (1.0, 0.0, 0.0)}
"""The rewards of the right option, of a wrong option, and of a reply that chooses none, in this order."""


class ChoiceConfig(Config, frozen=True, kw_only=True):
    """The arguments that all multiple-choice environments share."""

    observation: Annotated[Observation, wire('`"text"`, the prompt, or `"chat"`, a list of messages')] = (
        "text"
    )
    action: Annotated[Action, wire('`"index"` of the option, or `"text"`, a reply with a letter in it')] = (
        "index"
    )
    reward: Annotated[
        Reward,
        wire('`"dense"`: 1.0 if right, 0.1 if wrong, 0.0 if no option is chosen; `"sparse"`: 1.0 or 0.0'),
    ] = "dense"
    render_mode: Annotated[str | None, local('`"ansi"` or none')] = None

    def __post_init__(self) -> None:
        one_of("observation", self.observation, ("text", "chat"))
        one_of("action", self.action, ("index", "text"))
        one_of("reward", self.reward, tuple(REWARDS))
