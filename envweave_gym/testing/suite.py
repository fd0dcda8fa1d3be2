"""What pytest collects for ``--envweave-id``: one item for each check of each environment."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium.error
import pytest

from envweave_gym.core.faults import EnvironmentCrashed, EnvweaveError
from envweave_gym.registry.ids import make
from envweave_gym.testing.runs import Check, Failures, checks_of, name_of, sentence_of
from envweave_gym.testing.subject import RAISED, ConformanceError, NotApplicable, Subject, subject_of

SLOW_START_METHODS = ("fork", "spawn", "forkserver")
PLAYABLE = "can_be_played"
"""The only item of an environment whose constructor, reset or first step raises: every check would fail."""
NOT_MADE = (EnvweaveError, ConformanceError, gymnasium.error.Error)
"""What the name or its arguments are refused with; such a run is a wrong command, and ends at once."""
FRAMES = 6


class Suite(pytest.File):
    """The environments named by ``--envweave-id``."""

    def collect(self) -> Iterator[pytest.Collector]:
        """One collector for each."""
        names: list[str] = self.config.getoption("envweave_id") or []
        for env_id in dict.fromkeys(names):
            yield Checks.from_parent(self, name=env_id)


class Checks(pytest.Collector):
    """All checks of one environment."""

    def collect(self) -> Iterator[pytest.Item]:
        """One item for each; a name that cannot be made is an error in one sentence."""
        methods = SLOW_START_METHODS if self.config.getoption("envweave_slow") else None
        try:
            subject = subject_of(self.name, start_methods=methods, **_where(self.config))
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
    """The failure of an environment whose constructor raises."""
    text = f"{name} cannot be made: {type(error).__name__}: {error}; no check can go on before this works"
    failure = ConformanceError(text)
    failure.__cause__ = error
    return failure


def _raise(error: Exception) -> Check:
    """The check of an environment that cannot be played, which is its only one."""

    def check(_: Subject) -> None:
        raise error

    return check


def _where(config: pytest.Config) -> dict[str, Any]:
    backend = config.getoption("envweave_backend")
    return {"backend": backend} if backend else {}


class CheckItem(pytest.Item):
    """One check of one environment."""

    def __init__(self, *, check: Check, subject: Subject, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._check, self._subject = check, subject

    def runtest(self) -> None:
        """Run the check; one that fails for the cause of an earlier one is skipped, and says so."""
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
        """A sentence, and the last frames of what the environment raised; those of pytest say nothing."""
        error = excinfo.value
        if not isinstance(error, RAISED):
            return super().repr_failure(excinfo, style)
        cause = error.__cause__ if isinstance(error, ConformanceError) else error
        lines = [] if cause is None else traceback.format_exception(cause, limit=-FRAMES, chain=False)
        return f"{sentence_of(error)}\n\n{''.join(lines)}".rstrip()

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it is, for reports."""
        return self.path, None, f"{self._subject.name} {self.name}"
