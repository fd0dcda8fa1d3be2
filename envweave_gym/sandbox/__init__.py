"""Runs untrusted Python programs in confined processes; see ``docs/sandbox.md``."""

from __future__ import annotations

from envweave_gym.sandbox.execution import Call, Execution, Final, Usage, Variable
from envweave_gym.sandbox.limits import Limits
from envweave_gym.sandbox.sandbox import Sandbox
from envweave_gym.sandbox.session import Names, Session
from envweave_gym.sandbox.setup import Setup
from envweave_gym.sandbox.sharing import SharedSandbox

__all__ = [
    "Call",
    "Execution",
    "Final",
    "Limits",
    "Names",
    "Sandbox",
    "Session",
    "Setup",
    "SharedSandbox",
    "Usage",
    "Variable",
]
