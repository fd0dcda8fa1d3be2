"""Processes that count no lines, as others count them: what takes long, or is killed before it tells them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def starting_uncounted() -> Iterator[None]:
    """What is started inside does not start coverage."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("COV")]:
            patch.delenv(name)
        yield
