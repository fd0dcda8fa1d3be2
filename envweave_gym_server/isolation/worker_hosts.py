"""Sessions in worker processes, the server's end: sends frames to workers; a worker's death becomes a fault."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from typing import Any

import msgspec

from envweave_gym.core.faults import (
    RESET_DEADLINE_S,
    AtCapacity,
    EnvironmentCrashed,
    EnvweaveError,
    NotAvailable,
)
from envweave_gym.net.framed_socket import FramedSocket, FrameTooLarge
from envweave_gym.sandbox.forkserver import ONE_THREAD, Fork, ForkServer, Program
from envweave_gym.wire.frame_limits import SMALL_REPLY, TooManyValues, check_reply
from envweave_gym.wire.messages import (
    Answer,
    Ask,
    Close,
    Create,
    Refused,
    Reply,
    Reset,
    Step,
    encode,
    read_reply,
)
from envweave_gym.wire.values import pack
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.environments.hosted_env import lost_step
from envweave_gym_server.environments.questions import DESCRIBE
from envweave_gym_server.isolation.worker_process import DONE, KINDS
from envweave_gym_server.isolation.worker_setup import setup_for
from envweave_gym_server.offers.offers import Offers

_log = logging.getLogger(__name__)
_DYING_S = 5.0
"""Time to wait for the end of a worker that was killed, or has closed its socket."""
_CLOSING_S = 5.0
"""Time that an environment may take to close."""


class WorkerHosts:
    """Factory of environments in worker processes, which are forked from one zygote."""

    def __init__(self, offers: Offers, settings: Settings) -> None:
        if sys.platform != "linux":
            raise NotAvailable("isolation='process' needs Linux; serve with isolation='thread'")
        self._offers, self._settings = offers, settings
        setup = setup_for(offers, settings.worker_memory)
        environ, path = {**ONE_THREAD, **os.environ}, tuple(sys.path)
        self._forks = ForkServer(
            Program("envweave_gym_server.isolation.worker_process:prepare", setup, environ, path=path)
        )

    def open(self, create: Create) -> WorkerHost:
        """Make the environment of a new session in a worker, and return its host."""
        return WorkerHost(create, self)

    def describe(self, create: Create) -> dict[str, Any]:
        """Return the description of an environment, which is made and closed for this."""
        worker = self.start(create)
        try:
            reply = read_reply(worker.call(encode(Ask(-2, DESCRIBE)))[0])
        finally:
            worker.close()
        if isinstance(reply, Answer):
            return reply.value
        raise _error_in(reply)

    def start(self, create: Create) -> Worker:
        """Fork a worker that makes the environment, and return the worker."""
        name, settings = self._offers.find(create.env_id).name, self._settings
        worker = Worker(name, self._forks.fork(), settings.call_timeout, settings.largest_frame)
        kwargs = _in_time(create.kwargs, settings.call_timeout)
        frame = encode(msgspec.structs.replace(create, kwargs=pack(kwargs)))
        try:
            reply, is_made = worker.call(frame)
            if not is_made:
                raise _error_in(read_reply(reply))
        except TimeoutError as error:
            worker.close()
            raise EnvironmentCrashed(str(error)) from None
        except BaseException:
            worker.close()
            raise
        return worker

    def close(self) -> None:
        """End the zygote, and every worker with it."""
        self._forks.close()


def _in_time(kwargs: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    """Return ``kwargs`` with a ``reset_deadline`` that ends before the worker is killed after ``timeout`` seconds.

    So clients learn why the resets failed, not only that no answer came. The deadline is divided by the number of
    rows, because the rows of a vector reset one after the other.
    """
    deadline, rows = kwargs.get("reset_deadline", RESET_DEADLINE_S), kwargs.get("num_envs", 1)
    on_fault = kwargs.get("on_fault")
    if timeout is None or not isinstance(on_fault, str) or on_fault != "truncate":
        return kwargs
    if not isinstance(deadline, int | float) or type(rows) is not int or rows < 1:
        return kwargs  # the environment refuses them
    return {**kwargs, "reset_deadline": min(deadline, timeout / 2 / rows)}


def _error_in(refused: Any) -> Exception:
    """Return the exception that a worker raised while it made an environment, from its error reply."""
    error = KINDS.get(refused.kind, EnvironmentCrashed)(refused.message)
    if isinstance(error, EnvironmentCrashed):
        error.cause = refused.cause
    return error


class Worker:
    """Server's end of one worker process."""

    def __init__(self, name: str, fork: Fork, timeout: float | None, largest: int) -> None:
        self._name, self._fork, self._timeout, self._largest = name, fork, timeout, largest
        self._peer = FramedSocket(fork.connection, largest + len(DONE))

    @property
    def has_ended(self) -> bool:
        """Whether the worker is dead.

        Its socket closes before the thread that waits for the process has noticed the end.
        """
        return self._fork.ended is not None or self._peer.is_hung_up

    def call(self, frame: bytes) -> tuple[bytes, bool]:
        """Send a frame; return the reply and whether the call was executed.

        After an exception the worker is dead.
        """
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        try:
            self._peer.send(frame, deadline)
            reply = self._peer.receive(deadline)
            if len(reply) > SMALL_REPLY:
                check_reply(reply)
        except TimeoutError:
            self._kill()
            late = f"{self._name}: no answer within {self._timeout:g} s, so its process was killed"
            raise TimeoutError(late) from None
        except FrameTooLarge:
            self._kill()
            too_large = f"{self._name}: its reply has more bytes than the limit of {self._largest}"
            raise EnvironmentCrashed(too_large) from None
        except TooManyValues as error:
            self._kill()
            raise EnvironmentCrashed(f"{self._name}: its reply is not read: {error}") from None
        except OSError:
            raise self.death() from None
        return reply[1:], reply[:1] == DONE

    def death(self) -> Exception:
        """Return the error that says how the worker ended; kill it first if it still runs with a closed socket."""
        if not self._fork.wait(_DYING_S):
            self._kill()
        if self._fork.refused:
            return AtCapacity(f"there is no room for another process: {self._fork.ended}")
        return EnvironmentCrashed(f"{self._name}: its process {self._fork.ended or 'does not answer'}")

    def _kill(self) -> None:
        self.kill()
        self._fork.wait(_DYING_S)

    def kill(self) -> None:
        """Kill the worker; the running call then raises how the worker ended."""
        self._fork.kill()

    def close(self) -> None:
        """Make the worker close its environment and end; kill it if that takes too long."""
        try:
            if not self.has_ended:
                deadline = time.monotonic() + _CLOSING_S
                self._peer.send(encode(Close(-2)), deadline)
                self._peer.receive(deadline)
        except OSError:
            self._fork.kill()
        finally:
            self._peer.close()


