"""The container engine of this machine, for the tests that need a real one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from absent import absent

from envweave_gym.containers.engine import engine
from envweave_gym.containers.ownership import OWNER, labels_of_owner
from envweave_gym.faults import NotAvailable

CORE = "envweave-core"


@pytest.fixture(scope="session")
def client() -> Any:
    """A client of the engine, which has our images; in CI they must be there."""
    try:
        found = engine()
        found.images.get(CORE)
    except Exception as error:  # noqa: BLE001 - whatever it is, there is no engine to test with
        absent(str(error) if isinstance(error, NotAvailable) else f"{CORE} is missing: make images")
    return found


def ours(client: Any) -> list[Any]:
    """The containers that this process has started."""
    label = f"{OWNER}={labels_of_owner()[OWNER]}"
    return client.containers.list(all=True, filters={"label": label}, ignore_removed=True)


def folders() -> set[Path]:
    """The folders with sockets of containers that have no network."""
    return set(Path(tempfile.gettempdir()).glob("envweave-socket-*"))
