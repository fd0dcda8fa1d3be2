"""Limits of a chat, and the results of its turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from envweave_gym.core.faults import InvalidArgument, shown


class Ending(StrEnum):
    """Why a role's part of an episode is over."""

    COMPLETED = "completed"
    """The environment terminated it."""
    MAX_TURNS = "max_turns"
    """The environment truncated it, or a role has given as many replies as the rules allow."""
    PARSE_ERROR = "parse_error"
    """Too many replies of the role named no action."""
    OTHERS = "others"
    """Another role could not go on, or actions of several roles were refused together: its reward teaches nothing."""


@dataclass(frozen=True)
class ChatRules:
    """Limits of an episode, and the reward of a role whose reply without an action ends it."""

    max_turns: int = 16
    """Limit of replies of each role."""
    invalid_replies: int = 0
    """Replies that name no action after which the model is asked again; one more ends the episode."""
    invalid_reward: float = 0.0

    def __post_init__(self) -> None:
        """Raise ``InvalidArgument`` for limits that are out of range."""
        for name, least in (("max_turns", 1), ("invalid_replies", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidArgument(f"{name}={shown(value)} is no limit; give a number from {least} on")


@dataclass(frozen=True)
class ChatTurn:
    """The result of a role's replies since the last one that was taken."""

    reward: float
    ending: Ending | None
    """``None`` if the role's part goes on."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """The numbers that the environment reports, and ``invalid_reply``, which is 1 if a reply named no action."""
    refused: int = 0
    """The number of replies that named no action."""
    actions: int = 0
    """The number of replies whose action the environment played."""

    @property
    def trainable(self) -> bool:
        """Whether a trainer may learn from it.

        Not if another role's reply ended the game, or several replies together.
        """
        return self.ending is not Ending.OTHERS
