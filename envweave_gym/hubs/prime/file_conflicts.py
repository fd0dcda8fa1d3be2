"""Finds files of a hub wheel that would overwrite or hide files of the other packages in its virtual environment.

Called when the dependencies are installed and the wheel is not. Nothing of either is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

from envweave_gym.core.faults import NotAvailable, shown

_NOTES = re.compile(r"(pyproject\.toml|(readme|license|licence|changelog)(\..*)?)", re.IGNORECASE)
"""Files beside the modules that many wheels bring by mistake; nothing reads them."""
_MODULE = re.compile(r"(?P<name>[^.]+)(\.pyc?|(\.[\w-]+)*\.(so|pyd))")
"""Names of files that Python imports; those of compiled ones may have tags."""


def check_conflicts(site: Path, files: Iterable[str], scripts: Iterable[str], problem: str) -> None:
    """Raise ``NotAvailable`` if a file of a wheel stands in ``site`` already, or another form of the same module.

    ``site`` is the folder ``site-packages`` with all other packages, and ``scripts`` are the wheel's commands.
    ``problem`` names the wheel.
    """
    for name in files:
        if not name.endswith("/") and (found := _conflict(site, PurePosixPath(name))) is not None:
            of = _owner(site, found)
            raise NotAvailable(
                f"{problem} has {shown(name)}, which would hide or overwrite {shown(found)} of {of}; not installed"
            )
    commands = site.parents[2] / "bin"
    for script in scripts:
        if (commands / script).exists():
            raise NotAvailable(
                f"{problem} has the command {shown(script)}, which would overwrite that of another package in its "
                "environment; not installed"
            )


def _conflict(site: Path, path: PurePosixPath) -> str | None:
    """Return the path of what a file would overwrite or hide, relative to ``site``."""
    if len(path.parts) == 1 and _NOTES.fullmatch(path.name):
        return None
    if (site / path).exists():
        return str(path)
    module = _MODULE.fullmatch(path.name)
    if module is None:
        return None
    is_package = module["name"] == "__init__" and len(path.parts) > 1
    # A package takes precedence over a file of the same name, and a file over a folder without __init__.
    base = path.parent if is_package else path.with_name(module["name"])
    others = [] if is_package else [base]
    if (site / base.parent).is_dir():
        siblings = (one.name for one in (site / base.parent).iterdir())
        named = (
            name for name in siblings if (found := _MODULE.fullmatch(name)) and found["name"] == base.name
        )
        others += [base.with_name(name) for name in named]
    return next((str(other) for other in others if (site / other).exists()), None)


def _owner(site: Path, found: str) -> str:
    """Return the name of the package that has a file, or a file in a folder."""
    for one in distributions(path=[str(site)]):
        if any(str(file) == found or str(file).startswith(f"{found}/") for file in one.files or ()):
            return str(one.metadata["Name"])
    return "its virtual environment"
