"""Finds the modules whose import registers an ID, so that another process can import them too.

A registry keeps what an ID makes and not who registered it: the module of the entry point need not be the
one that calls ``register``. So the modules of this process are ranked by evidence, and the other process
imports them in that order until it knows the ID.
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
_NOT_ASKED = {*_OURS, *sys.stdlib_module_names, _MAIN, _MAIN_OF_SPAWNED}
"""Packages whose IDs every process of ours has, those that register none, and the program itself."""
_MOST = 16
"""The name travels with every new session, so it names a bounded number of modules."""


def with_modules(env_id: str) -> str:
    """``env_id`` as ``module,module,:ID``, which :func:`import_until_known` reads; without any, as it is.

    First come the modules that register and have the ID in their source, then those that have its namespace
    there (``f"own/Size{n}-v0"`` in a loop), those of its entry point, and all others that register.
    ``__main__`` is listed if the program itself registers the ID, for the error.
    """
    register = dict(_registering())
    mention = [name for name, source in register.items() if env_id in source]
    namespace = env_id[: env_id.rfind("/") + 1]
    alike = [name for name, source in register.items() if namespace and namespace in source]
    ranked = [name for name in (*mention, *alike, *_of_entry_point(env_id), *register) if name != _MAIN]
    known = [*dict.fromkeys(ranked)][:_MOST] + [_MAIN] * (_MAIN in mention)
    return f"{','.join(known)},:{env_id}" if known else env_id  # the comma tells it from a module:ID of users


def import_until_known(name: str) -> str:
    """Import the modules of ``module,module,:ID`` in order until the ID is registered; gives the ID.

    Other names are given back as they are.
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
        f"{env_id} is registered in the process that asks, but no import of {', '.join(tried)} "
        f"registers it here{why}; call gymnasium.register in a module and make 'module:{env_id}'"
    )


def _of_entry_point(env_id: str) -> Iterator[str]:
    """The module that an ID's entry point is in and its packages, outermost first."""
    specs = [registry[env_id] for registry in REGISTRIES.values() if env_id in registry]
    for entry in (
        getattr(one, field, None) for one in specs for field in ("entry_point", "vector_entry_point")
    ):
        module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", None)
        if isinstance(module, str) and _is_asked(module):
            yield from accumulate(module.split("."), "{}.{}".format)


def _registering() -> Iterator[tuple[str, str]]:
    """The modules of this process that call ``register`` of Gymnasium or PettingZoo, with their sources."""
    modules: list[tuple[str, Any]] = [*sys.modules.items()]
    for name, module in modules:
        if isinstance(module, ModuleType) and (name == _MAIN or _is_asked(name)) and _refers(module):
            try:
                source = inspect.getsource(module)
            except (OSError, TypeError):  # typed into a prompt, or written in C
                continue
            if "register(" in source:
                yield name, source


def _is_asked(module: str) -> bool:
    return module.partition(".")[0] not in _NOT_ASKED


def _refers(module: ModuleType) -> bool:
    """Whether a global of the module is the registering package, or its function."""
    known = {id(one) for one in (gym, gym.register, gym.envs, registration, pettingzoo)}
    known.add(id(getattr(pettingzoo, "register", pettingzoo)))
    return any(id(value) in known for value in list(vars(module).values()))
