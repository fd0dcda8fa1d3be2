"""Lookup of names that this process knows: IDs, ``module:ID`` and ``local://`` names.

Errors suggest the nearest names.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pettingzoo

from envweave_gym.core.faults import UnknownEnvironment, shown
from envweave_gym.registry.catalog import REGISTRIES

_SHORTEST_PART = 4
"""Least length of a name that is searched for in known names; shorter ones are in too many."""
factories: dict[str, Callable[..., Any]] = {}
"""Factories given to :func:`envweave_gym.register`, by their ``local://`` names."""


def split_module(name: str) -> tuple[str, str]:
    """Split ``module:ID`` into both parts; the module is empty if there is none."""
    module, colon, rest = name.partition(":")
    is_module = colon and all(part.isidentifier() for part in module.split("."))
    return (module, rest) if is_module else ("", name)


def import_module_of(name: str) -> str:
    """Import the module of ``module:ID``, which registers the ID, and return the ID; return other names unchanged."""
    module, rest = split_module(name)
    if not module:
        return name
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        missing = f"there is no module {error.name!r} to import"
        raise UnknownEnvironment(f"make({shown(name)}): {missing}") from error
    return rest


def resolve(name: str) -> str | None:
    """Return the full registered ID for a name, or ``None`` for one with a scheme or of no known ID.

    The module of ``module:ID`` is imported, as :func:`envweave_gym.make` does.
    """
    if "://" in name:
        return None
    try:
        return registered_id(import_module_of(name))
    except UnknownEnvironment:
        return None


def registered_id(env_id: str) -> str | None:
    """Return ``env_id`` if it is registered, its newest version if it has no version, else ``None``."""
    # PettingZoo's modules end with _v3, its IDs with -v3.
    for spelling in (env_id, re.sub(r"_v(\d+)$", r"-v\1", env_id)):
        if any(spelling in registry for registry in REGISTRIES.values()):
            return spelling
    known = (one.rpartition("-v") for registry in REGISTRIES.values() for one in registry)
    versions = [version for name, _, version in known if name == env_id and version.isdecimal()]
    return f"{env_id}-v{max(versions, key=int)}" if versions else None


def unknown(name: str) -> UnknownEnvironment:
    """Return the error for an unknown name, with the nearest known names."""
    names = _nearest(
        name, {*gym.registry, *pettingzoo.aec_registry, *pettingzoo.parallel_registry, *factories}
    )
    hint = f"; the nearest names are {', '.join(names)}" if names else _next_step(name)
    return UnknownEnvironment(
        f"no environment is called {shown(name)}: it is not among the {len(gym.registry)} IDs of Gymnasium, "
        f"the {len(pettingzoo.aec_registry)} AEC and {len(pettingzoo.parallel_registry)} parallel IDs of "
        f"PettingZoo and the {len(factories)} local names{hint}"
    )


def _next_step(name: str) -> str:
    if name.startswith("local://"):
        return "; give it to envweave_gym.register(name, factory=…) first"
    return "; 'envweave list' shows what this package has, and gymnasium.register(…) adds to them"


def _nearest(name: str, known: set[str]) -> list[str]:
    """Return up to three known names: first those with a similar spelling, then those that contain ``name``."""
    spellings = {spelling: one for one in sorted(known) for spelling in (_bare(one), one.lower())}
    bare = _bare(name)
    near = difflib.get_close_matches(bare, spellings, n=3, cutoff=0.75)
    near += difflib.get_close_matches(name.lower(), spellings, n=3, cutoff=0.9)
    near += [spelling for spelling in spellings if bare in spelling and len(bare) >= _SHORTEST_PART]
    return list(dict.fromkeys(spellings[spelling] for spelling in near))[:3]


def _bare(name: str) -> str:
    """Return a name in lower case, without namespace and version, as people remember it."""
    return re.sub(r"-v\d+$", "", name.rpartition("/")[2].lower())
