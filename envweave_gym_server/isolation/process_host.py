"""The environment of a session in a worker: frames go there, and its death comes back as a fault."""

from __future__ import annotations

import logging
import os
import select
import sys
from contextlib import suppress
from typing import Any

import msgspec

from envweave_gym.core.faults import (
    RESET_DEADLINE,
    AtCapacity,
    EnvironmentCrashed,
    EnvweaveError,
    NotAvailable,
)
from envweave_gym.sandbox.forkserver import ONE_THREAD, Fork, ForkServer, Program
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
from envweave_gym_server.environments.hosted_env import DESCRIBE
from envweave_gym_server.environments.lost_episode import lost_step
from envweave_gym_server.isolation.channel import DONE, TooLong, receive, send
from envweave_gym_server.isolation.plan import plan_of
from envweave_gym_server.isolation.worker_process import KINDS
from envweave_gym_server.offers.offers import Offers

_log = logging.getLogger(__name__)
_DYING = 5.0
"""So many seconds a worker that was killed, or whose socket is closed, has until its end is there."""
_CLOSING = 5.0
"""So many seconds an environment has to close."""


class Workers:
    """Opens sessions in processes that are forked from one zygote."""

    def __init__(self, offers: Offers, settings: Settings) -> None:
        if sys.platform != "linux":
            raise NotAvailable("isolation='process' needs Linux; serve with isolation='thread'")
        self._offers, self._settings = offers, settings
        plan = plan_of(offers, settings.worker_memory)
        environ, path = {**ONE_THREAD, **os.environ}, tuple(sys.path)
        self._forks = ForkServer(
            Program("envweave_gym_server.isolation.worker_process:prepare", plan, environ, path=path)
        )

    def open(self, create: Create) -> ProcessHost:
        """The host of a new session."""
        return ProcessHost(create, self)

    def describe(self, create: Create) -> dict[str, Any]:
        """What a client has to know of an environment before it makes one."""
        process = self.start(create)
        try:
            reply = read_reply(process.call(encode(Ask(-2, DESCRIBE)))[0])
        finally:
            process.close()
        if isinstance(reply, Answer):
            return reply.value
        raise _raised_there(reply)

    def start(self, create: Create) -> Process:
        """A worker that has made what is asked for."""
        name, settings = self._offers.find(create.env_id).name, self._settings
        process = Process(name, self._forks.fork(), settings.call_timeout, settings.largest_frame)
        kwargs = _in_time(create.kwargs, settings.call_timeout)
        frame = encode(msgspec.structs.replace(create, kwargs=pack(kwargs)))
        try:
            reply, made = process.call(frame)
            if not made:
                raise _raised_there(read_reply(reply))
        except TimeoutError as error:
            process.close()
            raise EnvironmentCrashed(str(error)) from None
        except BaseException:
            process.close()
            raise
        return process

    def close(self) -> None:
        """End the zygote, and every worker with it."""
        self._forks.close()


