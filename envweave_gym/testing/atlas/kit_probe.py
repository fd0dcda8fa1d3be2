"""Runs the conformance kit on an ID, in a process of this Python with limits, and reproduces what it finds.

The environment itself runs in the Python of its suite, as the keyword arguments for ``make`` say. All environments of
a run share one process there, as importing a suite takes longer than most checks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from envweave_gym.testing.atlas.id_probe import Finding, Run, tried
from envweave_gym.testing.atlas.verdicts import MISSING, TOO_LARGE, Kind

KIT = "kit"
PREFIX = "kit."
"""Begins the rule of a finding that a check of the kit has made."""
_DEADLINES = 5
"""Time for all checks together, as a multiple of the time for one script."""
_FAILED = re.compile(r"^\S*ConformanceError: ", re.MULTILINE)
_WHOLE = '''"""{name}: every check of the conformance kit."""

{imports}from envweave_gym.testing import check_all

{call}check_all({name!r}{kwargs})
'''
_ONE = '''"""{name}: the check {check} of the conformance kit.

{text}
"""

{imports}from envweave_gym.testing import check_{check}, subject_of

{call}check_{check}(subject_of({name!r}{kwargs}))
'''
_ONE_PROCESS = {
    "imports": "from envweave_gym.suites.suite_session import one_process\n",
    "call": "with one_process():\n    ",
}
_SEEDS = ("same_seed", "same_seed_again", "beside_another")
_PLAYS = ("contract", "unseeded_start", "own_checker")
_RULES_OF_CHECKS: dict[str, tuple[str, ...]] = {
    "gymnasium_api": (
        *_PLAYS,
        "global_generators",
        "fresh_infos",
        "fresh_observations",
        "unseeded_reset",
        *_SEEDS,
    ),
    "passive_api": _PLAYS,
    "aec_api": _PLAYS,
    "parallel_api": _PLAYS,
    "random_actions_never_raise": _PLAYS,
    "same_seed_same_trace": _SEEDS,
    **dict.fromkeys(
        (
            *("aec_seeds", "parallel_seeds", "spec_survives_json", "aec_and_parallel_agree"),
            *("vector_equals_single", "async_equals_single", "autoreset_equals_single"),
            *("invalid_actions_change_nothing", "bad_seeds_are_refused", "step_needs_reset"),
            "vectors_refuse_misuse",
        ),
        _SEEDS,
    ),
    "different_seeds_differ": ("different_seeds",),
    "unseeded_resets": ("unseeded_reset", *_SEEDS),
    "observations_stay_as_given": ("fresh_observations",),
    "render_modes": ("render_changes_nothing",),
    "render_changes_nothing": ("render_changes_nothing", *_SEEDS),
    "game_render_modes": ("render_changes_nothing",),
    "close_twice": ("closes_twice",),
}
"""Checks of the kit, with the rules that find the same by themselves."""
_COMPARED = re.compile(
    r" in one and .* in the other|one ends after \d+ moves, the other after|determinis|'s \w*seed_test"
    r"| let agents act | pay .+ and |play the same episode"
)
"""What a check says of episodes that differ: the rules of seeds find that alone, and nothing else of the check."""


def try_kit(
    name: str, kwargs: Mapping[str, Any], run: Run, deadline_s: float, found: Collection[str] = ()
) -> tuple[str, tuple[Finding, ...]]:
    """Run all checks on the environment ``name``; return the outcome, and a finding for each failure of one cause.

    Checks that fail where one of the rules ``found`` has a finding of the same are no further finding: the outcome
    names them.
    """
    deadline_s *= _DEADLINES
    given = {"name": name, "kwargs": "".join(f", {key}={value!r}" for key, value in kwargs.items())}
    given |= _ONE_PROCESS if kwargs.get("backend") == "venv" else {"imports": "", "call": ""}
    whole = _WHOLE.format(**given)
    ended, verdict = tried(KIT, whole, run, deadline_s)
    if verdict.outcome == "passed":
        return "passed", ()
    if verdict.text == TOO_LARGE:
        return TOO_LARGE, ()
    if verdict.kind == "hangs":  # a call that hangs fails a check; all checks together may just take long
        return f"its checks do not end within {deadline_s:g} s of processor time", ()
    failed = _FAILED.search(ended.stderr)
    if verdict.kind == "raises" and failed is None and MISSING.search(verdict.text):
        return verdict.text, ()  # it cannot be made here: a missing package or argument
    sentences = [] if failed is None else ended.stderr[failed.end() :].split("\n- ")
    checks = _with_causes_of_their_own(dict(_parsed(one) for one in sentences[1:]))
    known = {check: rule for check, text in checks.items() if (rule := _found_earlier(check, text, found))}
    findings = [
        _checked(check, text, given, run, deadline_s) for check, text in checks.items() if check not in known
    ]
    if not checks and verdict.kind is not None:
        text = sentences[0].strip() if sentences else verdict.text
        findings = [_finding("can_be_played", verdict.kind, text, whole, run, deadline_s)]
    earlier = ", ".join(f"{rule} ({check})" for check, rule in known.items())
    parts = [*(["finding"] if findings or not known else []), *([f"finding of {earlier}"] if known else [])]
    return ", and ".join(parts), tuple(findings)


def _found_earlier(check: str, text: str, found: Collection[str]) -> str | None:
    """Return the first rule of those ``found`` that says the same as a failed check."""
    is_comparison = _COMPARED.search(text) is not None
    rules = (rule for rule in _RULES_OF_CHECKS.get(check, ()) if rule in found)
    return next((rule for rule in rules if is_comparison or rule not in _SEEDS), None)


def _parsed(sentence: str) -> tuple[str, str]:
    """Return the name of a check that failed, and why."""
    check, _, text = " ".join(sentence.split()).partition(": ")
    return check, text


def _with_causes_of_their_own(checks: Mapping[str, str]) -> dict[str, str]:
    """Leave out checks that report the same warnings as an earlier one; two of them run checkers of Gymnasium."""
    seen: dict[str, str] = {}
    for check, text in checks.items():
        seen.setdefault(text.partition(" warns: ")[2] or text, check)
    return {check: checks[check] for check in seen.values()}


def _checked(check: str, text: str, given: Mapping[str, str], run: Run, deadline_s: float) -> Finding:
    shown = text.replace("\\", "\\\\").replace('"""', "'''")
    script = _ONE.format(**given, check=check, text=shown)
    return _finding(check, "broken", text, script, run, deadline_s)


def _finding(check: str, kind: Kind, text: str, script: str, run: Run, deadline_s: float) -> Finding:
    """Return a finding of the kit, after its script has run in a fresh interpreter."""
    _, again = tried(KIT, script, run, deadline_s, fresh=True)
    reproduced = again.outcome == "finding"
    return Finding(f"{PREFIX}{check}", kind, text[:400], 0, reproduced, script)
