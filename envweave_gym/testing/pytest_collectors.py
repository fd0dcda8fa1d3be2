"""The pytest collectors and items of ``--envweave-id``: one item for each check of each environment."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium.error
import pytest

from envweave_gym.core.faults import EnvironmentCrashed, EnvweaveError
from envweave_gym.registry.make import make
from envweave_gym.testing.runs import Check, Failures, checks_of, name_of, sentence_of
from envweave_gym.testing.subject import RAISED, ConformanceError, NotApplicable, Subject, subject_of

SLOW_START_METHODS = ("fork", "spawn", "forkserver")
PLAYABLE = "can_be_played"
"""Name of the pytest item that replaces all checks of an environment whose constructor, reset or first step raises."""
NOT_MADE = (EnvweaveError, ConformanceError, gymnasium.error.Error)
"""Exceptions that mean that the name or its arguments are wrong, so that the pytest run ends at once."""
SHOWN_FRAMES = 6
"""Limit of stack frames that the report of a failed check shows."""


class Suite(pytest.File):
    """The collector of all environments that ``--envweave-id`` names."""

    def collect(self) -> Iterator[pytest.Collector]:
        """Yield one collector for each environment; an ID that is given twice counts once."""
        names: list[str] = self.config.getoption("envweave_id") or []
        for env_id in dict.fromkeys(names):
            yield Checks.from_parent(self, name=env_id)


class Checks(pytest.Collector):
    """The collector of all checks of one environment."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield an item for each check, or a single failing item if the environment cannot play one step.

        Raise ``CollectError`` if the name or its arguments are wrong.
        """
        methods = SLOW_START_METHODS if self.config.getoption("envweave_slow") else None
        try:
            subject = subject_of(self.name, start_methods=methods, **_backend_option(self.config))
            subject.probe()
        except RAISED as error:
            if isinstance(error, NOT_MADE) and not isinstance(error, EnvironmentCrashed):
                raise self.CollectError(str(error)) from error
            yield self._not_playable(_not_made(self.name, error), Subject(self.name, make))
            return
        try:
            subject.probe_episode()
        except (ConformanceError, EnvweaveError) as error:
            yield self._not_playable(error, subject)
            return
        self.failures = Failures()
        for check in checks_of(subject):
            yield CheckItem.from_parent(self, name=name_of(check), check=check, subject=subject)

    def _not_playable(self, error: Exception, subject: Subject) -> pytest.Item:
        return CheckItem.from_parent(self, name=PLAYABLE, check=_raise(error), subject=subject)


def _not_made(name: str, error: BaseException) -> ConformanceError:
    """Return the failure that reports the exception of an environment's constructor."""
    text = f"{name} cannot be made: {type(error).__name__}: {error}; no check can go on before this works"
    failure = ConformanceError(text)
    failure.__cause__ = error
    return failure


def _raise(error: Exception) -> Check:
    """Return a check that raises ``error``: the only one of an environment that cannot be played."""

    def check(_: Subject) -> None:
        raise error

    return check


def _backend_option(config: pytest.Config) -> dict[str, Any]:
    backend = config.getoption("envweave_backend")
    return {"backend": backend} if backend else {}


class CheckItem(pytest.Item):
    """The pytest item of one check of one environment."""

    def __init__(self, *, check: Check, subject: Subject, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._check, self._subject = check, subject

    def runtest(self) -> None:
        """Run the check. If an earlier check failed for the same cause, report this one as skipped."""
        try:
            self._check(self._subject)
        except NotApplicable as reason:
            pytest.skip(str(reason))
        except RAISED as error:
            failures = getattr(self.parent, "failures", None)
            earlier = failures.add(self.name, error) if isinstance(failures, Failures) else None
            if earlier is not None:
                pytest.skip(f"fails for the same cause as {earlier}: {sentence_of(error)}")
            raise

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the failure's sentence and the last stack frames of the environment's own exception."""
        error = excinfo.value
        if not isinstance(error, RAISED):
            return super().repr_failure(excinfo, style)
        cause = error.__cause__ if isinstance(error, ConformanceError) else error
        lines = [] if cause is None else traceback.format_exception(cause, limit=-SHOWN_FRAMES, chain=False)
        return f"{sentence_of(error)}\n\n{''.join(lines)}".rstrip()

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the file and the title that pytest's reports show for this check."""
        return self.path, None, f"{self._subject.name} {self.name}"
