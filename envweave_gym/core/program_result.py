"""The outcome of running a program, which reward functions read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown


class Result(msgspec.Struct, frozen=True):
    """The outcome of running a program; environments with more fields define a subclass."""

    success: bool = True
    """Whether the program ran without an error."""
    value: Any = None
    """The value of the program's last expression, as JSON or as the text of its ``repr``."""
    stdout: str = ""

    def __post_init__(self) -> None:
        if type(self.success) is not bool:
            raise InvalidArgument(f"Result: success={shown(self.success)} is not True or False")

    def answers(self) -> Iterator[Any]:
        """Yield the candidates for the program's answer: the value and, if that is empty, the last line printed."""
        yield self.value
        if self.value is None or (isinstance(self.value, str) and self.value.strip() in ("", "None")):
            yield from self.stdout.strip().splitlines()[-1:]
