"""An import hook for former names of modules: ``import old.name`` returns the module at its new name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
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


def alias_modules(targets: Mapping[str, str]) -> None:
    """Install the import hook for a mapping of former to new names, without importing a module yet."""
    sys.meta_path.append(_Alias(targets))
