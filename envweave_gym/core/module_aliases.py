"""Imports of modules under former names: ``import old.name`` gives the module at its new name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Alias(MetaPathFinder, Loader):
    """Finds the former names, and loads the modules that they stand for.

    ``sys.modules`` has the same module under both names, so its classes exist once.
    """

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = targets

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self._targets else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._targets[spec.name])
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the import system has replaced it by that of the alias


def alias_modules(targets: Mapping[str, str]) -> None:
    """Let ``import`` find modules under former names, from now on; nothing is imported yet."""
    sys.meta_path.append(_Alias(targets))
