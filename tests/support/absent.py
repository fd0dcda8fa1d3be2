"""Skips of tests whose machine lacks something, each with the command that enables it; failures with CI set.

Real data are what CI may lack too: they are not in the project.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

ENGINE_COMMAND = "start a container engine (on Debian: .ci/engine), then: make images"
IMAGES_COMMAND = "make images"
CLUSTER_COMMAND = "make cluster-test"
DATA_COMMAND = "export ENVWEAVE_DATA=FOLDER"
NO_COMMAND = "do not apply to what they were to try, or nothing enables them"

_ENABLE = "; to run it: "
_PACKAGES = {"bwrap": "bubblewrap"}


def absent(reason: str, command: str = "") -> NoReturn:
    """Skip the running test, or fail it with CI set; ``command`` enables it."""
    line = _line(reason, command)
    if os.environ.get("CI"):
        pytest.fail(f"{line}; with CI set nothing is skipped", pytrace=False)
    pytest.skip(line)


def needs_command(name: str) -> None:
    """Skip the running test unless a program of this name is on the PATH."""
    if shutil.which(name) is None:
        absent(f"there is no command {name}", f"apt-get install {_PACKAGES.get(name, name)}")


def needs_module(name: str, extra: str = "dev") -> ModuleType:
    """Import a module that an extra of the package installs, or skip the running test."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        absent(f"{name} is not installed", f"pip install -c constraints.txt -e '.[{extra}]'")


def needs_data(name: str) -> Path:
    """Find a file of real data in the folder that ENVWEAVE_DATA names, or skip the running test."""
    path = Path(os.environ.get("ENVWEAVE_DATA", ""), name)
    if not os.environ.get("ENVWEAVE_DATA") or not path.is_file():
        pytest.skip(_line(f"ENVWEAVE_DATA names no folder with {name}", DATA_COMMAND))
    return path


def no_cluster() -> NoReturn:
    """Skip the running test, with CI set too: a real cluster is started on demand only."""
    pytest.skip(_line("ENVWEAVE_CLUSTER names no real cluster", CLUSTER_COMMAND))


def summary(messages: Iterable[str]) -> list[str]:
    """Group the messages of skipped tests by the command that enables them, most tests first."""
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for message in messages:
        reason, _, command = message.removeprefix("Skipped: ").partition(_ENABLE)
        groups[command or NO_COMMAND][reason] += 1
    rows: list[str] = []
    for command, reasons in sorted(groups.items(), key=lambda item: -item[1].total()):
        reason, others = reasons.most_common(1)[0][0], len(reasons) - 1
        more = f" (and {others} other reasons)" if others else ""
        rows.append(f"{reasons.total():5}  {command}  <-  {reason}{more}")
    return rows


def _line(reason: str, command: str) -> str:
    return " ".join(reason.split()) + (_ENABLE + command if command else "")
