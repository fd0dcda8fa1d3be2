"""Reads how a script ended: passed, not applicable, not available here, or a finding of some kind."""

from __future__ import annotations

import re
import secrets
import signal
from typing import Literal

import msgspec

from envweave_gym.testing.atlas.prober import KILLED, Ended

SKIPPED = 77
"""Exit status of scripts whose rule does not concern the environment, as in Automake."""
MISSING = re.compile(
    r"(DependencyNotInstalled|FailedToImport|ModuleNotFoundError|ImportError|DeprecatedEnv|DeprecationWarning|UnregisteredEnv)\b"
    r"|FileNotFoundError|FileDoesNotExist|OpenGL|missing \d+ required|NotAvailable\b"
)
"""Exceptions of a constructor that say that the ID cannot be made here, which is no defect of its environment."""
_FRAMES = "Traceback (most recent call last):\n"
_LONGEST_TEXT_CHARS = 400
_IN_SCRIPT = re.compile(r'File "[^"]*(<script>|/script\.py)"')
_WHERE = re.compile(r'File "(?:.*/)?([^"/]+)", line (\d+).*')
CHECKER = "own_checker"
TOO_LARGE = "it needs more memory than a script may have"
_OF_LEAKS = ("leaves_nothing", "gives_memory_back")
"""Rules that make one environment after the other: what exceeds the memory there alone was not given back."""

Kind = Literal["broken", "raises", "crashes", "hangs"]


class Verdict(msgspec.Struct, frozen=True):
    """Outcome of one script: ``passed``, ``skipped`` with a reason, or a finding with its kind and a sentence."""

    outcome: Literal["passed", "skipped", "finding"]
    text: str = ""
    kind: Kind | None = None

    @property
    def cause(self) -> tuple[Kind | None, str]:
        """Kind and text without numbers, quoted parts and addresses: equal for findings with the same cause."""
        return self.kind, re.sub(r"0x[0-9a-f]+|[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", self.text)


def with_token(script: str) -> tuple[str, str]:
    """Return the script with a random token that it writes to its first stdout when it ends by itself, and the token.

    An exit status alone does not say that: the environment may end the process with any. Line numbers stay.
    """
    token = secrets.token_hex(16)
    write = f"_os.write(_out, b'{token}')"
    skip = f"sys.exit({SKIPPED})"
    script = script.replace(f"    {skip}\n", f"    {write}; {skip}\n")
    return f"import os as _os; _out = _os.dup(1); {script}{write}\n", token


def verdict_of(rule: str, ended: Ended, deadline_s: float, token: str) -> Verdict:
    """Return the outcome of a rule's script; it passes or skips only if it has written its token."""
    lines = ended.stderr.strip().splitlines()
    completed = token in ended.stdout
    if ended.status == 0 and completed:
        return Verdict("passed")
    if ended.status == SKIPPED and completed:
        return Verdict("skipped", _short(lines[-1] if lines else ""))
    if ended.exceeded == "memory":
        if rule in _OF_LEAKS:
            text = "environments that are made and closed one after the other use more memory than a script may have"
            return Verdict("finding", text, "broken")
        return Verdict("skipped", TOO_LARGE)
    if ended.exceeded == KILLED:
        return Verdict("finding", "ends or stops the process that has started its own", "crashes")
    if ended.status is None:
        return Verdict("finding", f"does not end within {deadline_s:g} s of processor time", "hangs")
    if ended.status < 0:
        return Verdict("finding", f"ends the process with {_signal(-ended.status)}", "crashes")
    if _FRAMES not in ended.stderr:
        return Verdict("finding", f"ends the process with status {ended.status}", "crashes")
    return _of_traceback(rule, ended.stderr.rpartition(_FRAMES)[2])


def _of_traceback(rule: str, text: str) -> Verdict:
    """Return the finding of an exception; an assertion counts as the rule's if the script itself made it."""
    lines = text.splitlines()
    end = next((number for number, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    error = " ".join(" ".join(lines[end:]).split())
    files = [line for line in lines[:end] if line.lstrip().startswith('File "')]
    asserted = error.startswith("AssertionError") and bool(files)
    if asserted and (_IN_SCRIPT.search(files[-1]) or rule == CHECKER):
        return Verdict("finding", _short(error.removeprefix("AssertionError: ")), "broken")
    if not error.partition(":")[2] and files:  # an exception without a text: where it was raised
        place = _WHERE.sub(r"line \2 of \1", files[-1].strip())
        error = f"{error} in {place}"
    return Verdict("finding", _short(error), "broken" if rule == CHECKER else "raises")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT_CHARS else text[: _LONGEST_TEXT_CHARS - 3] + "..."


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
