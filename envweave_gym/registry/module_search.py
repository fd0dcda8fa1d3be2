"""Search for the modules whose import registers an ID, so that another process can import them too.

A registry stores what an ID makes, but not which module registered it: the module of the entry point need not
be the one that calls ``register``. So the modules of this process are ranked by evidence, and the other process
imports them in that order until the ID is registered.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from itertools import accumulate
from types import ModuleType
from typing import Any

import gymnasium as gym
import pettingzoo
from gymnasium.envs import registration

from envweave_gym.core.faults import UnknownEnvironment
from envweave_gym.registry.catalog import REGISTRIES

_MAIN, _MAIN_OF_SPAWNED = "__main__", "__mp_main__"
_OURS = {"gymnasium", "pettingzoo", "envweave_gym", "envweave_gym_server"}
_LEFT_OUT = {*_OURS, *sys.stdlib_module_names, _MAIN, _MAIN_OF_SPAWNED}
"""Packages that are not searched: their IDs are in every process, or they register none."""
_MAX_MODULES = 16
"""Limit of modules in a name, because the name is sent with every new session."""


def with_modules(env_id: str) -> str:
    """Return ``module,module,:ID``: ``env_id`` after the modules that may register it, or alone if none is found.

    Another process gives the text to :func:`import_until_known`. First come modules that call ``register`` and have
    the ID in their source, then those with its namespace in their source (``f"own/Size{n}-v0"`` in a loop), those
    of its entry point, and all others that call ``register``. ``__main__`` is last if the program itself registers
    the ID: the other process cannot import it, and says so in its error.
    """
    register = dict(_registering())
    mention = [name for name, source in register.items() if env_id in source]
    namespace = env_id[: env_id.rfind("/") + 1]
    alike = [name for name, source in register.items() if namespace and namespace in source]
    ranked = [name for name in (*mention, *alike, *_of_entry_point(env_id), *register) if name != _MAIN]
    known = [*dict.fromkeys(ranked)][:_MAX_MODULES] + [_MAIN] * (_MAIN in mention)
    return f"{','.join(known)},:{env_id}" if known else env_id  # the comma tells it from a module:ID of users


def import_until_known(name: str) -> str:
    """Import the modules of ``module,module,:ID`` in order until the ID is registered, and return the ID.

    Other names are returned unchanged.
    """
    modules, _, env_id = name.rpartition(":")
    if "," not in modules:
        return name
    tried, failed = modules.strip(",").split(","), dict[str, str]()
    for module in tried:
        if any(env_id in registry for registry in REGISTRIES.values()):
            return env_id
        try:
            if module != _MAIN:
                importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - reported below, if no other module registers the ID
            failed[module] = f"{type(error).__name__}: {error}"
    if any(env_id in registry for registry in REGISTRIES.values()):
        return env_id
    why = "".join(f"; {module} raised {error}" for module, error in failed.items())
    raise UnknownEnvironment(
        f"{env_id} is registered in the client's process, but no import of {', '.join(tried)} "
        f"registers it here{why}; call gymnasium.register in a module and make 'module:{env_id}'"
    )


def _of_entry_point(env_id: str) -> Iterator[str]:
    """Yield the packages that contain an ID's entry point, outermost first, and then its module."""
    specs = [registry[env_id] for registry in REGISTRIES.values() if env_id in registry]
    for entry in (
        getattr(one, field, None) for one in specs for field in ("entry_point", "vector_entry_point")
    ):
        module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", None)
        if isinstance(module, str) and _is_searched(module):
            yield from accumulate(module.split("."), "{}.{}".format)


def _registering() -> Iterator[tuple[str, str]]:
    """Yield name and source of each module of this process that calls ``register`` of Gymnasium or PettingZoo."""
    modules: list[tuple[str, Any]] = [*sys.modules.items()]
    for name, module in modules:
        if isinstance(module, ModuleType) and (name == _MAIN or _is_searched(name)) and _refers(module):
            try:
                source = inspect.getsource(module)
            except (OSError, TypeError):  # typed into a prompt, or written in C
                continue
            if "register(" in source:
                yield name, source


def _is_searched(module: str) -> bool:
    return module.partition(".")[0] not in _LEFT_OUT


def _refers(module: ModuleType) -> bool:
    """Return whether a global of the module is Gymnasium or PettingZoo, or its ``register``."""
    known = {id(one) for one in (gym, gym.register, gym.envs, registration, pettingzoo)}
    known.add(id(getattr(pettingzoo, "register", pettingzoo)))
    return any(id(value) in known for value in list(vars(module).values()))
