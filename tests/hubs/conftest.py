"""Fixtures of the tests of hubs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prime_hub import PrimeHub, serving
from stub_program import library_wheels
from toy_wheels import only_wheels_in


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheels of the stub of verifiers."""
    folder = tmp_path_factory.mktemp("library") / "wheels"
    library_wheels(folder)
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path) -> Iterator[PrimeHub]:
    """A stand-in of the hub, in a home of its own, with the stub of the library as the only package of the index."""
    with serving(PrimeHub()) as running:
        for name in ("PRIME_API_KEY", "PRIME_BASE_URL", "ENVWEAVE_INSTALL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PRIME_API_BASE_URL", running.url)
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "ENVWEAVE_SUITES"):
            monkeypatch.setenv(name, str(tmp_path / name.lower()))
        for name in [name for name in os.environ if name.startswith("UV_")]:
            monkeypatch.delenv(name)
        for name, value in only_wheels_in(library).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        folder = tmp_path / "here"
        folder.mkdir()
        monkeypatch.chdir(folder)
        yield running
