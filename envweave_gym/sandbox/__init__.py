"""Untrusted Python, run in processes of its own; see ``docs/sandbox.md``."""

from __future__ import annotations

from envweave_gym.sandbox.result import Execution, Final, Limits, Usage, Variable
from envweave_gym.sandbox.sandbox import Sandbox, Setup
from envweave_gym.sandbox.session import Names, Session
from envweave_gym.sandbox.shared import Lease
from envweave_gym.sandbox.step import Call

__all__ = [
    "Call",
    "Execution",
    "Final",
    "Lease",
    "Limits",
    "Names",
    "Sandbox",
    "Session",
    "Setup",
    "Usage",
    "Variable",
]