class WorkerHost:
    """Host with the environment in a worker process; after the worker's death the next call starts another one.

    A death during a step is reported like an exception of the environment. With ``on_fault="truncate"`` it ends
    the episode with a last step. Otherwise, and in vectors, games and resets, the reply is the error
    ``EnvironmentCrashed``, and the call counts as executed. If the worker dies between two steps, the second
    step reports it.
    """

    may_be_killed = True

    def __init__(self, create: Create, workers: WorkerHosts) -> None:
        self._create, self._workers = create, workers
        self._truncates = create.kwargs.get("on_fault") == "truncate"
        self._worker: Worker | None = None
        self._death: Exception | None = None
        """Death of a worker that no call has reported yet, or ``None``."""
        self._last: bytes | None = None
        self._alive()

    def do(self, message: Reset | Step, frame: bytes) -> tuple[bytes, bool]:
        """Execute a reset or step; return the reply frame, and false if the call was refused."""
        try:
            worker = self._alive()
            if isinstance(message, Reset):
                self._death = None
            elif self._death is not None:
                raise self._death
            reply, done = self._call(worker, frame)
        except AtCapacity as error:
            return encode(Refused(message.call, "AtCapacity", str(error), message.call - 1)), False
        except (EnvweaveError, TimeoutError) as error:
            self._death = None
            return encode(self._lost(message, error)), True
        if done:
            self._last = reply
        return reply, done

    def answer(self, message: Ask, frame: bytes) -> bytes:
        """Return the reply frame to a question; if the worker dies, ask another worker once.

        That is allowed because a question changes nothing.
        """
        try:
            with suppress(EnvironmentCrashed):
                return self._call(self._alive(), frame)[0]
            return self._call(self._alive(), frame)[0]
        except (EnvweaveError, TimeoutError) as error:
            return encode(Refused(message.number, "EnvironmentCrashed", str(error)))

    def _alive(self) -> Worker:
        """Return the worker; start a new one first if there is none or it has died."""
        if self._worker is not None and self._worker.has_ended:
            self._leave(self._worker.death())
        if self._worker is None:
            self._worker = self._workers.start(self._create)
        return self._worker

    def _call(self, worker: Worker, frame: bytes) -> tuple[bytes, bool]:
        try:
            return worker.call(frame)
        except (EnvironmentCrashed, TimeoutError) as error:
            self._leave(error)
            raise

    def _leave(self, death: Exception) -> None:
        _log.warning("process died", extra={"env": self._create.env_id, "how": str(death)})
        self._death = death
        self.close()

    def _lost(self, message: Reset | Step, error: Exception) -> Reply:
        last, self._last = self._last, None
        if self._truncates and isinstance(message, Step):
            lost = lost_step(message, last, error)
            if lost is not None:
                return lost
        return Refused(message.call, "EnvironmentCrashed", str(error), message.call)

    def kill(self) -> None:
        """Kill the worker, so that the running call ends."""
        worker = self._worker
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        """Close the environment, and end its worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
