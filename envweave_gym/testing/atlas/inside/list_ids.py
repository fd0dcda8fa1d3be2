"""Prints the IDs of packages as JSON: ``DISTRIBUTIONS`` names them as on the package index.

``MODULES`` are further modules whose import registers IDs. Standard library and Python 3.8: it runs in the suite's own
Python. IDs are those in the registries of Gymnasium and of
PettingZoo whose entry points are in modules of these packages, and modules with the functions of PettingZoo.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import platform
import re
from importlib import metadata
from typing import Any, Iterator  # noqa: UP035 - as Python 3.8 has it

DISTRIBUTIONS: list[str] = []
MODULES: list[str] = []


def modules_of(name: str) -> list[str]:
    """Return the top-level modules that a distribution has installed."""
    files = metadata.distribution(name).files or []
    tops = {file.parts[0] for file in files if file.suffix in (".py", ".so")}
    return sorted({top.partition(".")[0] for top in tops if re.fullmatch(r"[a-zA-Z]\w*(\..+)?", top)})


def module_of(entry_point: Any) -> str:
    """Return the module of an entry point: a string, or an object."""
    while hasattr(entry_point, "func"):  # functools.partial, which is of no package
        entry_point = entry_point.func
    path = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return path.partition(":")[0]


def root_of(entry_point: Any) -> str:
    """Return the top-level module of an entry point."""
    return module_of(entry_point).partition(".")[0]


def registered(own: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield API, ID and module of the IDs that belong to the modules ``own``."""
    gymnasium = imported("gymnasium", {})
    for spec in list(gymnasium.registry.values() if gymnasium else []):
        if spec.entry_point is not None and root_of(spec.entry_point) in own:
            yield "gym", spec.id, module_of(spec.entry_point)
    registries = imported("pettingzoo.env_registry.registration", {})
    for api in ("aec", "parallel"):
        for env_id, spec in getattr(registries, api + "_registry", {}).items():
            if root_of(spec.entry_point) in own:
                yield api, env_id, module_of(spec.entry_point)


def game_modules(own: list[str], failed: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield API, ``module:function`` and module of the modules named like ``game_v1``, as PettingZoo's are."""
    for top in own:
        for found in pkgutil.walk_packages(
            getattr(imported(top, {}), "__path__", []), top + ".", lambda _: None
        ):
            if re.search(r"_v\d+$", found.name) and "test" not in found.name:
                module = imported(found.name, failed)
                for api, function in (("parallel", "parallel_env"), ("aec", "env")):
                    if callable(getattr(module, function, None)):
                        yield api, found.name + ":" + function, found.name
                        break


def imported(name: str, failed: dict[str, str]) -> Any:
    """Import a module; return ``None`` and note the reason if that fails."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything
        failed[name] = f"{type(error).__name__}: {error}"


def main() -> None:
    """Print one JSON object."""
    failed: dict[str, str] = {}
    modules = [*MODULES, *(module for name in DISTRIBUTIONS for module in modules_of(name))]
    own = [name for name in modules if imported(name, failed) is not None]
    found = list(dict.fromkeys(registered([*own, *(name.partition(".")[0] for name in MODULES)])))
    if not any(one[0] != "gym" for one in found):
        found += game_modules(own, failed)
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in [*DISTRIBUTIONS, "gymnasium", "pettingzoo", "gym", "numpy"]:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    print(json.dumps({"ids": sorted(found), "imports": own, "failed_imports": failed, "versions": versions}))


if __name__ == "__main__":
    main()
