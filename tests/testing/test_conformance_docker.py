"""Every ID of the table keeps the rules of the conformance kit in a container, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conforming import WHOLE, elsewhere, every_check, kept_open, run
from engines import client, ours

from envweave_gym.registry.catalog import cards
from envweave_gym.testing import Subject
from envweave_gym.testing.runs import Check

__all__ = ["client"]
pytestmark = pytest.mark.slow
CORE = {env_id: card for env_id, card in cards().items() if card.is_self_contained and card.image}
SUBJECTS = elsewhere(CORE, "fork", backend="docker")


@pytest.fixture(scope="module", autouse=True)
def containers(client: Any) -> Iterator[None]:
    """One container of each image serves all checks."""
    with kept_open(SUBJECTS):
        yield
    assert ours(client) == []


@every_check(SUBJECTS, WHOLE)
def test_registered_id_conforms_in_a_container(subject: Subject, check: Check) -> None:
    run(check, subject)


def test_every_id_of_the_table_has_an_image() -> None:
    assert {env_id for env_id, card in cards().items() if card.is_self_contained} == set(CORE)
