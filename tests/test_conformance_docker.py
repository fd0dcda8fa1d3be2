"""Every ID of the table keeps every rule of the conformance kit in a container, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conforming import every_check, run
from engines import client, ours

import envweave_gym as ew
from envweave_gym.catalog import cards
from envweave_gym.testing import Subject, subject_of
from envweave_gym.testing.runs import Check

__all__ = ["client"]
CORE = {env_id: card for env_id, card in cards().items() if not card.proxy and card.image}
SUBJECTS = [(env_id, subject_of(env_id, backend="docker")) for env_id in CORE]


@pytest.fixture(scope="module", autouse=True)
def containers(client: Any) -> Iterator[None]:
    """One environment of each image stays open, so that its container serves all checks."""
    ids = {card.image: env_id for env_id, card in CORE.items()}
    open_envs = [ew.make(env_id, backend="docker") for env_id in ids.values()]
    yield
    for env in open_envs:
        env.close()
    assert ours(client) == []


@every_check(SUBJECTS)
def test_registered_id_conforms_in_a_container(subject: Subject, check: Check) -> None:
    run(check, subject)


def test_every_id_of_the_table_has_an_image() -> None:
    assert {env_id for env_id, card in cards().items() if not card.proxy} == set(CORE)
