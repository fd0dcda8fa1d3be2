"""What several test modules share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pettingzoo
import pytest

from envweave_gym import catalog, ids


@pytest.fixture
def registries() -> Iterator[None]:
    """Whatever the test registers, deletes or replaces is as before when it ends."""
    stores: list[dict[str, Any]] = [
        gym.registry,
        pettingzoo.aec_registry,
        pettingzoo.parallel_registry,
        catalog._cards,
        catalog._packages,
        ids._factories,
    ]
    before = [dict(store) for store in stores]
    yield
    for store, content in zip(stores, before, strict=True):
        store.clear()
        store.update(content)
