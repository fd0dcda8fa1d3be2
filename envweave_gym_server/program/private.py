"""``python -m envweave_gym_server.program.private FD``: a private server of the process that starts it.

That process, the owner, passes a listening Unix socket, and a token over a pipe to the standard input. This
process only supervises: it forks the worker that answers clients, and another one when that has died. When the
pipe closes, the owner has ended or wants the server to end, and the whole process group is killed.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from envweave_gym.core.faults import EnvweaveError
from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.sandbox.inside.kernel import end_with_parent
from envweave_gym_server.core.metrics import TOO_LARGE, oom_kills
from envweave_gym_server.core.settings import settings_of_owner
from envweave_gym_server.offers.offers import Everything, Offers, offers_of
from envweave_gym_server.protocols.native.framed_sessions import FramedSessions
from envweave_gym_server.sessions.drain import Drain
from envweave_gym_server.sessions.service import SessionService

_SHORT_S, _PAUSE_S = 1.0, 0.1
"""Pause before the next worker if the last one has ended within ``_SHORT_S``."""
_log = logging.getLogger(__name__)


class Supervisor:
    """Parent process that keeps one worker running until SIGTERM, or until the pipe on standard input closes.

    It loads the code of the server and runs none of it, so that nothing of a worker's state is copied into the
    next one.
    """

    def __init__(self, offers: Offers, token: str, listener: socket.socket) -> None:
        self._offers, self._token, self._listener = offers, token, listener
        self._worker, self._is_ending = 0, False
        self._wakes, self._waker = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(self._waker, False)

    def run(self) -> int:
        """Run workers until SIGTERM, and return the exit code of the last one."""
        signal.set_wakeup_fd(self._waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the byte in the pipe is all that matters
        signal.signal(signal.SIGTERM, self._end)
        why = ""
        while True:
            kills, began = oom_kills(), time.monotonic()
            self._fork(why)
            code = self._wait()
            if self._is_ending:
                return code
            why = TOO_LARGE if oom_kills() > kills else f"it ended with exit code {code}"
            # A worker that dies at once must not become a busy loop; clients wait in the listener's queue.
            if time.monotonic() - began < _SHORT_S:
                time.sleep(_PAUSE_S)

    def _end(self, *_: Any) -> None:
        """Pass SIGTERM to the worker, and end after it; the worker finishes its calls, except at a second SIGTERM."""
        self._is_ending = True
        with suppress(ProcessLookupError):
            if self._worker:
                os.kill(self._worker, signal.SIGTERM)

    def _fork(self, why: str) -> None:
        """Fork a worker; ``why`` is the reason for which the previous worker has ended."""
        parent = os.getpid()
        # SIGTERM waits until this process knows the worker's id, and the worker has handlers of its own.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._worker = os.fork()
        if self._worker == 0:
            self._run_worker(parent, why)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self._is_ending:
            self._end()

    def _wait(self) -> int:
        """Wait for the end of the worker, and return its exit code; if the owner ends first, kill the group."""
        poll = select.poll()
        poll.register(sys.stdin.fileno(), select.POLLIN)
        poll.register(self._wakes, select.POLLIN)
        while True:
            pid, status = os.waitpid(self._worker, os.WNOHANG)
            if pid:
                self._worker = 0
                return os.waitstatus_to_exitcode(status)
            for descriptor, _ in poll.poll():
                if not os.read(descriptor, 4096):
                    os.killpg(0, signal.SIGKILL)

    def _run_worker(self, parent: int, why: str) -> None:
        """Answer clients in the process that was forked for it, and exit.

        ``why`` is the reason for which the previous worker has ended.
        """
        code = 1
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if sys.platform == "linux":
                with suppress(OSError):  # where this is not allowed, the drain looks for the parent
                    end_with_parent(signal.SIGKILL, parent)
            with open(os.devnull, "rb") as null:  # an environment that reads it would read the owner's pipe
                os.dup2(null.fileno(), sys.stdin.fileno())
            self._serve(why)
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may get past the end of this process
            traceback.print_exc()
        finally:
            with suppress(OSError):
                sys.stderr.flush()
            os._exit(code)

    def _serve(self, why: str) -> None:
        """Answer clients until the drain is over; ``why`` is the reason for which the previous worker has ended."""
        over, (wakes, waker) = threading.Event(), os.pipe()
        os.set_blocking(waker, False)
        # The kernel may deliver a signal to any thread. Its handler runs in this one, which the byte wakes.
        signal.set_wakeup_fd(waker)
        service = SessionService(self._offers, settings_of_owner())

        def stop() -> None:
            over.set()
            os.write(waker, b"\0")

        Drain(service, stop).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if why:
            service.sessions.others_ended(why)
            _log.warning("server restarted: %s; all sessions are lost", why)
        in_forked_child(self._listener, socket.socket.close)
        FramedSessions(service, self._listener, self._token, is_shared=True).start()
        while not over.is_set():
            os.read(wakes, 4096)


def _end_with_owner_though_stopped() -> None:
    """End the process group with its owner even if it is stopped (SIGSTOP) and cannot read the pipe.

    Linux can send a signal when the thread ends that has started this process, which may be long before the
    owner ends. So that signal only wakes this process, which then checks for the owner.
    """
    own, owner = os.getpid(), os.getppid()

    def wake(*_: Any) -> None:
        if os.getpid() == own and os.getppid() != owner:
            os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGCONT, wake)
    with suppress(OSError):  # where this is not allowed, the pipe alone tells
        end_with_parent(signal.SIGCONT, owner)


def main(arguments: Sequence[str]) -> int:
    """Serve until the pipe closes; return the exit code."""
    if sys.platform == "linux":
        _end_with_owner_though_stopped()
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # each connection is an open file
    start = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = start["paths"]
    try:
        offers = offers_of(start["ids"]) if start["ids"] else Everything()
    except EnvweaveError as error:  # the owner's mistake: its error quotes this line
        print(error, file=sys.stderr)
        return 1
    listener = socket.socket(fileno=int(arguments[0]))
    listener.set_inheritable(False)  # a program that an environment starts would keep the address in use
    return Supervisor(offers, start["token"], listener).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
