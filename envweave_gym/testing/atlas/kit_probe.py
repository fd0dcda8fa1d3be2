"""Runs the conformance kit on an ID, in a process of this Python with a deadline, and reproduces what it finds.

The environment itself may run in the Python of its suite, as the keyword arguments for ``make`` say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from envweave_gym.testing.atlas.id_probe import Finding, Run, tried
from envweave_gym.testing.atlas.verdicts import MISSING, Kind

KIT = "kit"
PREFIX = "kit."
"""Begins the rule of a finding that a check of the kit has made."""
_DEADLINES = 5
"""Time for all checks together, as a multiple of the time for one script."""
_FAILED = re.compile(r"^\S*ConformanceError: ", re.MULTILINE)
_WHOLE = '''"""{name}: every check of the conformance kit."""

from envweave_gym.testing import check_all

check_all({name!r}{kwargs})
'''
_ONE = '''"""{name}: the check {check} of the conformance kit.

{text}
"""

from envweave_gym.testing import check_{check}, subject_of

check_{check}(subject_of({name!r}{kwargs}))
'''


def try_kit(
    name: str, kwargs: Mapping[str, Any], run: Run, deadline_s: float
) -> tuple[str, tuple[Finding, ...]]:
    """Run all checks on the environment ``name``; return the outcome, and a finding for each failure of one cause."""
    deadline_s *= _DEADLINES
    given = "".join(f", {key}={value!r}" for key, value in kwargs.items())
    whole = _WHOLE.format(name=name, kwargs=given)
    ended, verdict = tried(KIT, whole, run, deadline_s)
    if verdict.outcome == "passed":
        return "passed", ()
    failed = _FAILED.search(ended.stderr)
    if verdict.kind == "raises" and failed is None and MISSING.search(verdict.text):
        return verdict.text, ()  # it cannot be made here: a missing package or argument
    sentences = [] if failed is None else ended.stderr[failed.end() :].split("\n- ")
    found = [_checked(name, given, sentence, run, deadline_s) for sentence in sentences[1:]]
    if not found and verdict.kind is not None:
        text = sentences[0].strip() if sentences else verdict.text
        found = [_finding("can_be_played", verdict.kind, text, whole, run, deadline_s)]
    return "finding", tuple(found)


def _checked(name: str, given: str, sentence: str, run: Run, deadline_s: float) -> Finding:
    check, _, text = " ".join(sentence.split()).partition(": ")
    shown = text.replace("\\", "\\\\").replace('"""', "'''")
    script = _ONE.format(name=name, kwargs=given, check=check, text=shown)
    return _finding(check, "broken", text, script, run, deadline_s)


def _finding(check: str, kind: Kind, text: str, script: str, run: Run, deadline_s: float) -> Finding:
    """Return a finding of the kit, after its script has run in a fresh interpreter."""
    _, again = tried(KIT, script, run, deadline_s, fresh=True)
    reproduced = again.outcome == "finding"
    return Finding(f"{PREFIX}{check}", kind, text[:400], 0, reproduced, script)
