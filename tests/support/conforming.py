"""The conformance kit as parametrized tests: a case for every check of every subject."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest
from absent import absent

from envweave_gym.core.faults import MissingExtra
from envweave_gym.testing import NotApplicable, Subject, checks_of, subject_of
from envweave_gym.testing.runs import Check, name_of

IN_PROCESSES = ("envweave/Counter-v0", "envweave/REPL-v0")
_PROGRAMS = ("CodeAct", "Coding", "REPLTeam")
_DATA = ("GSM8K", "GSM8KMCQ", "SWEBenchLiteLocMCQ", "SWEBenchLitePatch")
FEW = (*IN_PROCESSES, *(f"envweave/{name}-v0" for name in ("KuhnPoker", *_PROGRAMS, *_DATA)))
"""Those that are tried where each takes long: a plain one, a game, and all over programs or data sets."""
WHOLE = (*IN_PROCESSES, "envweave/KuhnPoker-v0", "envweave/CodeAct-v0")
"""Those that all checks try on such a backend: one of each kind. On ``backend="subprocess"``, whose messages and
sessions are the same, all checks try every ID; so few checks show that the others are played there, too."""
SHORT = (
    *("gymnasium_api", "aec_api", "parallel_api", "same_seed_same_trace", "invalid_actions_change_nothing"),
    *("stream_is_well_formed", "game_stream_is_well_formed", "vector_equals_single"),
)
"""The checks of the others."""


def elsewhere(
    env_ids: Iterable[str], method: str, in_processes: Sequence[str] = IN_PROCESSES, **where: Any
) -> list[tuple[str, Subject]]:
    """Subjects on a backend where every process of a vector starts a server of its own, so few try that."""
    methods = {env_id: (method,) if env_id in in_processes else () for env_id in env_ids}
    return [(one, subject_of(one, start_methods=methods[one], **where)) for one in methods]


def every_check(
    subjects: Sequence[tuple[str, Subject]], whole: Sequence[str] | None = None
) -> pytest.MarkDecorator:
    """Give a test ``subject`` and ``check`` for all of these, by what they are called.

    Subjects that are not in ``whole``, if it is given, are tried by the checks in :data:`SHORT` alone.
    """
    return pytest.mark.parametrize(
        ("subject", "check"),
        [
            pytest.param(subject, check, id=f"{label}-{name_of(check)}")
            for label, subject in subjects
            for check in checks_of(subject)
            if whole is None or label in whole or name_of(check) in SHORT
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
    """Make the check, which may not apply, or need a package that is not installed."""
    try:
        check(subject)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    except MissingExtra as reason:
        absent(str(reason))
