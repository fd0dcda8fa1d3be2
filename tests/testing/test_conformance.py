"""Every ID of the table keeps every rule of the conformance kit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conforming import IN_PROCESSES, SHORT, every_check, kept_open, run

from envweave_gym.registry.catalog import cards
from envweave_gym.testing import (
    GAME_CHECKS,
    GYM_CHECKS,
    Subject,
    check_async_equals_single,
    subject_of,
)
from envweave_gym.testing.runs import Check, name_of

pytestmark = pytest.mark.slow
SUBJECTS = [subject_of(env_id) for env_id, card in cards().items() if card.is_self_contained]
OTHER_ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("envweave/LineWorld-v0", {"length": 2}),
    ("envweave/CodeFix-v0", {"observation": "text"}),
    ("envweave/CodeFix-v0", {"observation": "both"}),
    ("envweave/GSM8K-v0", {"observation": "chat", "hint_turns": 1}),
    ("envweave/GSM8KMCQ-v0", {"observation": "chat", "action": "text"}),
    ("envweave/CodeReview-v0", {"comments": "text"}),
    ("envweave/LineRace-v0", {"runners": 2}),
]
"""Arguments that give an ID other spaces, or another way to be stepped."""

CASES = [(subject.name, subject) for subject in SUBJECTS] + [
    (
        f"{env_id}-{'-'.join(f'{name}={value}' for name, value in kwargs.items())}",
        subject_of(env_id, **kwargs),
    )
    for env_id, kwargs in OTHER_ARGUMENTS
]


@pytest.fixture(scope="module", autouse=True)
def sandboxes() -> Iterator[None]:
    """What runs programs lasts for all checks."""
    with kept_open(CASES):
        yield


@every_check(CASES)
def test_registered_id_conforms(subject: Subject, check: Check) -> None:
    run(check, subject)


FRESH = [(subject.name, "spawn") for subject in SUBJECTS if not subject.is_game]


@pytest.mark.parametrize(("env_id", "method"), [*FRESH, *((env_id, "forkserver") for env_id in IN_PROCESSES)])
def test_async_vector_equals_single_in_a_fresh_process(env_id: str, method: str) -> None:
    run(check_async_equals_single, subject_of(env_id, start_methods=(method,)))


def test_the_table_is_not_empty() -> None:
    assert {subject.is_game for subject in SUBJECTS} == {False, True}


def test_the_checks_of_slow_backends_are_checks() -> None:
    assert {*SHORT} <= {name_of(check) for check in (*GYM_CHECKS, *GAME_CHECKS)}
