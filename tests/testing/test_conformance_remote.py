"""Every ID of the table keeps every rule of the conformance kit on a server, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conforming import every_check, kept_open, run

from envweave_gym.registry.catalog import cards
from envweave_gym.testing import Subject, subject_of
from envweave_gym.testing.runs import Check

pytestmark = pytest.mark.slow
IDS = [env_id for env_id, card in cards().items() if card.is_self_contained]
SUBJECTS = [(env_id, subject_of(env_id, backend="subprocess")) for env_id in IDS]


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """What serves programs there lasts for all checks."""
    with kept_open(SUBJECTS):
        yield


@every_check(SUBJECTS)
def test_registered_id_conforms_on_a_server(subject: Subject, check: Check) -> None:
    run(check, subject)
