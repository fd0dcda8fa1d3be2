"""Resolves the requirements of a hub package to exact versions, from the ordinary package index and wheels only.

The hub's own index is never given to uv: names in it would outrank those of the ordinary index. Nothing is built, so no
code of a dependency runs before the environment is used.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from envweave_gym.core.faults import NotAvailable
from envweave_gym.hubs.prime.wheel_check import Generation
from envweave_gym.suites.uv_commands import reason_in, uv_program

LIBRARY: dict[Generation, str] = {"v0": "verifiers>=0.1.11,<0.3.2", "v1": "verifiers>=0.4"}
"""Versions of the library that can be played, by generation; without a bound the newest would be taken for both."""
_TIMEOUT_S = 600.0


def resolved_pins(
    what: str, requires: Sequence[str], generation: Generation, python: str | None, folder: Path
) -> tuple[str, ...]:
    """Return ``name==version`` for each package that the requirements need together.

    Raise ``NotAvailable`` with uv's reason if they cannot be satisfied. ``what`` is for the message, and uv runs in
    ``folder``, where it finds no project's settings.
    """
    words = ["pip", "compile", "-", "--only-binary", ":all:", "--no-header", "--no-annotate", "--quiet"]
    words += ["--color", "never", "--no-progress", *(["--python", python] if python else [])]
    try:
        done = subprocess.run(
            [*uv_program(what), *words],
            cwd=folder,
            input="\n".join([*requires, LIBRARY[generation], ""]),
            env={key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "UV_PROJECT")},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"{what}: uv did not resolve its requirements in {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise NotAvailable(f"{what}: uv cannot be started: {error}") from None
    if done.returncode:
        reason = reason_in(done.stderr, done.returncode)
        raise NotAvailable(f"{what}: its requirements cannot be satisfied: {reason}; not installed")
    lines = (line.strip() for line in done.stdout.splitlines())
    return tuple(line for line in lines if line and not line.startswith(("#", "-")))
