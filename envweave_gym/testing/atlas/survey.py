"""Surveys suites: lists their IDs, probes each in parallel, and writes a line of JSON per ID; a killed run goes on.

The file is only appended to, under a lock. Its lines are records of suites and of IDs. An ID is not probed again
if a line of it with the same versions of Python and of the suite's packages has all rules; a half-written last line
is cut off.
"""

from __future__ import annotations

import fnmatch
import os
import queue
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.os_support.file_lock import file_lock
from envweave_gym.testing.atlas.id_probe import DEADLINE_S, IdProbe, IdRecord
from envweave_gym.testing.atlas.kit_probe import KIT, try_kit
from envweave_gym.testing.atlas.prober import Ended, Prober, json_printed
from envweave_gym.testing.atlas.script_composition import RULES, Api

_LIST_IDS = Path(__file__).parent / "inside" / "list_ids.py"
_LIST_TIMEOUT_S = 600.0
_PRELOADED = ("numpy.testing", "gymnasium.utils.env_checker", "pettingzoo.test")
"""Modules that scripts use, imported before they are forked where they exist."""


class Suite(msgspec.Struct, frozen=True):
    """A suite to survey: its name, the distributions that bring its IDs, and the interpreter that has them."""

    name: str
    distributions: tuple[str, ...]
    python: str
    modules: tuple[str, ...] = ()
    """Modules whose import registers IDs, beside the top-level modules of the distributions."""
    kit: Mapping[str, Any] | None = None
    """Arguments with which ``make`` gives the suite's environments to the conformance kit; ``None`` leaves it out."""


class SuiteRecord(msgspec.Struct, frozen=True):
    """The IDs of a suite and the versions of its packages, as a line of the atlas."""

    suite: str
    versions: dict[str, str]
    ids: int
    """Number of IDs that the suite has."""
    surveyed: int
    """Number of IDs that were chosen from them."""
    failed_imports: dict[str, str] = {}


_Id = tuple[Api, str, str]
"""API, ID, and the module of its entry point or an empty text."""


