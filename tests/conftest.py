"""Fixtures and hooks of all tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pettingzoo
import pytest
from absent import summary
from uncounted import starting_uncounted

from envweave_gym.registry import catalog, names

# A shell starts background jobs with SIGINT ignored, which processes that tests start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def registries() -> Iterator[None]:
    """Restore the registries of environments after the test."""
    stores: list[dict[str, Any]] = [
        gym.registry,
        pettingzoo.aec_registry,
        pettingzoo.parallel_registry,
        catalog._cards,
        catalog._packages,
        names.factories,
    ]
    before = [dict(store) for store in stores]
    yield
    for store, content in zip(stores, before, strict=True):
        store.clear()
        store.update(content)


InstallPlugIn = Callable[[str, str, str, dict[str, str]], None]


@pytest.fixture
def install_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugIn:
    """Install a package of one module during the test: its entry-point group, name, text and entry points.

    The module stays imported, as the tables of plug-ins keep what they have loaded; so its name and those of its
    entry points are its own.
    """

    def install(group: str, module: str, text: str, attributes: dict[str, str]) -> None:
        package = tmp_path / f"{module}-1.dist-info"
        package.mkdir()
        (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
        lines = [f"{name} = {module}:{attribute}" for name, attribute in attributes.items()]
        (package / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]))
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.fixture
def hears_hanging_up() -> Iterator[None]:
    """Restore SIGHUP, which ``nohup`` ignores, so that processes of the test end with their terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before or signal.SIG_DFL)


@pytest.fixture
def uncounted() -> Iterator[None]:
    """Start processes of the test without coverage."""
    with starting_uncounted():
        yield


def pytest_collection_finish() -> None:
    """Freeze the collected tests: they stay to the end, and garbage collection need not visit them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest modules, so that no worker waits long for another at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one block: how many tests were skipped, why, and the command that enables them."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section(f"{len(skipped)} tests were skipped")
        for row in summary(report.longrepr[2] for report in skipped):
            terminalreporter.write_line(row)
