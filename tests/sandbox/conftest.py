"""Fixtures of the tests of the sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sandboxes import needs

from envweave_gym.sandbox import Sandbox, Setup


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox at the level "landlock", which the tests of a module share."""
    needs("landlock")
    made = Sandbox(Setup())
    yield made
    made.close()
