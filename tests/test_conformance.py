"""Every ID of the table keeps every rule of the conformance kit."""

from __future__ import annotations

import os

import pytest

from envweave_gym.catalog import cards
from envweave_gym.faults import MissingExtra
from envweave_gym.testing import NotApplicable, Subject, check_async_equals_single, checks_of, subject_of
from envweave_gym.testing.runs import Check, name_of

SUBJECTS = [subject_of(env_id) for env_id in cards()]


def run(check: Check, subject: Subject) -> None:
    try:
        check(subject)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    except MissingExtra as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    ("subject", "check"),
    [
        pytest.param(subject, check, id=f"{subject.name}-{name_of(check)}")
        for subject in SUBJECTS
        for check in checks_of(subject)
    ],
)
def test_registered_id_conforms(subject: Subject, check: Check) -> None:
    run(check, subject)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("env_id", [subject.name for subject in SUBJECTS if not subject.is_game])
def test_async_vector_equals_single_in_a_fresh_process(env_id: str, method: str) -> None:
    run(check_async_equals_single, subject_of(env_id, start_methods=(method,)))


def test_the_table_is_not_empty() -> None:
    assert {subject.is_game for subject in SUBJECTS} == {False, True}
