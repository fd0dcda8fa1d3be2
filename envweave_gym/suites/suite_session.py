"""``SuiteSession``: one environment in a suite's process, which is made again in another process after a loss."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.faults import (
    EnvironmentCrashed,
    InvalidArgument,
    NotAvailable,
    ResetNeeded,
    SessionLost,
    shown,
)
from envweave_gym.suites.inside import codec
from envweave_gym.suites.suite_process import SuiteProcess
from envweave_gym.suites.virtual_environments import VirtualEnvironment, lease_of
from envweave_gym.wire.foreign_spaces import opaque
from envweave_gym.wire.spaces import Path as SpacePath
from envweave_gym.wire.spaces import base_of, space_from_data
from envweave_gym.wire.values import exact

_END_S = 10.0
"""Time for an environment's own ``close``."""


@dataclass(frozen=True)
class Launch:
    """Plain data from which any process can start the environment."""

    name: str
    """Name in error messages."""
    folder: Path
    """Folder of the virtual environment."""
    env_id: str
    """ID in the suite, with or without ``module:``."""
    api: str | None
    distributions: tuple[str, ...]
    """Names of the packages that the suite was made for, whose imports register its IDs."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    """Step limit in place of the registered one; -1 for none."""
    call_deadline: float = 60.0


class SharedProcess:
    """Holder of one process that several environments share; a process that has ended is replaced."""

    def __init__(self, *, stays: bool = False, is_lone: bool = False) -> None:
        """``stays`` keeps the process between its last environment and the next, until :meth:`close`.

        ``is_lone`` says that its environment is no row of a vector.
        """
        self._lock, self._users, self._stays, self._is_lone = threading.Lock(), 0, stays, is_lone
        self._process: SuiteProcess | None = None

    def __reduce__(self) -> Any:
        return _empty_holder, (self._is_lone,)

    def close(self) -> None:
        """End the process if no environment uses it, and else with its last one."""
        with self._lock:
            self._stays = False
            if self._users > 0 or self._process is None:
                return
            process, self._process = self._process, None
        process.close()

    def take(self, environment: VirtualEnvironment, name: str) -> SuiteProcess:
        """Return the running process for one more user, or start one."""
        with self._lock:
            if self._process is None or not self._process.is_alive:
                self._process, self._users = SuiteProcess(environment, name, is_lone=self._is_lone), 0
            self._users += 1
            return self._process

    def give_back(self, process: SuiteProcess) -> None:
        """Take one user off the process, and close it if that was the last one."""
        with self._lock:
            if process is not self._process:  # it was replaced, when it had ended
                return
            self._users -= 1
            if self._users > 0 or self._stays:
                return
            self._process = None
        process.close()


_processes: dict[Path, SharedProcess] | None = None
"""Processes of :func:`one_process` by the folders of virtual environments; ``None`` outside of it."""


@contextmanager
def one_process() -> Generator[None]:
    """Let all environments of a suite that are made in the block share one process, to save its start.

    They take turns, as in this process, and are all lost if one of them ends the process. The rows of
    ``AsyncVectorEnv`` have processes of their own nevertheless, and so have forked processes.
    """
    global _processes
    before, _processes = _processes, {}
    try:
        yield
    finally:
        processes, _processes = _processes, before
        for process in processes.values():
            process.close()


def shared_process(folder: Path, *, is_lone: bool = False) -> SharedProcess:
    """Return a holder of a process of the suite in this folder; within :func:`one_process` always the same one."""
    if _processes is None:
        return SharedProcess(is_lone=is_lone)
    return _processes.setdefault(folder, SharedProcess(stays=True))


def _empty_holder(is_lone: bool) -> SharedProcess:
    return SharedProcess(is_lone=is_lone)


class SuiteSession:
    """One environment in a process of its suite, made when it is first needed, and again after a loss."""

    def __init__(self, launch: Launch, shared: SharedProcess | None = None) -> None:
        """``shared`` is given to environments that share a process."""
        self.launch = launch
        for argument, value in launch.kwargs.items():
            check_sendable(launch.name, f"{argument}={shown(value)}", value)
        self._shared = shared or shared_process(launch.folder, is_lone=True)
        self._environment: VirtualEnvironment | None = None
        self._process: SuiteProcess | None = None
        self._handle = 0
        self._description: dict[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the environment exists in a running process."""
        return self._process is not None and self._process.is_alive

    @property
    def description(self) -> dict[str, Any]:
        """The suite's description of the environment; the first access makes the environment."""
        if self._description is None:
            self.open()
        assert self._description is not None
        return self._description

    def start(self) -> SuiteProcess:
        """Start the process unless it runs, without waiting for it, and return it."""
        if self._environment is None or self._environment.lock < 0:
            self._environment = lease_of(self.launch.folder, self.launch.name)
        self._drop()
        self._process = self._shared.take(self._environment, self.launch.name)
        self._handle = self._process.new_handle()
        return self._process

    def begin_open(self) -> int:
        """Send the call that makes the environment in a started process; :meth:`open` waits for its end."""
        launch, process = self.launch, self.start()
        wanted = [launch.env_id, dict(launch.kwargs), launch.api, list(launch.distributions)]
        deadline = time.monotonic() + launch.call_deadline
        return process.send(self._handle, "make", [wanted, launch.limit], deadline)

    def open(self, begun: int | None = None) -> None:
        """Make the environment; ``begun`` is the number of a call that :meth:`begin_open` has sent."""
        try:
            number = self.begin_open() if begun is None else begun
            self._description = self.result(number, "make")
        except BaseException:
            self._drop()
            if self._description is None and self._environment is not None:  # nobody is going to close it
                self._environment.release()
            raise

    def call(self, method: str, arguments: Any) -> Any:
        """Call a method of the environment in its process."""
        return self.result(self.send(method, arguments), method)

    def send(self, method: str, arguments: Any) -> int:
        """Send a call, for :meth:`result`; raise ``ResetNeeded`` if there is no environment."""
        if self._process is None:
            raise ResetNeeded(f"{self.launch.name}: it was closed, or not reset yet; call reset()")
        return self._process.send(
            self._handle, method, arguments, time.monotonic() + self.launch.call_deadline
        )

    def result(self, number: int, method: str) -> Any:
        """Wait for the end of a call that was sent, and return its result."""
        if self._process is None:
            raise ResetNeeded(f"{self.launch.name}: it was closed; call reset()")
        limit = self.launch.call_deadline
        return self._process.result(number, method, time.monotonic() + limit, limit)

    def space(self, data: dict[str, Any], which: str, agent: str | None = None) -> Space[Any]:
        """Build a space from its description; one of an unknown class asks the suite about its members."""

        def unknown(part: dict[str, Any], path: SpacePath) -> Space[Any]:
            def ask(question: str, argument: Any) -> Any:
                try:
                    return self.call("space", [which, agent, list(path), question, argument])
                except (EnvironmentCrashed, SessionLost, TimeoutError, ResetNeeded):
                    if question == "contains" and not self.is_open:
                        return True  # the step with the action reports the loss
                    raise

            return opaque(part, base_of(part, unknown, path), ask)

        return space_from_data(data, unknown)

    def attribute(self, name: str) -> Any:
        """Return a public attribute of the environment in the suite; raise ``AttributeError`` if it has none."""
        if not name.isidentifier() or name.startswith("_") or not self.is_open:
            raise AttributeError(f"{self.launch.name} has no attribute {name!r}")
        return self.call("attribute", [name])

    def close(self) -> None:
        """Close the environment, raising what its own ``close`` raises, and end the process with its last one.

        A process that has died has nothing to close.
        """
        process = self._process
        try:
            if process is not None and process.is_alive:
                process.call(self._handle, "close", [], min(_END_S, self.launch.call_deadline))
        except (EnvironmentCrashed, SessionLost):
            if process is None or process.is_alive:  # the environment's own close has raised
                raise
        finally:
            self._drop()
            if self._environment is not None:
                self._environment.release()

    def kill(self) -> None:
        """End the process in the middle of a call."""
        if self._process is not None:
            self._process.kill("it was closed in the middle of a call; call reset()")

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._shared.give_back(process)

    def __reduce__(self) -> Any:
        described = self._description and {k: v for k, v in self._description.items() if k != "built"}
        return _session_of, (self.launch, self._shared, described)


def _session_of(launch: Launch, shared: SharedProcess, description: dict[str, Any] | None) -> SuiteSession:
    session = SuiteSession(launch, shared)
    session._description = description
    return session


def check_sendable(name: str, argument: str, value: Any) -> None:
    """Raise ``InvalidArgument`` for the value of an argument that cannot be sent to a suite's process."""
    try:
        packed = exact("value", value)
    except (TypeError, ValueError, RecursionError, NotAvailable) as error:
        raise InvalidArgument(f"{name}: {argument} cannot be sent to its suite: {error}") from error
    try:
        codec.decode(codec.encode(packed))
    except (TypeError, ValueError, RecursionError) as error:
        # Dates and dataclasses travel between processes of this package, and the code in the suite cannot read them.
        raise InvalidArgument(
            f"{name}: {argument} cannot be sent to its suite: give numbers, texts, arrays, or lists, tuples, "
            "sets and dicts of these"
        ) from error
