"""Import hooks for former names: of modules that are found under their new ones, and of those that have moved."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Alias(MetaPathFinder, Loader):
    """Import hook that maps former names to modules.

    ``sys.modules`` has the same module under both names, so its classes exist once.
    """

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = targets

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self._targets else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        # Returning the module itself, not a new one, is what keeps its classes from existing twice.
        module = importlib.import_module(self._targets[spec.name])
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the import system has replaced it with that of the alias


class _Hints(MetaPathFinder):
    """Import hook that raises ``ModuleNotFoundError`` with a hint for names of a package that have moved.

    ``from package import name`` drops the text of the package's own ``AttributeError``, and looks for a module then.
    """

    def __init__(self, package: str, hint_for: Callable[[str], str]) -> None:
        self._package, self._hint_for = package, hint_for

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package == self._package and (hint := self._hint_for(name)):
            # Without name=, as the import statement drops the error of a module with that name.
            raise ModuleNotFoundError(f"cannot import {name!r} from {package!r}{hint}")
        return None


def hint_at_moved_names(package: str, hint_for: Callable[[str], str]) -> None:
    """Install the import hook that raises for names of ``package`` for which ``hint_for`` returns a text."""
    sys.meta_path.append(_Hints(package, hint_for))


def alias_modules(targets: Mapping[str, str]) -> None:
    """Install the import hook for a mapping of former to new names, without importing a module yet."""
    sys.meta_path.append(_Alias(targets))
