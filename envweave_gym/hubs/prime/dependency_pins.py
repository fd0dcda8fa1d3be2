"""Resolves the requirements of a hub package to exact versions with hashes, from the ordinary index and wheels only.

The hub's own index is never given to uv: names in it would outrank those of the ordinary index. Nothing is built, so no
code of a dependency runs before the environment is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envweave_gym.hubs.prime.wheel_check import Generation
from envweave_gym.suites.virtual_environments import uv_in_cache

LIBRARY: dict[Generation, str] = {"v0": "verifiers>=0.1.11,<0.3.2", "v1": "verifiers>=0.4"}
"""Versions of the library that can be played, by generation; without a bound the newest would be taken for both."""
_HASH = re.compile(r"\s+--hash=(?P<kind>\w+):(?P<digest>\w+)")


def resolved_pins(
    what: str, requires: Sequence[str], generation: Generation, python: str | None
) -> dict[str, tuple[str, ...]]:
    """Return ``name==version`` for each package that the requirements need together, with the SHA-256 of its files.

    The pins are those of all platforms; one that not all need ends with a marker. Raise ``NotAvailable`` with uv's
    reason if the requirements cannot be satisfied. ``what`` is for the message.
    """
    uv = uv_in_cache(what)
    interpreter, _ = uv.interpreter(python)
    lines = uv.resolve_locked([*requires, LIBRARY[generation]], interpreter)
    return {_HASH.sub("", line).strip(): _sha256_in(line) for line in lines}


def _sha256_in(line: str) -> tuple[str, ...]:
    return tuple(found["digest"] for found in _HASH.finditer(line) if found["kind"] == "sha256")
