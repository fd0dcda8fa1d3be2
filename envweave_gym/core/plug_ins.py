"""Lazily loaded tables of named objects: built-in ones, and those of installed packages (entry points)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from envweave_gym.core.faults import NotAvailable

_T = TypeVar("_T")


class PlugInTable(Generic[_T]):
    """A table of objects of one kind by name: the built-in ones, then those of an entry-point group.

    A built-in object is given as ``"module:attribute"``, and no plug-in replaces it. If the attribute is a class,
    the table calls it without arguments and holds the instance.
    """

    def __init__(self, group: str, own: Mapping[str, str], kind: type[_T]) -> None:
        self._group, self._own, self._kind = group, own, kind
        self._loaded: dict[str, _T] = {}

    def find(self, name: str) -> _T | None:
        """Load and return the object with this name, or return ``None`` if there is none.

        Raise ``NotAvailable`` if a plug-in cannot be loaded.
        """
        if name not in self._loaded:
            path = self._own.get(name) or self._installed().get(name)
            if path is None:
                return None
            self._loaded[name] = self._load(name, path)
        return self._loaded[name]

    def names(self) -> list[str]:
        """Return all names, the built-in ones first."""
        return list(dict.fromkeys([*self._own, *self._installed()]))

    def _installed(self) -> dict[str, str]:
        return {one.name: one.value for one in entry_points(group=self._group)}

    def _load(self, name: str, path: str) -> _T:
        module, _, attribute = path.partition(":")
        try:
            found: Any = getattr(importlib.import_module(module), attribute)
            made = found() if isinstance(found, type) else found
        except Exception as error:
            if name in self._own:  # a bug of ours keeps its traceback
                raise
            raise NotAvailable(
                f"the plug-in {path} of {self._group} for {name!r} cannot be loaded: {error}"
            ) from error
        if not isinstance(made, self._kind):
            kind = f"{self._kind.__module__}.{self._kind.__qualname__}"
            raise NotAvailable(f"the plug-in {path} of {self._group} for {name!r} is no {kind}")
        return made
