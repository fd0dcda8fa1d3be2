"""One line of what ``envweave doctor`` reports."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["ok", "missing", "broken"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report."""

    part: Literal["base", "extra", "plug-in", "machine"]
    name: str
    status: Status
    detail: str
    next_step: str = ""

    def fails(self) -> bool:
        """Whether it is something to repair: what is installed is broken, or the base is not there."""
        return self.status == "broken" or (self.part == "base" and self.status != "ok")
