"""Names that this process knows: IDs, ``module:ID`` and local names; unknown ones get the nearest names."""

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
"""Fewer letters are a part of too many names to say which was meant."""
factories: dict[str, Callable[..., Any]] = {}
"""The factories that :func:`envweave_gym.register` was given, by their ``local://`` names."""


def split_module(name: str) -> tuple[str, str]:
    """The module and the ID of ``module:ID``; without a module the first is empty."""
    module, colon, rest = name.partition(":")
    is_module = colon and all(part.isidentifier() for part in module.split("."))
    return (module, rest) if is_module else ("", name)


def import_module_of(name: str) -> str:
    """Import the module of ``module:ID``, which registers the ID; gives the ID."""
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
    """The full registered ID that a name means; ``None`` where it means none, as names with a scheme do.

    The module of ``module:ID`` is imported, as :func:`envweave_gym.make` does.
    """
    if "://" in name:
        return None
    try:
        return registered_id(import_module_of(name))
    except UnknownEnvironment:
        return None


def registered_id(env_id: str) -> str | None:
    """The registered ID that ``env_id`` means: itself, or its newest version where it names none."""
    for spelling in (env_id, re.sub(r"_v(\d+)$", r"-v\1", env_id)):
        if any(spelling in registry for registry in REGISTRIES.values()):
            return spelling
    known = (one.rpartition("-v") for registry in REGISTRIES.values() for one in registry)
    versions = [version for name, _, version in known if name == env_id and version.isdecimal()]
    return f"{env_id}-v{max(versions, key=int)}" if versions else None


def unknown(name: str) -> UnknownEnvironment:
    """The error that no environment has this name, with the nearest names."""
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
    """Up to three of the known names: those spelled nearly so, then those that have it as a part."""
    spellings = {spelling: one for one in sorted(known) for spelling in (_bare(one), one.lower())}
    bare = _bare(name)
    near = difflib.get_close_matches(bare, spellings, n=3, cutoff=0.75)
    near += difflib.get_close_matches(name.lower(), spellings, n=3, cutoff=0.9)
    near += [spelling for spelling in spellings if bare in spelling and len(bare) >= _SHORTEST_PART]
    return list(dict.fromkeys(spellings[spelling] for spelling in near))[:3]


def _bare(name: str) -> str:
    """A name as people remember it: small letters, no namespace, no version."""
    return re.sub(r"-v\d+$", "", name.rpartition("/")[2].lower())
