"""Folders of the user for caches, configuration and state, by the XDG Base Directory specification.

As the specification demands, a variable with a relative path counts as not set.
"""

from __future__ import annotations

import os
from pathlib import Path

_OURS = "envweave"


def cache_home() -> Path:
    """Return the folder of all programs' caches: ``XDG_CACHE_HOME``, by default ``~/.cache``."""
    return _folder("XDG_CACHE_HOME", ".cache")


def cache_folder() -> Path:
    """Return the folder of this package's caches, which may not exist."""
    return cache_home() / _OURS


def configuration_folder() -> Path:
    """Return the folder of this package's configuration in ``XDG_CONFIG_HOME``, by default ``~/.config``."""
    return _folder("XDG_CONFIG_HOME", ".config") / _OURS


def state_folder() -> Path:
    """Return the folder of this package's state in ``XDG_STATE_HOME``, by default ``~/.local/state``."""
    return _folder("XDG_STATE_HOME", ".local/state") / _OURS


def _folder(variable: str, default: str) -> Path:
    given = os.environ.get(variable, "")
    return Path(given) if os.path.isabs(given) else Path.home() / default
