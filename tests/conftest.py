"""What several test modules share."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pettingzoo
import pytest
from absent import summary
from uncounted import starting_uncounted

from envweave_gym.registry import catalog, names

# a shell starts what runs in its background deaf to Ctrl-C, and what tests start would be so, too
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def registries() -> Iterator[None]:
    """Whatever the test registers, deletes or replaces is as before when it ends."""
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


@pytest.fixture
def hears_hanging_up() -> Iterator[None]:
    """What the test starts ends with its terminal, also where ``nohup`` has made the tests deaf to that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before or signal.SIG_DFL)


@pytest.fixture
def uncounted() -> Iterator[None]:
    """What the test starts counts no lines."""
    with starting_uncounted():
        yield


def pytest_collection_finish() -> None:
    """The thousands of tests stay to the end: whoever collects garbage need not go through them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The modules that take longest begin first, so that no process waits long for another at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one block: how many tests were skipped, why, and the command that enables them."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section(f"{len(skipped)} tests were skipped")
        for row in summary(report.longrepr[2] for report in skipped):
            terminalreporter.write_line(row)
