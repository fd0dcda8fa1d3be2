"""The pytest plug-in: ``pytest --envweave-id my/Env-v0`` runs the conformance kit, in any directory.

A module of its own, because pytest loads its plug-ins at every start: nothing of the package is imported
unless the option is given.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parent / "envweave_gym" / "testing" / "pytest_collectors.py"
"""The file that pytest collects; :mod:`envweave_gym.testing.pytest_collectors` makes one test item of each check."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("envweave", "conformance of environments (envweave_gym.testing)")
    group.addoption(
        "--envweave-id",
        action="append",
        default=[],
        metavar="ID",
        help="check this environment: a Gymnasium or PettingZoo ID, or module:ID (repeatable); "
        "without paths nothing else is run",
    )
    group.addoption(
        "--envweave-backend",
        metavar="WHERE",
        help="where it runs: inproc (the default), subprocess, or the URL of a server",
    )
    group.addoption(
        "--envweave-slow",
        action="store_true",
        help="run AsyncVectorEnv under spawn and forkserver as well, which takes seconds each",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the suite to the paths to collect; without given paths it is the only one."""
    if not config.getoption("envweave_id"):
        return
    here = str(config.invocation_params.dir)
    if here not in sys.path:
        sys.path.append(here)  # module:ID may be a module beside the caller
    given = config.args if config.args_source is config.ArgsSource.ARGS else []
    config.args = list(dict.fromkeys([*given, str(SUITE)]))


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the checks of the suite instead of test functions."""
    if module_path != SUITE or not parent.config.getoption("envweave_id"):
        return None
    from envweave_gym.testing.pytest_collectors import Suite

    return Suite.from_parent(parent, path=module_path, nodeid="envweave")
