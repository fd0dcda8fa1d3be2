"""What a machine lacks: tests that need it are skipped with one line; in CI, which has it all, they fail.

Real data are what CI may lack too: they are not in the project.
"""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest


def absent(reason: str) -> NoReturn:
    """Leave the test that is running."""
    line = " ".join(reason.split())
    if os.environ.get("CI"):
        pytest.fail(f"{line}; with CI set nothing is skipped", pytrace=False)
    pytest.skip(line)


def needs_command(name: str) -> None:
    """Go on where there is such a command."""
    if shutil.which(name) is None:
        absent(f"there is no command {name}")


def needs_module(name: str, extra: str = "dev") -> ModuleType:
    """A module that an extra of the package brings."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        absent(f"{name} is not installed: pip install 'envweave-gym[{extra}]'")


def needs_data(name: str) -> Path:
    """A file of real data, in the folder that ENVWEAVE_DATA names."""
    path = Path(os.environ.get("ENVWEAVE_DATA", ""), name)
    if not os.environ.get("ENVWEAVE_DATA") or not path.is_file():
        pytest.skip(f"ENVWEAVE_DATA names no folder with {name}")
    return path
