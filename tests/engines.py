"""The container engine of this machine, for the tests that need a real one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

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
    except Exception as error:
        if os.environ.get("CI"):
            raise
        reason = str(error) if isinstance(error, NotAvailable) else f"{CORE} is missing: make images"
        pytest.skip(" ".join(reason.split()))
    return found


def ours(client: Any) -> list[Any]:
    """The containers that this process has started."""
    label = f"{OWNER}={labels_of_owner()[OWNER]}"
    return client.containers.list(all=True, filters={"label": label}, ignore_removed=True)


def folders() -> set[Path]:
    """The folders with sockets of containers that have no network."""
    return set(Path(tempfile.gettempdir()).glob("envweave-socket-*"))
