"""What pytest collects for ``--envweave-id``: one item for each check of each environment."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium.error
import pytest

from envweave_gym.faults import EnvweaveError
from envweave_gym.testing.runs import Check, checks_of, name_of
from envweave_gym.testing.subject import ConformanceError, NotApplicable, Subject, subject_of

SLOW_START_METHODS = ("fork", "spawn", "forkserver")


class Suite(pytest.File):
    """The environments asked for."""

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
        except (EnvweaveError, ConformanceError, gymnasium.error.Error) as error:
            raise self.CollectError(str(error)) from error
        for check in checks_of(subject):
            yield CheckItem.from_parent(self, name=name_of(check), check=check, subject=subject)


def _where(config: pytest.Config) -> dict[str, Any]:
    backend = config.getoption("envweave_backend")
    return {"backend": backend} if backend else {}


class CheckItem(pytest.Item):
    """One check of one environment."""

    def __init__(self, *, check: Check, subject: Subject, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._check, self._subject = check, subject

    def runtest(self) -> None:
        """Run the check."""
        try:
            self._check(self._subject)
        except NotApplicable as reason:
            pytest.skip(str(reason))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """A broken rule is its sentence, and what the environment raised; frames of the kit say nothing."""
        error = excinfo.value
        if not isinstance(error, ConformanceError):
            return super().repr_failure(excinfo, style)
        cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
        return f"{error}\n\n{cause}".rstrip()

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it is, for reports."""
        return self.path, None, f"{self._subject.name} {self.name}"
