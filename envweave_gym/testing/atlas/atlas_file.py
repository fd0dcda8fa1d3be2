"""The file of an atlas: one line of JSON for each suite and each ID, appended to as they become known.

A half-written last line is cut off. The last line of a suite or an ID counts; when the versions of a suite's packages
change, what earlier lines say of its IDs is dropped.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.os_support.file_lock import file_lock
from envweave_gym.testing.atlas.id_probe import IdRecord
from envweave_gym.testing.atlas.kit_probe import KIT


class SuiteRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The IDs of a suite and the versions of its packages, as a line of the atlas."""

    suite: str
    versions: dict[str, str] = {}
    ids: int = 0
    """Number of IDs that the suite has, of those that the patterns match."""
    surveyed: int = 0
    """Number of IDs that were chosen from them."""
    failed_imports: dict[str, str] = {}
    note: str = ""
    """A sentence about the suite for readers of the page."""
    unavailable: str = ""
    """Why the suite could not be installed or its IDs not listed."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the file: a suite or an ID."""

    suite: SuiteRecord | None = None
    id: IdRecord | None = None


class Atlas:
    """The file of an atlas: the last record of each suite and of each ID."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.suites: dict[str, SuiteRecord] = {}
        self.ids: dict[tuple[str, str, str], IdRecord] = {}
        self._lock = threading.Lock()
        for line in self._whole_lines():
            self._take(line)

    def _whole_lines(self) -> list[bytes]:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return []
        whole, newline, rest = text.rpartition(b"\n")
        if rest:
            os.truncate(self.path, len(whole) + len(newline))
        return whole.splitlines()

    def _take(self, text: bytes) -> None:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError as error:
            raise InvalidArgument(
                f"{self.path} has a line that is not of an atlas: {error}; name another file"
            ) from None
        if line.suite is not None:
            known = self.suites.get(line.suite.suite)
            if known is not None and line.suite.versions and known.versions != line.suite.versions:
                self.ids = {key: one for key, one in self.ids.items() if one.suite != line.suite.suite}
            self.suites[line.suite.suite] = line.suite
        if line.id is not None:
            self.ids[line.id.suite, line.id.api, line.id.id] = line.id

    def add(self, record: SuiteRecord | IdRecord) -> None:
        """Append a record; it is on the disk when this returns."""
        text = _encoded(record)
        with self._lock, self.path.open("ab") as file:
            self._take(text)
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def brief(self) -> bytes:
        """Return the lines from which the page can be made: without scripts, and without rules that passed."""
        records: list[SuiteRecord | IdRecord] = [_brief_suite(one) for one in self.suites.values()]
        records += [_brief(one) for _, one in sorted(self.ids.items())]
        return b"".join(_encoded(one) + b"\n" for one in records)


def _encoded(record: SuiteRecord | IdRecord) -> bytes:
    line = _Line(suite=record) if isinstance(record, SuiteRecord) else _Line(id=record)
    return msgspec.json.encode(line)


def _brief_suite(record: SuiteRecord) -> SuiteRecord:
    failed = {name: without_folders(error) for name, error in record.failed_imports.items()}
    unavailable = without_folders(record.unavailable)
    return msgspec.structs.replace(record, failed_imports=failed, unavailable=unavailable)


def _brief(record: IdRecord) -> IdRecord:
    outcomes = {rule: one for rule, one in record.outcomes.items() if one != "passed" or rule == KIT}
    findings = tuple(
        msgspec.structs.replace(one, script="", text=without_folders(one.text)) for one in record.findings
    )
    unavailable = without_folders(record.unavailable)
    return msgspec.structs.replace(
        record, outcomes=outcomes, findings=findings, unavailable=unavailable, seconds=0.0
    )


def without_folders(text: str) -> str:
    """Return a text without the folders of this machine that are in it."""
    return re.sub(r"(/[\w.-]+)+/(site-packages/|(?=python\b)|envweave-atlas-\w+/)", ".../", text)


@contextmanager
def opened(path: Path) -> Generator[Atlas]:
    """Open the file of an atlas for one run; raise ``NotAvailable`` if another run writes to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_name(f".{path.name}.lock"), timeout_s=1.0):
        yield Atlas(path)
