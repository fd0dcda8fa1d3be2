"""Surveys suites: lists their IDs, tries each in parallel, and adds a record for each to the atlas.

A killed run goes on where it was: an ID is not tried again if its record, with the same versions of Python and of the
suite's packages, has the outcomes of all rules. One that lacks the outcome of the kit alone gets that. One that needed
more memory than it might have is tried again with more.
"""

from __future__ import annotations

import fnmatch
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from envweave_gym.core.faults import NotAvailable
from envweave_gym.testing.atlas.atlas_file import Atlas, SuiteRecord
from envweave_gym.testing.atlas.id_probe import DEADLINE_S, VECTOR_REWARDS, IdProbe, IdRecord
from envweave_gym.testing.atlas.kit_probe import KIT, try_kit
from envweave_gym.testing.atlas.prober import KILLED, MEMORY_MB, Ended, Prober, ProberLost, json_printed
from envweave_gym.testing.atlas.script_composition import RULES, Api
from envweave_gym.testing.atlas.verdicts import TOO_LARGE

_LIST_IDS = Path(__file__).parent / "inside" / "list_ids.py"
_LIST_TIMEOUT_S = 600.0
_PRELOADED = ("numpy.testing", "gymnasium.utils.env_checker", "pettingzoo.test")
"""Modules that scripts use, imported before they are forked where they exist."""
ALL_RULES = (*RULES, KIT)
"""The rules of the atlas, and the conformance kit."""


