"""How the programs of a REPL are run, and how their answers are found."""

from __future__ import annotations

from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.envs.code.program_env import Options
from envweave_gym.sandbox import Limits, Setup

MOST_OUTPUT = 1 << 20
_COMPATS = ("control", "stdout")
_SCANNED = 8 << 20
"""So many bytes of output are looked through for an answer."""


class ReplOptions(Options, frozen=True, kw_only=True):
    """How programs are run, and how much of what they print is kept."""

    compat: str = "control"
    """How an answer is given: through the control channel alone, or also by printing ``FINAL(…)``."""
    max_output_length: int = 8192
    context_preview_length: int = 500
    depth: int = 0
    """How many other episodes it is inside of."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compat not in _COMPATS:
            known = " and ".join(map(repr, _COMPATS))
            raise InvalidArgument(f"compat={shown(self.compat)} is unknown; there are {known}")
        for name in ("max_output_length", "context_preview_length"):
            value: Any = getattr(self, name)
            if type(value) is not int or not 100 <= value <= MOST_OUTPUT:
                raise InvalidArgument(
                    f"{name}={shown(value)} is no number of characters from 100 to {MOST_OUTPUT}"
                )

    def setup(self) -> Setup:
        """The sandbox that is wanted.

        It is another for every depth: the tools of one share threads, and those of an episode wait for the
        episodes inside it.
        """
        setup = super().setup()
        output = _SCANNED if self.compat == "stdout" else self.max_output_length
        limits = msgspec.structs.replace(setup.limits, output=output, text=Limits().text + self.depth)
        return msgspec.structs.replace(setup, limits=limits)
