"""Every ID of the table keeps every rule of the conformance kit on a server, too."""

from __future__ import annotations

import pytest
from test_conformance import run

from envweave_gym.catalog import cards
from envweave_gym.testing import Subject, checks_of, subject_of
from envweave_gym.testing.runs import Check, name_of

SUBJECTS = [subject_of(env_id, backend="subprocess") for env_id, card in cards().items() if not card.proxy]


@pytest.mark.parametrize(
    ("subject", "check"),
    [
        pytest.param(subject, check, id=f"{subject.name}-{name_of(check)}")
        for subject in SUBJECTS
        for check in checks_of(subject)
    ],
)
def test_registered_id_conforms_on_a_server(subject: Subject, check: Check) -> None:
    run(check, subject)
