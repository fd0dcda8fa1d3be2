"""One line of the report of ``envweave doctor``."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["ok", "missing", "broken"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check: what was checked, whether it works, and the next step if it does not."""

    part: Literal["base", "extra", "plug-in", "machine"]
    name: str
    status: Status
    detail: str
    next_step: str = ""

    def fails(self) -> bool:
        """Return whether the user must repair something: a broken installed package, or a missing required one."""
        return self.status == "broken" or (self.part == "base" and self.status != "ok")