class _Listed(msgspec.Struct, frozen=True):
    ids: list[_Id]
    imports: list[str]
    failed_imports: dict[str, str]
    versions: dict[str, str]


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
            if known is not None and known.versions != line.suite.versions:
                self.ids = {key: one for key, one in self.ids.items() if one.suite != line.suite.suite}
            self.suites[line.suite.suite] = line.suite
        if line.id is not None:
            self.ids[line.id.suite, line.id.api, line.id.id] = line.id

    def add(self, record: SuiteRecord | IdRecord) -> None:
        """Append a record; it is on the disk when this returns."""
        line = _Line(suite=record) if isinstance(record, SuiteRecord) else _Line(id=record)
        text = msgspec.json.encode(line)
        with self._lock, self.path.open("ab") as file:
            self._take(text)
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def opened(path: Path) -> Generator[Atlas]:
    """Open the file of an atlas for one run; raise ``NotAvailable`` if another run writes to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_name(f".{path.name}.lock"), timeout_s=1.0):
        yield Atlas(path)


def survey(
    atlas: Atlas,
    suites: Sequence[Suite],
    *,
    patterns: Sequence[str] = (),
    limit: int | None = None,
    jobs: int = 1,
    deadline_s: float = DEADLINE_S,
    rules: Sequence[str] = RULES,
    report: Callable[[str], None] = print,
) -> None:
    """Probe the IDs of the suites of which the atlas lacks a rule.

    ``patterns`` and ``limit`` choose some of each suite; ``report`` gets a line for each suite and each ID.
    """
    for suite in suites:
        listed = _list_ids(suite)
        chosen = _chosen(listed.ids, patterns, limit)
        atlas.add(
            SuiteRecord(suite.name, listed.versions, len(listed.ids), len(chosen), listed.failed_imports)
        )
        left = [one for one in chosen if not _is_done(atlas, suite, one, rules)]
        report(f"{suite.name}: {len(listed.ids)} IDs, {len(chosen)} chosen, {len(left)} to be tried")
        _probe_all(atlas, _Plan(suite, listed.imports, deadline_s, rules), left, jobs, report)


def _is_done(atlas: Atlas, suite: Suite, which: _Id, rules: Sequence[str]) -> bool:
    """Return whether the atlas has the outcomes of these rules, and of the kit if it is run, or why it cannot."""
    record = atlas.ids.get((suite.name, *which[:2]))
    if record is None or record.unavailable:
        return record is not None
    has_kit = suite.kit is None or KIT in record.outcomes
    return has_kit and (bool(record.stopped) or record.outcomes.keys() >= set(rules))


def _list_ids(suite: Suite) -> _Listed:
    text = _LIST_IDS.read_text(encoding="utf-8")
    text = text.replace(
        "DISTRIBUTIONS: list[str] = []", f"DISTRIBUTIONS: list[str] = {list(suite.distributions)!r}"
    )
    text = text.replace("MODULES: list[str] = []", f"MODULES: list[str] = {list(suite.modules)!r}")
    prober = Prober(suite.python)
    try:
        found = json_printed(prober.run(text, _LIST_TIMEOUT_S, fresh=True))
    finally:
        prober.close()
    listed = msgspec.convert(found, _Listed)
    if not listed.ids:
        reasons = "; ".join(f"import {name} fails: {error}" for name, error in listed.failed_imports.items())
        raise NotAvailable(
            f"{suite.name} registers no ID in Gymnasium or PettingZoo ({reasons or 'nothing fails'})"
        )
    return listed


def _chosen(ids: Sequence[_Id], patterns: Sequence[str], limit: int | None) -> list[_Id]:
    """Return the IDs that match a pattern; with a limit, that number of them at equal distances."""
    matching = [one for one in ids if not patterns or any(fnmatch.fnmatchcase(one[1], p) for p in patterns)]
    if limit is None or len(matching) <= limit:
        return matching
    return [matching[number * len(matching) // limit] for number in range(limit)]


def _probe_all(
    atlas: Atlas, plan: _Plan, ids: Sequence[_Id], jobs: int, report: Callable[[str], None]
) -> None:
    """Probe the IDs in threads, each with processes of its own; raise the first failure."""
    waiting: queue.SimpleQueue[_Id] = queue.SimpleQueue()
    for one in ids:
        waiting.put(one)
    failures: list[BaseException] = []
    stopped = threading.Event()

    def work() -> None:
        worker = _Worker(plan)
        try:
            while not stopped.is_set():
                record = worker.record(*waiting.get_nowait())
                atlas.add(record)
                report(_line_of(record))
        except queue.Empty:
            return
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            failures.append(error)
            stopped.set()
        finally:
            worker.close()

    threads = [threading.Thread(target=work, name=f"atlas-{n}") for n in range(min(jobs, len(ids)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # after Ctrl-C each thread ends with its ID
        stopped.set()
    if failures:
        raise failures[0]


class _Plan(msgspec.Struct, frozen=True):
    suite: Suite
    imports: Sequence[str]
    deadline_s: float
    rules: Sequence[str]


class _Worker:
    """A process in the suite's Python, and one in this Python for the kit; one thread uses it."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._prober = Prober(plan.suite.python, [*_PRELOADED, *plan.imports])
        ours = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        self._kit = Prober(sys.executable, ["envweave_gym.testing"], ours)

    def close(self) -> None:
        """End the processes."""
        self._prober.close()
        self._kit.close()

    def record(self, api: Api, env_id: str, module: str) -> IdRecord:
        """Try the rules on an ID, and then the kit unless it is left out."""

        def run(script: str, deadline_s: float, *, fresh: bool) -> Ended:
            try:
                return self._prober.run(script, deadline_s, fresh=fresh, module=module)
            except NotAvailable:  # it died, perhaps of the module
                return self._prober.run(script, deadline_s, fresh=True)

        plan = self._plan
        probe = IdProbe(
            *(plan.suite.name, api, env_id),
            imports=plan.imports,
            run=run,
            deadline_s=plan.deadline_s,
            rules=plan.rules,
        )
        record = probe.record()
        return (
            record if plan.suite.kit is None or record.unavailable else self._with_kit(record, plan.suite.kit)
        )

    def _with_kit(self, record: IdRecord, kwargs: Mapping[str, Any]) -> IdRecord:
        name = ":".join([*self._plan.imports[:1], record.id]) if record.api == "gym" else record.id
        given = kwargs if record.api == "gym" else {**kwargs, "api": record.api}
        outcome, findings = try_kit(name, given, self._kit.run, self._plan.deadline_s)
        return msgspec.structs.replace(
            record, outcomes={**record.outcomes, KIT: outcome}, findings=record.findings + findings
        )


def _line_of(record: IdRecord) -> str:
    what = "cannot be made here" if record.unavailable else f"{len(record.findings)} findings"
    rules = " ".join(f"{one.rule}:{one.kind}{'' if one.reproduced else '?'}" for one in record.findings)
    return f"{record.suite} {record.id} ({record.api}): {what} in {record.seconds:g} s {rules}".rstrip()