def _in_time(kwargs: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    """The arguments of an environment whose resets give up trying before the worker is killed for it.

    So what they raise is told, and not that no answer came; the rows of a vector try one after the other.
    """
    deadline, rows = kwargs.get("reset_deadline", RESET_DEADLINE), kwargs.get("num_envs", 1)
    on_fault = kwargs.get("on_fault")
    if timeout is None or not isinstance(on_fault, str) or on_fault != "truncate":
        return kwargs
    if not isinstance(deadline, int | float) or type(rows) is not int or rows < 1:
        return kwargs  # the environment says what is wrong with them
    return {**kwargs, "reset_deadline": min(deadline, timeout / 2 / rows)}


def _raised_there(refused: Any) -> Exception:
    """What the worker raised while it made the environment."""
    error = KINDS.get(refused.kind, EnvironmentCrashed)(refused.message)
    if isinstance(error, EnvironmentCrashed):
        error.cause = refused.cause
    return error


class Process:
    """One worker, as the server sees it."""

    def __init__(self, name: str, fork: Fork, timeout: float | None, longest: int) -> None:
        self._name, self._fork, self._timeout, self._longest = name, fork, timeout, longest
        self._connection = fork.connection
        self._connection.settimeout(timeout)

    @property
    def ended(self) -> bool:
        """Whether it is dead. Its socket hangs up before the thread that waits for its end has noted that."""
        if self._fork.ended is not None:
            return True
        poll = select.poll()  # select.select cannot read descriptors from 1,024 on
        poll.register(self._connection, 0)
        return bool(poll.poll(0))

    def call(self, frame: bytes) -> tuple[bytes, bool]:
        """The reply to a frame, and whether the call was done; after an exception the worker is dead."""
        try:
            send(self._connection, frame)
            reply = receive(self._connection, self._longest)
        except TimeoutError:
            self._kill()
            told = f"{self._name}: no answer within {self._timeout:g} s, so its process was killed"
            raise TimeoutError(told) from None
        except TooLong as error:
            self._kill()
            raise EnvironmentCrashed(f"{self._name}: its reply has {error}") from None
        except OSError:
            raise self.death() from None
        return reply[1:], reply[:1] == DONE

    def death(self) -> Exception:
        """How it died; kill it if it goes on after its socket has closed."""
        if not self._fork.wait(_DYING):
            self._kill()
        if self._fork.refused:
            return AtCapacity(f"there is no room for another process: {self._fork.ended}")
        return EnvironmentCrashed(f"{self._name}: its process {self._fork.ended or 'does not answer'}")

    def _kill(self) -> None:
        self.kill()
        self._fork.wait(_DYING)

    def kill(self) -> None:
        """Kill it; the call that is under way then tells how it died."""
        self._fork.kill()

    def close(self) -> None:
        """Let the environment close, and the worker end."""
        try:
            if not self.ended:
                self._connection.settimeout(_CLOSING)
                send(self._connection, encode(Close(-2)))
                receive(self._connection)
        except OSError:
            self._fork.kill()
        finally:
            self._connection.close()


class ProcessHost:
    """Hosts a session in a worker; the next call after its death starts another.

    A death during a step is told as the environment's own exceptions are: with ``on_fault="truncate"`` it is
    the last step of the episode; else, and in vectors, games and resets, the call is refused as
    ``EnvironmentCrashed``, and counts as done. A death between two steps is told by the second.
    """

    may_be_killed = True

    def __init__(self, create: Create, workers: Workers) -> None:
        self._create, self._workers = create, workers
        self._truncates = create.kwargs.get("on_fault") == "truncate"
        self._process: Process | None = None
        self._death: Exception | None = None
        """The one that is still to be told."""
        self._last: bytes | None = None
        self._alive()

    def do(self, message: Reset | Step, frame: bytes) -> tuple[bytes, bool]:
        """Reset or step; the frame of the reply, and whether the call was done."""
        try:
            process = self._alive()
            if isinstance(message, Reset):
                self._death = None
            elif self._death is not None:
                raise self._death
            reply, done = self._call(process, frame)
        except AtCapacity as error:
            return encode(Refused(message.call, "AtCapacity", str(error), message.call - 1)), False
        except (EnvweaveError, TimeoutError) as error:
            self._death = None
            return encode(self._lost(message, error)), True
        if done:
            self._last = reply
        return reply, done

    def answer(self, message: Ask, frame: bytes) -> bytes:
        """The frame that answers a question; as it changes nothing, a second worker may be asked."""
        try:
            with suppress(EnvironmentCrashed):
                return self._call(self._alive(), frame)[0]
            return self._call(self._alive(), frame)[0]
        except (EnvweaveError, TimeoutError) as error:
            return encode(Refused(message.number, "EnvironmentCrashed", str(error)))

    def _alive(self) -> Process:
        """The worker, or another where that one has died."""
        if self._process is not None and self._process.ended:
            self._leave(self._process.death())
        if self._process is None:
            self._process = self._workers.start(self._create)
        return self._process

    def _call(self, process: Process, frame: bytes) -> tuple[bytes, bool]:
        try:
            return process.call(frame)
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
        """Kill the worker, so that the call that is under way ends."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Close the environment, and end its worker."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
