"""What can go wrong, as data and as exceptions.

A :class:`Fault` in ``info["fault"]`` ends an episode that was lost rather than played: it is never a reward.
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
"""What pip calls this package."""


class FaultKind(StrEnum):
    """Why an episode was lost."""

    CRASH = "crash"
    """The environment raised an exception, or its process died."""
    TIMEOUT = "timeout"
    """An answer did not come before its deadline."""
    LOST = "lost"
    """The session or the connection to it is gone."""
    CAPACITY = "capacity"
    """There was no room for the session."""


class Fault(msgspec.Struct, frozen=True, gc=False):
    """Why an episode was lost, and whether trying again can help."""

    kind: FaultKind
    message: str
    retryable: bool
    """Whether another episode may do better: false where the code, the installation or the arguments are to
    be changed first."""


class EnvweaveError(Exception):
    """The base of every exception of this package."""


class InvalidAction(EnvweaveError, gymnasium.error.InvalidAction, ValueError):
    """The action is not in the action space; nothing was done with it and the episode goes on."""


class InvalidArgument(EnvweaveError, TypeError, ValueError):
    """An argument of ``make``, ``reset`` or a constructor is unknown or has a wrong value.

    ``gymnasium.make`` raises a ``TypeError`` of a constructor anew, with all arguments behind its text; here
    that tail is left out, so that one sentence stays one, and an argument that is a secret stays secret.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message.partition(_TAIL)[0])


_TAIL = " was raised from the environment creator for "


class ResetNeeded(EnvweaveError, gymnasium.error.ResetNeeded):
    """``step`` was called before ``reset`` or after the end of the episode."""


class UnknownEnvironment(EnvweaveError, gymnasium.error.UnregisteredEnv):
    """No environment has this name."""


class NotAvailable(EnvweaveError):
    """What was asked for needs something that is not there."""


class MissingExtra(NotAvailable, ImportError):
    """What was asked for needs an optional dependency; the message names the pip command."""


class SessionLost(EnvweaveError):
    """The session of a remote environment is gone, and ``on_fault="raise"`` asked to hear of it."""


class EnvironmentCrashed(EnvweaveError):
    """An environment elsewhere raised, and ``on_fault="raise"`` asked to hear of it; its episode is over.

    One whose constructor raised a built-in exception is an instance of that type as well.
    """

    cause: str = ""
    """The type of the exception that its constructor raised."""


class ToolError(EnvweaveError):
    """A tool failed; the text is for the program or the model that called it."""


class AtCapacity(EnvweaveError):
    """The server has no room for another session."""


class FaultStorm(EnvweaveError):
    """Too many faults in a row: something is wrong that trying again does not cure."""


REFUSALS = (gymnasium.error.InvalidAction, InvalidArgument, NotAvailable, FaultStorm)
"""What a call may raise without any harm done: the episode goes on. Every other exception ends it."""

HARMLESS = (gymnasium.error.InvalidAction, InvalidArgument, NotAvailable, ResetNeeded)
"""What a call may raise without having been done at all."""

FAULTS_IN_A_ROW = 10
"""So many episodes lost one after the other raise :class:`FaultStorm`."""

RESET_DEADLINE = 10.0
"""So many seconds a reset that fails is tried again, unless ``reset_deadline`` says otherwise."""

LONGEST_NAME = 200
"""What is longer is no name of an ID, an argument or the like, and is compared with none."""

LONGEST_MESSAGE = 2000
"""What an exception says beyond so many characters is left out of the fault."""


def fault_of(error: BaseException) -> Fault:
    """The fault an exception of an environment amounts to.

    It is retryable unless the exception says that the next episode will fare no better: something is not
    there or not written (``ImportError``, ``AttributeError``, ``NameError``, ``NotImplementedError``,
    ``SyntaxError``, ``TypeError``), the environment has left (``SystemExit``), or it was tried often enough
    (:class:`FaultStorm`).
    """
    kind = next((kind for cause, kind in _KINDS.items() if isinstance(error, cause)), FaultKind.CRASH)
    message = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]
    text = message.encode(errors="backslashreplace").decode()
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


def shown(value: object) -> str:
    """``value`` as an error message shows it: its ``repr``, short and in one line, or else its type."""
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except Exception:  # noqa: BLE001 - a foreign repr may raise anything, and an error must not hide behind it
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def need(module: str, extra: str | None, purpose: str, *, package: str = PACKAGE) -> ModuleType:
    """Import ``module``, or say in one line which extra of which package brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        wanted = f"'{package}[{extra}]'" if extra else package
        line = f"{purpose} needs {module}, which is not installed: pip install {wanted}"
        raise MissingExtra(line) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """``" (did you mean 'x' or 'y'?)"`` for a name that was mistyped, empty where nothing is near.

    What is longer than any name is not compared, which would take long.
    """
    if len(name) > LONGEST_NAME:
        return ""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(map(repr, matches))}?)" if matches else ""
