"""The images of the toy repository, for tests that try patches in containers."""

from __future__ import annotations

from typing import Any

import pytest
from absent import ENGINE_COMMAND, absent, needs_module

from envweave_gym.core.faults import NotAvailable
from envweave_gym.swebench.toy_image import build_toy_images


@pytest.fixture(scope="session")
def images(client: Any) -> None:
    """Build the images; skip the test without an engine, but fail in CI."""
    needs_module("swebench", "swebench")
    try:
        build_toy_images(client)
    except NotAvailable as error:
        absent(str(error), ENGINE_COMMAND)
