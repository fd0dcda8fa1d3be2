"""A cache of virtual environments and an index of wheels for the tests of suites: no network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from toy_suite import TOY_SUITE
from toy_wheels import only_wheels_in, packages_of_this_python, toy_wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all wheels that there are; tests add theirs."""
    folder = tmp_path_factory.mktemp("wheels")
    packages_of_this_python(folder)
    return folder


@pytest.fixture
def offline(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let uv see the wheels alone, and suites an empty cache, which is returned."""
    for name in [*os.environ]:
        if name.startswith(("UV_", "PIP_", "ENVWEAVE_")):
            monkeypatch.delenv(name)
    for name, value in only_wheels_in(wheels).items():
        monkeypatch.setenv(name, value)
    cache = tmp_path / "cache"
    monkeypatch.setenv("ENVWEAVE_SUITES", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return cache


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in an empty folder below the temporary one."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture(scope="session")
def toy_suite(wheels: Path) -> str:
    """A requirement of a package with environments."""
    toy_wheel(wheels, "toy_suite", "1.0", TOY_SUITE, requires=["gymnasium", "pettingzoo", "numpy", "msgspec"])
    return "toy-suite==1.0"


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def toy(offline: Path, toy_suite: str, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of ``make`` for environments of the toy suite, which is installed once a module."""
    monkeypatch.setenv("ENVWEAVE_SUITES", str(shared_cache))
    return {"backend": "venv", "requirements": [toy_suite], "install": True}
