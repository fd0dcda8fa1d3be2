"""The conformance kit as parametrized tests: a case for every check of every subject."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest
from absent import absent

from envweave_gym.faults import MissingExtra
from envweave_gym.testing import NotApplicable, Subject, checks_of, subject_of
from envweave_gym.testing.runs import Check, name_of

IN_PROCESSES = ("Counter", "REPL")
ELSEWHERE = (*IN_PROCESSES, "KuhnPoker", "CodeAct", "Coding", "REPLTeam")
"""Those that are tried where each takes long: a plain one, a game, and all whose actions are programs."""


def elsewhere(method: str, **where: Any) -> list[tuple[str, Subject]]:
    """Those on a backend where every process of a vector starts a server of its own, so two try that."""
    methods = {name: (method,) if name in IN_PROCESSES else () for name in ELSEWHERE}
    ids = {name: f"envweave/{name}-v0" for name in ELSEWHERE}
    return [(ids[name], subject_of(ids[name], start_methods=methods[name], **where)) for name in ELSEWHERE]


def every_check(subjects: Sequence[tuple[str, Subject]]) -> pytest.MarkDecorator:
    """Give a test ``subject`` and ``check`` for all of these, by what they are called."""
    return pytest.mark.parametrize(
        ("subject", "check"),
        [
            pytest.param(subject, check, id=f"{label}-{name_of(check)}")
            for label, subject in subjects
            for check in checks_of(subject)
        ],
    )


@contextmanager
def kept_open(subjects: Sequence[tuple[str, Subject]]) -> Generator[None]:
    """An episode of each goes on meanwhile, so that what serves them is not started for every check."""
    with ExitStack() as opened:
        for _, subject in subjects:
            with suppress(MissingExtra):
                opened.enter_context(closing(subject.make(api=subject.apis[0]))).reset(seed=0)
        yield


def run(check: Check, subject: Subject) -> None:
    """Make the check, which may not apply, or need what is not installed."""
    try:
        check(subject)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    except MissingExtra as reason:
        absent(str(reason))
