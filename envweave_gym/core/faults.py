"""Failures as data (:class:`Fault`) and as exceptions.

A :class:`Fault` in ``info["fault"]`` ends an episode that was lost rather than played: it is never a reward.
The info of a lost episode is written by ``envweave_gym/episode/record.py``.
Every exception takes one string, so that it survives pickling between worker processes.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from enum import StrEnum
from types import ModuleType

import gymnasium.error
import msgspec

PACKAGE = "envweave-gym"
"""The name of this package on PyPI."""


class FaultKind(StrEnum):
    """The kinds of faults: why an episode was lost."""

    CRASH = "crash"
    """The environment raised an exception, or its process died."""
    TIMEOUT = "timeout"
    """A reply did not come before its deadline."""
    LOST = "lost"
    """The session or the connection to it is gone."""
    CAPACITY = "capacity"
    """The server was full."""


class Fault(msgspec.Struct, frozen=True, gc=False):
    """The loss of an episode: its kind, a message, and whether trying again can help."""

    kind: FaultKind
    message: str
    retryable: bool
    """Whether another try may succeed: false if code, installation or arguments must change first."""


class EnvweaveError(Exception):
    """The base of every exception of this package."""


class InvalidAction(EnvweaveError, gymnasium.error.InvalidAction, ValueError):
    """Raised for an action that is not in the action space; it had no effect and the episode goes on."""


class InvalidArgument(EnvweaveError, TypeError, ValueError):
    """Raised if an argument of ``make``, ``reset`` or a constructor is unknown or has a wrong value.

    ``gymnasium.make`` raises a constructor's ``TypeError`` again with all arguments appended to its text. The
    constructor here cuts them off again, as they may contain secrets.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message.partition(_TAIL)[0])


_TAIL = " was raised from the environment creator for "


class ResetNeeded(EnvweaveError, gymnasium.error.ResetNeeded):
    """Raised if ``step`` is called before ``reset`` or after the end of the episode."""


class UnknownEnvironment(EnvweaveError, gymnasium.error.UnregisteredEnv):
    """Raised if no environment has the given name."""


class NotAvailable(EnvweaveError):
    """Raised if a call needs something that this environment, server or installation does not have."""


class MissingExtra(NotAvailable, ImportError):
    """Raised if an optional dependency is not installed; the message contains the pip command."""


class SessionLost(EnvweaveError):
    """Raised if the session of a remote environment is gone; with ``on_fault="truncate"`` this is a fault."""


class EnvironmentCrashed(EnvweaveError):
    """Raised if an environment on a server raises an exception; with ``on_fault="truncate"`` this is a fault.

    If the environment's constructor raised a built-in exception, this is an instance of that type as well.
    """

    cause: str = ""
    """The type name of the exception that the environment's constructor raised, or an empty text."""


class ToolError(EnvweaveError):
    """Raised if a tool fails; the text is for the program or the model that called it."""


class AtCapacity(EnvweaveError):
    """Raised if all slots of a limited number are taken, such as the sessions of a server."""


class FaultStorm(EnvweaveError):
    """Raised if too many episodes in a row were lost, so that trying again does not help."""


REFUSALS = (gymnasium.error.InvalidAction, InvalidArgument, NotAvailable, FaultStorm)
"""Exceptions of ``step`` after which the episode goes on; every other exception ends it."""

HARMLESS = (gymnasium.error.InvalidAction, InvalidArgument, NotAvailable, ResetNeeded)
"""Exceptions which prove that the call had no effect."""

MAX_FAULTS_IN_A_ROW = 10
"""Limit of lost episodes in a row: the last of them raises :class:`FaultStorm`."""

RESET_DEADLINE_S = 10.0
"""Default of ``reset_deadline``: seconds for which a failing reset is tried again."""

MAX_NAME_LENGTH = 200
"""Limit of characters of a name that :func:`nearest` compares; longer ones would take long."""

MAX_MESSAGE_LENGTH = 2000
"""Limit of characters of an exception's text in a fault."""


def fault_of(error: BaseException) -> Fault:
    """Convert an exception of an environment to a fault.

    The fault is retryable unless the next episode would fail in the same way: code is missing or wrong
    (``ImportError``, ``AttributeError``, ``NameError``, ``NotImplementedError``, ``SyntaxError``,
    ``TypeError``), the environment has exited (``SystemExit``), or it failed too often (``FaultStorm``).
    """
    kind = next((kind for cause, kind in _KINDS.items() if isinstance(error, cause)), FaultKind.CRASH)
    message = f"{type(error).__name__}: {error}"[:MAX_MESSAGE_LENGTH]
    text = message.encode(errors="backslashreplace").decode()  # lone surrogates cannot travel as UTF-8
    return Fault(kind, text, retryable=not isinstance(error, _LASTING))


_LASTING = (
    ImportError,
    AttributeError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    SystemExit,
    FaultStorm,
)
_KINDS = {
    TimeoutError: FaultKind.TIMEOUT,
    SessionLost: FaultKind.LOST,
    ConnectionError: FaultKind.LOST,
    AtCapacity: FaultKind.CAPACITY,
}


class FaultCount:
    """Counter of faults in a row: episodes of one environment that were lost one after the other."""

    def __init__(self, name: str) -> None:
        self._name, self._in_a_row = name, 0

    def add(self, fault: Fault) -> Fault:
        """Count a fault and return it; the tenth in a row raises :class:`FaultStorm`."""
        self._in_a_row += 1
        if self._in_a_row >= MAX_FAULTS_IN_A_ROW:
            raise FaultStorm(f"{self._name}: {self._in_a_row} faults in a row, the last: {fault.message}")
        return fault

    def clear(self) -> None:
        """Set the count to zero, after an episode that was played to its end."""
        self._in_a_row = 0


def shown(value: object) -> str:
    """Return the ``repr`` of ``value`` in one line of at most 80 characters, for error messages."""
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except Exception:  # noqa: BLE001 - a foreign repr may raise anything, and an error must not hide behind it
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def need(module: str, extra: str | None, purpose: str, *, package: str = PACKAGE) -> ModuleType:
    """Import ``module`` and return it, or raise :class:`MissingExtra` with the pip command that installs it.

    ``extra`` is the extra of ``package`` that the command installs; ``purpose`` says in the error what needs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        wanted = f"'{package}[{extra}]'" if extra else package
        line = f"{purpose} needs {module}, which is not installed: pip install {wanted}"
        raise MissingExtra(line) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x' or 'y'?)"`` for a mistyped name, or ``""`` if no known name is similar."""
    if len(name) > MAX_NAME_LENGTH:
        return ""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(map(repr, matches))}?)" if matches else ""