class InstalledSuite(msgspec.Struct, frozen=True, kw_only=True):
    """A suite to survey: the distributions that bring its IDs, the interpreter that has them, and which IDs to try."""

    name: str
    distributions: tuple[str, ...]
    python: str
    modules: tuple[str, ...] = ()
    """Modules whose import registers IDs, beside the top-level modules of the distributions."""
    ids: tuple[str, ...] = ()
    """Patterns of IDs; without one all of them."""
    limit: int | None = None
    """Number of IDs to try, at equal distances in the list of all; ``None`` for all."""
    make: Mapping[str, Any] = {}
    """Arguments with which ``make`` gives the suite's environments to the conformance kit."""
    note: str = ""
    """A sentence about the suite for readers of the page."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """Which rules are tried on each ID, with which limits, and on how many IDs at once."""

    rules: Sequence[str] = ALL_RULES
    jobs: int = 1
    deadline_s: float = DEADLINE_S
    memory_mb: float = MEMORY_MB


_Id = tuple[Api, str, str]
"""API, ID, and the module of its entry point or an empty text."""


class _Listed(msgspec.Struct, frozen=True):
    ids: list[_Id]
    imports: list[str]
    failed_imports: dict[str, str]
    versions: dict[str, str]


def survey(
    atlas: Atlas, suite: InstalledSuite, effort: Effort | None = None, report: Callable[[str], None] = print
) -> None:
    """Try the chosen IDs of a suite of which the atlas lacks a rule; ``report`` gets a line for each ID.

    Raise ``NotAvailable`` if the suite has no IDs.
    """
    effort = effort or Effort()
    listed = _list_ids(suite)
    matching = [one for one in listed.ids if _matches(one[1], suite.ids)]
    chosen = _spread(matching, suite.limit)
    numbers = len(matching), len(chosen)
    atlas.add(SuiteRecord(suite.name, listed.versions, *numbers, listed.failed_imports, suite.note))
    left = [one for one in chosen if not _is_done(_known(atlas, suite, one), effort.rules, effort.memory_mb)]
    report(f"{suite.name}: {numbers[0]} IDs, {numbers[1]} chosen, {len(left)} to be tried")
    _try_all(atlas, _Plan(suite, listed.imports, effort), left, report)


def without_ids(atlas: Atlas, name: str, reason: str) -> SuiteRecord:
    """Return the record of a suite that cannot be surveyed here; what is known of its IDs stays."""
    return msgspec.structs.replace(atlas.suites.get(name) or SuiteRecord(name), unavailable=reason)


def _known(atlas: Atlas, suite: InstalledSuite, which: _Id) -> IdRecord | None:
    return atlas.ids.get((suite.name, *which[:2]))


def _is_done(record: IdRecord | None, rules: Sequence[str], memory_mb: float) -> bool:
    """Return whether the record has the outcomes of these rules, or why they cannot be tried.

    What needed too much memory is tried again with more.
    """
    if record is None:
        return False
    texts = [record.unavailable, *(record.outcomes.get(rule) for rule in rules)]
    if TOO_LARGE in texts and memory_mb > record.memory_mb:
        return False
    return bool(record.unavailable or record.stopped) or record.outcomes.keys() >= set(rules)


def _list_ids(suite: InstalledSuite) -> _Listed:
    text = _LIST_IDS.read_text(encoding="utf-8")
    given = {"DISTRIBUTIONS": suite.distributions, "MODULES": suite.modules}
    for name, values in given.items():
        text = text.replace(f"{name}: list[str] = []", f"{name}: list[str] = {list(values)!r}")
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


def _matches(env_id: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(env_id, pattern) for pattern in patterns)


def _spread(ids: list[_Id], limit: int | None) -> list[_Id]:
    """Return ``limit`` of the IDs at equal distances; those of a limit are also among those of its multiples."""
    if limit is None or len(ids) <= limit:
        return ids
    return [ids[number * len(ids) // limit] for number in range(limit)]


def _try_all(atlas: Atlas, plan: _Plan, ids: Sequence[_Id], report: Callable[[str], None]) -> None:
    """Try the IDs in threads, each with processes of its own; raise the first failure."""
    waiting: queue.SimpleQueue[_Id] = queue.SimpleQueue()
    for one in ids:
        waiting.put(one)
    failures: list[BaseException] = []
    stopped = threading.Event()

    def work() -> None:
        worker = _Worker(plan)
        try:
            while not stopped.is_set():
                which = waiting.get_nowait()
                record = worker.record(which, _known(atlas, plan.suite, which))
                atlas.add(record)
                report(_line_of(record))
        except queue.Empty:
            return
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            failures.append(error)
            stopped.set()
        finally:
            worker.close()

    number = min(plan.effort.jobs, len(ids))
    threads = [threading.Thread(target=work, name=f"atlas-{n}") for n in range(number)]
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
    suite: InstalledSuite
    imports: Sequence[str]
    effort: Effort


class _Worker:
    """A process in the suite's Python, and one in this Python for the kit; one thread uses it."""

    def __init__(self, plan: _Plan) -> None:
        self._plan, memory_mb = plan, plan.effort.memory_mb
        self._prober = Prober(plan.suite.python, [*_PRELOADED, *plan.imports], memory_mb=memory_mb)
        ours = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        self._kit = Prober(sys.executable, ["envweave_gym.testing"], ours, memory_mb)

    def close(self) -> None:
        """End the processes."""
        self._prober.close()
        self._kit.close()

    def record(self, which: _Id, known: IdRecord | None) -> IdRecord:
        """Try the rules on an ID, and then the kit; what is ``known`` of the rules is not tried again."""
        rules = [rule for rule in self._plan.effort.rules if rule != KIT]
        memory_mb = self._plan.effort.memory_mb
        if known is not None and _is_done(known, rules, memory_mb):
            record = known
        else:
            record = msgspec.structs.replace(self._by_rules(which, rules), memory_mb=memory_mb)
        if len(rules) == len(self._plan.effort.rules) or record.unavailable or record.stopped:
            return record
        return msgspec.structs.replace(self._with_kit(record), memory_mb=memory_mb)

    def _by_rules(self, which: _Id, rules: Sequence[str]) -> IdRecord:
        api, env_id, module = which

        def run(script: str, deadline_s: float, *, fresh: bool) -> Ended:
            try:
                return self._prober.run(script, deadline_s, fresh=fresh, module=module)
            except NotAvailable:  # it died, perhaps of the module
                try:
                    return self._prober.run(script, deadline_s, fresh=True)
                except ProberLost:
                    return Ended(None, KILLED, seconds=deadline_s)

        plan = self._plan
        probe = IdProbe(
            *(plan.suite.name, api, env_id),
            imports=plan.imports,
            run=run,
            deadline_s=plan.effort.deadline_s,
            rules=rules,
        )
        try:
            return probe.record()
        except NotAvailable as error:  # the process that runs its scripts cannot be started
            return IdRecord(plan.suite.name, env_id, api, {}, unavailable=str(error))

    def _with_kit(self, record: IdRecord) -> IdRecord:
        def run(script: str, deadline_s: float, *, fresh: bool) -> Ended:
            try:
                return self._kit.run(script, deadline_s, fresh=fresh)
            except NotAvailable:
                return self._kit.run(script, deadline_s, fresh=True)

        begun = time.monotonic()
        name, given = record.id, dict(self._plan.suite.make)
        rules = {finding.rule for finding in record.findings}
        if record.api == "gym":
            name = ":".join([*self._plan.imports[:1], name])
            given |= {"reward": "sum"} if VECTOR_REWARDS in rules else {}
        else:
            given["api"] = record.api
        try:
            outcome, findings = try_kit(name, given, run, self._plan.effort.deadline_s, rules)
        except NotAvailable as error:  # what the rules have found stays
            outcome, findings = str(error), ()
        return msgspec.structs.replace(
            record,
            outcomes={**record.outcomes, KIT: outcome},
            findings=record.findings + findings,
            seconds=round(record.seconds + time.monotonic() - begun, 1),
        )


def _line_of(record: IdRecord) -> str:
    what = "cannot be made here" if record.unavailable else f"{len(record.findings)} findings"
    rules = " ".join(f"{one.rule}:{one.kind}{'' if one.reproduced else '?'}" for one in record.findings)
    return f"{record.suite} {record.id} ({record.api}): {what} in {record.seconds:g} s {rules}".rstrip()
