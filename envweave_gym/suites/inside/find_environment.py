"""Finds an environment in the packages of a suite by its ID, and makes it.

The IDs of Gymnasium, PettingZoo and gym are tried in this order, while the packages that the suite was made for are
imported, as their imports register IDs. Then come modules of PettingZoo, and functions named ``module:function``.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from importlib import metadata
from typing import Any, Callable, Iterator, NamedTuple

from . import old_gym

_LEFT_OUT = {
    "gymnasium",
    "gym",
    "pettingzoo",
    "numpy",
    "msgspec",
    "setuptools",
    "pkg_resources",
    "test",
    "tests",
}
_MAX_MODULES = 8
"""Limit of modules that are imported for one package: some have hundreds of top-level files."""


class UnknownId(LookupError):
    """Error if no package of the suite has the ID; the text says where it was looked for."""


class WrongApi(ValueError):
    """Error if an environment has not the API that was given."""


class Found(NamedTuple):
    """An environment and its API: ``"gym"``, ``"aec"`` or ``"parallel"``."""

    api: str
    env: Any


class Wanted(NamedTuple):
    """ID, arguments and API of the environment to make."""

    env_id: str
    kwargs: dict[str, Any]
    api: str | None
    distributions: list[str]
    """Names of the packages that the suite was made for."""


def find_and_make(wanted: Wanted) -> Found:
    """Make the environment; raise :class:`UnknownId` if there is none with this ID."""
    module, _, name = wanted.env_id.rpartition(":")
    failed: dict[str, str] = {}
    if module:
        _try_import(module, failed)
    for one in (None, *_modules_of(wanted.distributions)):
        if one is not None:
            _try_import(one, failed)
        make = _registered(wanted._replace(env_id=name))
        if make is not None:
            return make()
    make = _registered(wanted._replace(env_id=name), import_all=True)
    if make is not None:
        return make()
    found = _from_game_module(wanted, name) or _from_function(wanted, module, name)
    if found is None:
        if (
            wanted.api is not None
            and _registered(wanted._replace(env_id=name, api=None), import_all=True) is not None
        ):
            raise WrongApi(f"it has no api={wanted.api!r}; leave api= out")
        raise UnknownId(_not_found(name, failed))
    return found


def _try_import(module: str, failed: dict[str, str]) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything; it is reported
        text = " ".join(str(error).split())
        failed[module] = f"{type(error).__name__}: {text[:300]}"


def _modules_of(distributions: list[str]) -> Iterator[str]:
    """Yield the top-level modules of the packages, and the modules that they announce as plug-ins of Gymnasium."""
    for name in distributions:
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for entry in package.entry_points:
            if entry.group in ("gymnasium.envs", "gym.envs"):
                yield entry.value.partition(":")[0]
        listed = (package.read_text("top_level.txt") or "").split()
        if not listed:
            firsts = (file.parts[0] for file in package.files or () if file.suffix in (".py", ".so"))
            listed = sorted({first.partition(".")[0] for first in firsts})
        usable = [
            one for one in listed if one.isidentifier() and one not in _LEFT_OUT and not one.startswith("_")
        ]
        yield from usable[:_MAX_MODULES]


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if name in sys.modules or getattr(error, "name", name) != name:
            raise  # it is there and broken
        return None


# Registered IDs


def _registered(wanted: Wanted, import_all: bool = False) -> Callable[[], Found] | None:
    """Return a function that makes the environment with a registered ID, or ``None``.

    PettingZoo and gym are imported with ``import_all`` alone: most suites need neither.
    """
    gymnasium = _imported("gymnasium")
    pettingzoo, gym = (
        _imported(name) if import_all else sys.modules.get(name) for name in ("pettingzoo", "gym")
    )
    if gymnasium is not None and wanted.api in (None, "gym"):
        env_id = _spelling(wanted.env_id, gymnasium.envs.registration.registry)
        if env_id is not None:
            return lambda: Found("gym", gymnasium.make(env_id, disable_env_checker=True, **wanted.kwargs))
    if pettingzoo is not None:
        for api in ("parallel", "aec") if wanted.api != "aec" else ("aec", "parallel"):
            game_id = _spelling(wanted.env_id, getattr(pettingzoo, api + "_registry", {}))
            if game_id is not None and wanted.api != "gym":
                return lambda: Found(api, pettingzoo.make(api, game_id, **wanted.kwargs))
    if gym is not None and wanted.api in (None, "gym"):
        old_id = _spelling(wanted.env_id, old_gym.ids_of(gym))
        if old_id is not None:
            return lambda: Found("gym", old_gym.make_with_gym(gym, old_id, wanted.kwargs))
    return None


def _spelling(name: str, registry: Any) -> str | None:
    """Return the registered ID that a name means: itself, or its newest version if it has none."""
    for spelling in (name, re.sub(r"_v(\d+)$", r"-v\1", name)):
        if spelling in registry:
            return spelling
    versions = [one.rpartition("-v")[2] for one in registry if one.rpartition("-v")[0] == name]
    numbers = [int(one) for one in versions if one.isdecimal()]
    return f"{name}-v{max(numbers)}" if numbers else None


# Games by module, and functions


def _from_game_module(wanted: Wanted, name: str) -> Found | None:
    """Make a game of a module with ``env`` or ``parallel_env``, such as ``mpe2/simple_spread_v3``."""
    path = re.sub(r"-v(\d+)$", r"_v\1", name).replace("/", ".")
    if not re.fullmatch(r"\w+(\.\w+)*", path):
        return None
    for candidate in (path, "pettingzoo." + path):
        try:
            module = importlib.import_module(candidate)
        except ModuleNotFoundError as error:
            if error.name is None or not (candidate + ".").startswith(error.name + "."):
                raise  # a package that the game needs
            continue
        kinds = ("env", "parallel_env") if wanted.api == "aec" else ("parallel_env", "env")
        make = next((getattr(module, kind) for kind in kinds if callable(getattr(module, kind, None))), None)
        if make is not None:
            return _with_api(make(**wanted.kwargs), wanted.api)
    return None


def _from_function(wanted: Wanted, module: str, name: str) -> Found | None:
    make = getattr(sys.modules.get(module), name, None) if module and name.isidentifier() else None
    return _with_api(make(**wanted.kwargs), wanted.api) if callable(make) else None


def _with_api(env: Any, api: str | None) -> Found:
    if hasattr(env, "possible_agents") or hasattr(env, "agents"):
        found = Found("aec" if hasattr(env, "agent_iter") or hasattr(env, "last") else "parallel", env)
    elif hasattr(env, "step") and hasattr(env, "reset"):
        is_new = old_gym.takes(env, "seed")  # a class may have the calls of old gym, whatever registers it
        found = Found("gym", env if is_new else old_gym.OldGym(env, None, takes_render_mode=True))
    else:
        raise WrongApi(f"it gave a {type(env).__name__}, which is no environment")
    if api is not None and (api == "gym") != (found.api == "gym"):
        raise WrongApi(f"it has no api={api!r}; it has {found.api!r}")
    return found


def _not_found(name: str, failed: dict[str, str]) -> str:
    known: list[str] = []
    packages: list[str] = []
    for package in ("gymnasium", "pettingzoo", "gym"):
        module = sys.modules.get(package)
        if module is None:
            continue
        packages.append("{} {}".format(package, getattr(module, "__version__", "")))
        if package == "pettingzoo":
            known += [*getattr(module, "aec_registry", {}), *getattr(module, "parallel_registry", {})]
        else:
            known += [
                *(module.envs.registration.registry if package == "gymnasium" else old_gym.ids_of(module))
            ]
    if not packages:
        return "its environment has no Gymnasium, gym or PettingZoo; add one of them to the requirements"
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    hint = "; the nearest are {}".format(", ".join(near)) if near else ""
    why = "".join("; import {} raised {}".format(*one) for one in failed.items())
    return (
        f"no environment is called {name!r} among the {len(known)} IDs of {' and '.join(packages)}{why}{hint}"
    )
