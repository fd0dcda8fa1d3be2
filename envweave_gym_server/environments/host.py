"""The interface between a session and its environment, in this process or in one of its own."""

from __future__ import annotations

from typing import Protocol

from envweave_gym.wire.messages import Ask, Reset, Step


class Host(Protocol):
    """Does the calls of one session; the session calls it from one thread at a time."""

    may_be_killed: bool
    """Whether :meth:`kill` ends a call that is under way."""

    def do(self, message: Reset | Step, frame: bytes) -> tuple[bytes, bool]:
        """Reset or step; return the frame of the reply, and whether the call was done."""
        ...

    def answer(self, message: Ask, frame: bytes) -> bytes:
        """Return the frame that answers a question."""
        ...

    def kill(self) -> None:
        """End the call that is under way in another thread."""
        ...

    def close(self) -> None:
        """Close the environment."""
        ...
